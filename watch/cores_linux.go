package watch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

func readCores() ([]Core, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("read CPU times: %w", err)
	}
	cores, err := parseCores(text)
	for i := range cores {
		cores[i].Hertz = readHertz(cores[i].Number)
	}
	return cores, err
}

// parseCores reads the "cpuN" lines of /proc/stat (proc(5)), as parseStat does.
func parseCores(text []byte) (cores []Core, err error) {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 5 || !bytes.HasPrefix(f[0], []byte("cpu")) || len(f[0]) == 3 {
			continue
		}
		c := Core{}
		if c.Number, err = strconv.Atoi(string(f[0][3:])); err != nil || c.Number < 0 {
			return nil, fmt.Errorf("/proc/stat: %q is no CPU", f[0])
		}
		var t [8]time.Duration // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user
		for i, s := range f[1:min(len(f), 1+len(t))] {
			n, err := strconv.ParseUint(string(s), 10, 63)
			if err != nil || n > 1<<36 {
				return nil, fmt.Errorf("/proc/stat: field %d of %s: %q", i+1, f[0], s)
			}
			t[i] = time.Duration(n) * tick
			c.Total += t[i]
		}
		c.Busy, c.IRQ, c.SoftIRQ, c.Steal = c.Total-t[3]-t[4], t[5], t[6], t[7]
		cores = append(cores, c)
	}
	if len(cores) == 0 {
		return nil, errors.New("/proc/stat names no CPU")
	}
	return cores, nil
}

// readHertz returns the clock rate that cpufreq tells, 0 where it does not.
func readHertz(core int) float64 {
	n, err := strconv.ParseUint(readLine(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", core)), 10, 32)
	if err != nil {
		return 0
	}
	return float64(n) * 1000
}
