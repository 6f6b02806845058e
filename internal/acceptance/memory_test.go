package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/testnet"
)

// memoryVariable set to anything adds a run of five minutes.
const memoryVariable = "BLOAT_MEMORY"

// The bounds of the program's memory, resident at its peak: whole, and for each flow beyond ten.
const (
	memoryBound     = 24 << 20
	memoryFlowBound = 64 << 10
)

func TestTheProgramsMemoryHasBounds(t *testing.T) {
	t.Parallel()
	short := 2 * time.Second
	few, many := memoryOf(t, 10, short), memoryOf(t, 70, short)
	rows := []memory{few, many}
	if os.Getenv(memoryVariable) != "" {
		rows = append(rows, memoryOf(t, 10, 10*time.Second), memoryOf(t, 10, 300*time.Second))
	}
	fmt.Println("| flows each way | seconds each way | client, MiB | of these its own | server, MiB | of these its own |\n| ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, m := range rows {
		fmt.Println(m)
		if m.flows == 10 && (m.client.peak > memoryBound || m.server.peak > memoryBound) {
			t.Errorf("%v: want at most %d MiB", m, memoryBound>>20)
		}
	}
	for who, more := range map[string]int{"client": many.client.peak - few.client.peak, "server": many.server.peak - few.server.peak} {
		if each := more / (many.flows - few.flows); each > memoryFlowBound {
			t.Errorf("the %s takes %d bytes for each further flow, want at most %d", who, each, memoryFlowBound)
		}
	}
}

// memory is what a client and a server had resident.
type memory struct {
	flows          int
	length         time.Duration
	client, server resident
}

func (m memory) String() string {
	mib := func(bytes int) float64 { return float64(bytes) / (1 << 20) }
	return fmt.Sprintf("| %d | %.0f | %.1f | %.1f | %.1f | %.1f |", m.flows, m.length.Seconds(), mib(m.client.peak), mib(m.client.own), mib(m.server.peak), mib(m.server.own))
}

// memoryOf runs a speedtest with so many flows each way over 100 Mbit/s, against a server of its own.
func memoryOf(t *testing.T, flows int, length time.Duration) memory {
	t.Helper()
	n := testnet.New(t)
	queue := testnet.Queue{Rate: 100 * bitrate.Mbit, Buffer: 100 * time.Millisecond}
	n.Down.Shape(t, queue)
	n.Up.Shape(t, queue)
	ctx, cancel := context.WithTimeout(context.Background(), 2*length+60*time.Second)
	defer cancel()
	server := bloat(ctx, t, n.Server, "serve", "--max-tests", "200")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Signal(os.Interrupt); _ = server.Wait() }()
	waitFor(t, n, netip.AddrPortFrom(n.Server.IP, 12865))
	client := bloat(ctx, t, n.Client, "speedtest", "-H", n.Server.IP.String(), "-n", strconv.Itoa(flows), "-t", seconds(length), "-i", "1", "--json")
	var stdout, stderr bytes.Buffer
	client.Stdout, client.Stderr = &stdout, &stderr
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- client.Wait() }()
	m := memory{flows: flows, length: length}
	for {
		// The kernel tells of a peak as long as the process is there. Its resource usage at the end would begin with this test program's own.
		m.client.look(client.Process.Pid)
		m.server.look(server.Process.Pid)
		select {
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == statusPartial) {
				t.Fatalf("%v: %v\n%s", client.Args, err, stderr.String())
			}
			if got := len(parse(t, stdout.Bytes()).Phases); got < 3 || m.client.peak == 0 || m.server.peak == 0 {
				t.Fatalf("%d phases, %+v: nothing was measured", got, m)
			}
			return m
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// resident is the most bytes that a process had resident: in all, as the kernel keeps count, and as far as the looks at it saw its own memory, which is all
// but pages of files, such as the program itself (VmHWM and RssAnon, proc_pid_status(5)).
type resident struct{ peak, own int }

// look takes in what a process has now. One that is gone has nothing.
func (r *resident) look(pid int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kilobytes, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "VmHWM:":
			r.peak = max(r.peak, kilobytes<<10)
		case "RssAnon:":
			r.own = max(r.own, kilobytes<<10)
		}
	}
}
