package iperf3

import (
	"context"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
)

// fewDescriptors says to this program, started again, that it is to be the server of TestFewDescriptors.
const fewDescriptors = "BLOAT_TEST_FEW_DESCRIPTORS"

func TestMain(m *testing.M) {
	if os.Getenv(fewDescriptors) != "" {
		serveWithFewDescriptors()
		return
	}
	os.Exit(m.Run())
}

// serveWithFewDescriptors serves until its standard input ends.
func serveWithFewDescriptors() {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	v, err := newService(Options{}, host.NewKernel())
	if err != nil {
		panic(err)
	}
	go func() { _ = v.accept(ctx, l) }()
	_, _ = os.Stdout.WriteString(l.Addr().String() + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestFewDescriptorsAreForThoseWhoSaySomething(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fewDescriptors+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	line := make([]byte, 100)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	server := netAddr(t, string(line[:n-1]))
	h := host.NewKernel()
	for range 150 {
		p := dial(t, h, server)
		defer p.conn.Close()
	}
	for range 3 {
		p := dial(t, h, server)
		p.write(p.cookie[:])
		p.expect(20*time.Second, wire.ParamExchange) // on a busy machine; it is some milliseconds
		p.write(wire.Params{Parallel: 1, Time: time.Second}.AppendTo(nil))
		p.expect(20*time.Second, wire.CreateStreams)
		data := dial(t, h, server)
		data.write(p.cookie[:])
		p.expect(20*time.Second, wire.TestStart, wire.TestRunning)
		p.end(1)
		_ = data.conn.Close()
	}
}

func TestNothingIsLeftOfManyTestsOverTheKernel(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{})
	count := func() (goroutines, files int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no list of open files: ", err)
		}
		return runtime.NumGoroutine(), len(list)
	}
	goroutines, files := count()
	for i := range 200 {
		p := begin(t, h, at)
		q := wire.Params{Parallel: 1, Time: time.Minute, Reverse: i%2 == 0, Rate: 1e6}
		data := p.open(q, at)
		for _, c := range append(data, p.conn) {
			if l, ok := c.(interface{ SetLinger(int) error }); ok && i%3 == 0 {
				_ = l.SetLinger(0)
			}
			_ = c.Close()
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		g, f := count()
		if g <= goroutines+2 && f <= files+2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines and %d files, %d and %d before", g, f, goroutines, files)
		}
		time.Sleep(20 * time.Millisecond) // until what was closed is gone
	}
}
