package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/report"
	"bufferbloat/servers/irtt"
	"bufferbloat/servers/netperf"
)

// emulatedVariable set to anything runs the tests that build for other machines, which takes minutes where nothing is cached: make emulated.
const emulatedVariable = "BLOAT_EMULATED"

// machine is one that the program is built for and run on here.
type machine struct {
	arch, setting string
	qemu          string // the emulator; "" where this machine's own kernel runs it
	env           string // what the program needs in its environment there
}

// Go interrupts its threads by signals to share the CPU among goroutines. QEMU 7.2 loses the 386's thread pointer over them, so that each program dies
// within its first seconds; without them it runs. Other machines, and a real one, need no such thing.
var machines = []machine{{"mipsle", "GOMIPS=softfloat", "qemu-mipsel-static", ""}, {"mips", "GOMIPS=softfloat", "qemu-mips-static", ""},
	{"arm", "GOARM=5", "qemu-arm-static", ""}, {"386", "GO386=sse2", "qemu-i386-static", "GODEBUG=asyncpreemptoff=1"}, {"386", "GO386=sse2", "", ""}}

// name tells the machine from the others.
func (m machine) name() string { return m.arch + "-" + cmp.Or(m.qemu, "native") }

// build builds for the machine with a command of the Go tool, and returns the file.
func (m machine) build(t *testing.T, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", append(args[:len(args)-1:len(args)-1], "-trimpath", "-o", out, args[len(args)-1])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+m.arch, m.setting)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	return out
}

// command returns a command line of a program that was built for the machine.
func (m machine) command(ctx context.Context, t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	if m.qemu == "" {
		if err := exec.Command(program, "version").Run(); err != nil {
			facility.Missing(t, "ia32", "the kernel does not run programs for 386: "+err.Error())
		}
		return exec.CommandContext(ctx, program, args...)
	}
	qemu, err := exec.LookPath(m.qemu)
	if err != nil {
		facility.Missing(t, "qemu", err.Error())
	}
	cmd := exec.CommandContext(ctx, qemu, append([]string{program}, args...)...)
	if m.env != "" {
		cmd.Env = append(os.Environ(), m.env)
	}
	return cmd
}

// run runs a command line of a program that was built for the machine, and returns what it printed. Where the emulator itself dies, as that of the 386 does in one
// of some forty runs, it tries again; a program that can't run there fails each time.
func (m machine) run(ctx context.Context, t *testing.T, program string, args ...string) (stdout, stderr []byte, err error) {
	t.Helper()
	for range 3 {
		cmd := m.command(ctx, t, program, args...)
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		err = cmd.Run()
		stdout, stderr = out.Bytes(), complaints.Bytes()
		if m.env == "" || !bytes.Contains(stderr, []byte("qemu: uncaught target signal")) {
			break
		}
	}
	return stdout, stderr, err
}

// serve runs the servers on loopback until the test is over, and returns their ports.
func serve(t *testing.T) (control, probes netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	h, any := host.NewKernel(), netip.MustParseAddrPort("127.0.0.1:0")
	np, up := make(chan []netip.AddrPort, 1), make(chan []netip.AddrPort, 1)
	group.Go(func() {
		s := netperf.Server{Options: netperf.Options{Ready: func(at []netip.AddrPort) { np <- at }}}
		_ = s.Serve(ctx, h, any)
	})
	group.Go(func() {
		s := irtt.Server{Options: irtt.Options{Ready: func(at []netip.AddrPort) { up <- at }}}
		_ = s.Serve(ctx, h, any)
	})
	for range 2 {
		select {
		case at := <-np:
			control = at[0]
		case at := <-up:
			probes = at[0]
		case <-time.After(10 * time.Second):
			t.Fatal("the servers do not begin")
		}
	}
	return control, probes
}

// Reports 70: 32-bit and big-endian machines.
func TestOtherMachinesMeasureAgainstANativeServer(t *testing.T) {
	if os.Getenv(emulatedVariable) == "" {
		t.Skip(emulatedVariable + " is not set")
	}
	control, probes := serve(t)
	for _, m := range machines {
		t.Run(m.name(), func(t *testing.T) {
			program := m.build(t, "build", ".")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if out, complaints, err := m.run(ctx, t, program, "version"); err != nil || !bytes.HasPrefix(out, []byte("speedtest ")) {
				t.Fatalf("version prints %q, %v\n%s", out, err, complaints)
			}
			kept := filepath.Join(t.TempDir(), "x.bloat.json.gz")
			out, complaints, err := m.run(ctx, t, program, "-H", "127.0.0.1", "--port", strconv.Itoa(int(control.Port())), "--irtt-port", strconv.Itoa(int(probes.Port())),
				"-t", "1", "-i", "1", "-n", "2", "--json", "-o", kept)
			const partial = 4 // an emulator on a busy machine sends probes late
			if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == partial) {
				t.Fatalf("%v\n%.4000s%.4000s", err, complaints, out)
			}
			if !json.Valid(out) {
				t.Errorf("no document: %s", out)
			}
			sound(t, m.arch, kept)
		})
	}
}

// sound looks at a recording that another machine made.
func sound(t *testing.T, arch, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := bufferbloat.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Client.Arch != arch {
		t.Errorf("the client was %s, want %s", rec.Client.Arch, arch)
	}
	loads := 0
	for _, p := range report.New(rec).Phases {
		for _, g := range p.Goodput {
			loads++
			if !g.OK || g.Flowed != 2 || g.Rate < 1_000_000 {
				t.Errorf("%s %v: %v of %d streams, %s", p.Name, g.Direction, g.Rate, g.Flowed, g.Why)
			}
		}
		for _, l := range p.Latency {
			if l.N > 0 && (l.Min <= 0 || l.Max > 5*time.Second) || l.Lost > 0 {
				t.Errorf("%s, %s: %d of %d lost, %v to %v", p.Name, l.Series, l.Lost, l.N, l.Min, l.Max)
			}
		}
	}
	if loads != 2 {
		t.Errorf("%d loads, want 2", loads)
	}
}

// The packages' own tests compare with captures, byte for byte.
func TestWireFormatsAreTheSameOnABigEndianMachine(t *testing.T) {
	if os.Getenv(emulatedVariable) == "" {
		t.Skip(emulatedVariable + " is not set")
	}
	big := machines[1]
	for _, name := range []string{"netperf", "irtt", "iperf3", "http"} {
		t.Run(name, func(t *testing.T) {
			program := big.build(t, "test", "-c", "bufferbloat/internal/wire/"+name)
			cmd := big.command(t.Context(), t, program, "-test.short", "-test.timeout=120s")
			cmd.Dir = filepath.Join("..", "..", "internal", "wire", name)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
