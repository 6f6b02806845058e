package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// buildSmall makes the program for routers once, as releases have it but for what is inlined, and returns its path or why it can't be built.
var buildSmall = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(workshop, "speedtest")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, "../../cmd/speedtest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return binary, nil
})

// small returns the program for routers.
func small(t *testing.T) string {
	t.Helper()
	binary, err := buildSmall()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// memoryGroup makes a control group with so much memory and no swap, and removes it when the test is over.
func memoryGroup(t *testing.T, bytes int) string {
	t.Helper()
	limit := fmt.Sprint(bytes)
	for _, c := range []struct {
		top   string
		files [][2]string
	}{
		{"/sys/fs/cgroup/memory", [][2]string{{"memory.limit_in_bytes", limit}, {"memory.memsw.limit_in_bytes", limit}}}, // version 1
		{"/sys/fs/cgroup", [][2]string{{"memory.max", limit}, {"memory.swap.max", "0"}}},                                 // version 2
	} {
		dir := filepath.Join(c.top, fmt.Sprintf("bb-router-%d", os.Getpid()))
		if os.Mkdir(dir, 0o700) != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		var err error
		for _, f := range c.files {
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, f[0]), []byte(f[1]), 0o600)
			}
		}
		if err == nil {
			return dir
		}
	}
	facility.Missing(t, "memorylimit", "no control group that a limit can be set in")
	return ""
}

// smallMemoryBound is what the program may have resident at its peak, with five flows.
const smallMemoryBound = 20 << 20

// Reports 74: memory does not grow with time.
func TestTheProgramForRoutersNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	lengths := []time.Duration{2 * time.Second}
	if os.Getenv(memoryVariable) != "" {
		lengths = []time.Duration{10 * time.Second, 120 * time.Second}
	}
	dir := memoryGroup(t, 64<<20)
	n := testnet.New(t)
	queue := testnet.Queue{Rate: 100 * bitrate.Mbit, Buffer: 100 * time.Millisecond}
	n.Down.Shape(t, queue)
	n.Up.Shape(t, queue)
	serve(t, n)
	kept := filepath.Join(t.TempDir(), "x.bloat.json.gz")
	for _, length := range lengths {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 2*length+60*time.Second)
		cmd := exec.CommandContext(ctx, "sh", "-c", `echo $$ >"$1/cgroup.procs" && shift && exec "$@"`, "sh", dir,
			"nsenter", "--net=/run/netns/"+n.Client.Name, small(t), "-H", n.Server.IP.String(), "-t", seconds(length), "-i", "1", "--json", "-o", kept)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		var most resident
		for running := true; running; {
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)); err == nil && exe == small(t) {
				most.look(cmd.Process.Pid)
			}
			select {
			case err := <-ended:
				running = false
				if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == statusPartial) {
					t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
				}
			case <-time.After(10 * time.Millisecond):
			}
		}
		cancel()
		agrees(t, kept, cmd.ProcessState, time.Since(began))
		fmt.Printf("speedtest, 5 flows, %v each way: %.1f MiB resident at most, %.1f of its own\n", length, float64(most.peak)/(1<<20), float64(most.own)/(1<<20))
		if len(parse(t, stdout.Bytes()).Phases) < 3 || most.peak == 0 || most.peak > smallMemoryBound {
			t.Errorf("%v each way: %d bytes resident, want 1 to %d\n%s", length, most.peak, smallMemoryBound, stderr.String())
		}
	}
}

// agrees compares what a recording says of the program's own CPU use with what the kernel says of the process: they are to be within 2 points of all CPUs.
func agrees(t *testing.T, recording string, process *os.ProcessState, wall time.Duration) {
	t.Helper()
	f, err := os.Open(recording)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := bufferbloat.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	var last, own time.Duration
	for _, s := range rec.CPU.Samples {
		own += time.Duration(s.Own * float64((s.At-last)*time.Duration(len(s.Busy))))
		last = s.At
	}
	kernel := process.UserTime() + process.SystemTime()
	if points := 100 * (kernel - own).Seconds() / (wall.Seconds() * float64(rec.Client.CPUs)); points < -2 || points > 2 {
		t.Errorf("the recording has %v of CPU time and the kernel %v in %v: %.1f points apart", own, kernel, wall, points)
	}
}

// routerScript makes $1 a root that is read-only but for /tmp, with the kernel's tables in /proc, and runs the rest of the line in it.
const routerScript = `root=$1; shift
mount --make-rprivate / && mount --bind "$root" "$root" && mount -t tmpfs none "$root/tmp" && mount -t proc none "$root/proc" && mount -o remount,bind,ro "$root" &&
exec chroot "$root" /bin/sh -c 'if (: >/etc/x) 2>/tmp/refused; then echo "the root can be written"; exit 99; fi
for tool in ip ping netperf; do for dir in /bin /sbin /usr/bin /usr/sbin; do test ! -e "$dir/$tool" || exit 97; done; done
while read -r what at kind more; do test "$at" != /tmp || test "$kind" = tmpfs || exit 96; done </proc/mounts
test ! -s /proc/net/if_inet6 || exit 95
"$@" >/tmp/out 2>/tmp/err; status=$?; cat /tmp/out; cat /tmp/err >&2; test -s /tmp/x.gz || exit 98; exit $status' sh "$@"`

// A busybox, no ip, no ping, no names, no IPv6, no devices and a read-only root.
func TestTheProgramForRoutersWorksOnWhatLooksLikeOne(t *testing.T) {
	t.Parallel()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		facility.Missing(t, "busybox", err.Error())
	}
	root := t.TempDir()
	for _, dir := range []string{"bin", "tmp", "proc", "etc"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, name := range map[string]string{busybox: "busybox", small(t): "betterspeedtest.sh"} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "bin", name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "cat", "test"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("chroot", root, "/bin/sh", "-c", "true").CombinedOutput(); err != nil {
		facility.Missing(t, "busybox", fmt.Sprintf("it does not run alone: %v %s", err, out))
	}
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv6/conf/all/disable_ipv6", "1")
	queue := testnet.Queue{Rate: 20 * bitrate.Mbit, Buffer: 100 * time.Millisecond}
	n.Down.Shape(t, queue)
	n.Up.Shape(t, queue)
	serve(t, n)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+n.Client.Name, "unshare", "--mount", "sh", "-c", routerScript, "sh", root,
		"/bin/betterspeedtest.sh", "-H", n.Server.IP.String(), "-p", n.Server.IP.String(), "-t", "2", "-o", "/tmp/x.gz")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == statusPartial) { // a busy machine sends its probes late
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	for _, want := range []string{"\n Download: ", "\n   Upload: ", "\n   Median: "} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s%s", want, stdout.String(), stderr.String())
		}
	}
	if strings.Contains(stdout.String(), "Median: -") || strings.Contains(stdout.String(), "no result") {
		t.Errorf("nothing was measured:\n%s", stdout.String())
	}
}

// Reports 72: where a quota is the limit, the result says so and judges nothing.
func TestAQuotaLeavesNoVerdictOfTheLink(t *testing.T) {
	t.Parallel()
	dir := quotaGroup(t, 0.2)
	n := testnet.New(t)
	serve(t, n)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `echo $$ >"$1/cgroup.procs" && shift && exec "$@"`, "sh", dir,
		"nsenter", "--net=/run/netns/"+n.Client.Name, small(t), "-H", n.Server.IP.String(), "-t", "2", "-i", "2", "--interval", "50ms")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // its status says that the result is weak, or void
	out := stdout.String()
	if !strings.Contains(out, "a quota of 0.2 CPUs stopped this program") || strings.Contains(out, "Your delay") || strings.Contains(out, "calls will") {
		t.Errorf("got a verdict, or no quota:\n%s%s", out, stderr.String())
	}
}
