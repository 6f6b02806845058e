package watch

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of /proc/stat. Linux fixes USER_HZ at 100 on every architecture that Go runs on.
const tick = time.Second / 100

func readCPU() (Times, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Times{}, fmt.Errorf("read CPU times: %w", err)
	}
	t, err := parseStat(text)
	if err != nil {
		return Times{}, err
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return Times{}, fmt.Errorf("read the process's CPU time: %w", err)
	}
	t.Own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return t, nil
}

// parseStat reads the "cpuN" lines of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); guest time is in user.
func parseStat(text []byte) (Times, error) {
	var t Times
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 5 || len(f[0]) < 4 || f[0][:3] != "cpu" {
			continue
		}
		var busy, total time.Duration
		for i, s := range f[1:min(len(f), 9)] {
			n, err := strconv.ParseUint(s, 10, 63)
			if err != nil {
				return Times{}, fmt.Errorf("/proc/stat: field %d of %s: %w", i+1, f[0], err)
			}
			d := time.Duration(n) * tick
			total += d
			if i != 3 && i != 4 {
				busy += d
			}
		}
		t.Busy, t.Total = append(t.Busy, busy), append(t.Total, total)
	}
	if len(t.Total) == 0 {
		return Times{}, fmt.Errorf("/proc/stat names no CPU")
	}
	return t, nil
}

func readKernel() string { return readLine("/proc/sys/kernel/osrelease") }

func readCongestionControl() string { return readLine("/proc/sys/net/ipv4/tcp_congestion_control") }

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil || len(b) > 256 {
		return ""
	}
	return strings.TrimSpace(string(b))
}
