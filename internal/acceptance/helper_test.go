package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	server "bufferbloat/servers/netperf"
)

// helperVariable names what this test program is to be in place of a test: the server of a protocol, or its client. Each is a process of its
// own, so that it has a CPU time and a namespace of its own.
const helperVariable = "BLOAT_HELPER"

// protocol is how flows of one protocol are served and made.
type protocol struct {
	// serve serves at an address until ctx is done, and calls ready once it can.
	serve func(ctx context.Context, h host.Host, at netip.AddrPort, flows int, ready func()) error
	// flow returns a flow that was not opened.
	flow func(h host.Host, to netip.AddrPort, d load.Direction, length time.Duration) flow
	port uint16
}

type flow interface {
	Open(ctx context.Context) error
	Run(ctx context.Context) (load.Result, error)
}

var protocols = map[string]protocol{
	"netperf": {port: 12865,
		serve: func(ctx context.Context, h host.Host, at netip.AddrPort, flows int, ready func()) error {
			s := server.Server{Options: server.Options{MaxTests: flows + 1, MaxTestsPerAddress: flows + 1, Ready: func([]netip.AddrPort) { ready() }}}
			return s.Serve(ctx, h, at)
		},
		flow: func(h host.Host, to netip.AddrPort, d load.Direction, length time.Duration) flow {
			c := &netperf.Client{Host: h, Addr: to}
			return c.NewFlow(netperf.FlowOptions{Direction: d, Length: length})
		},
	},
}

// helper runs the part that the words of helperVariable name and returns its exit status.
func helper(words []string) int {
	var err error
	if words[0] == "prober" {
		if err = helperProber(words[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	p, known := protocols[words[1]]
	switch at := netip.MustParseAddrPort(words[2]); {
	case !known:
		err = fmt.Errorf("no protocol %q", words[1])
	case words[0] == "server":
		err = helperServer(p, at, words[3])
	default:
		err = helperClient(p, at, words[3:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// helperServer serves until its standard input ends.
func helperServer(p protocol, at netip.AddrPort, flows string) error {
	n, err := strconv.Atoi(flows)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	return p.serve(ctx, host.NewKernel(), at, n, func() { fmt.Println("ready") })
}

// moved is what the flows of a client did together.
type moved struct {
	Bytes uint64
	Over  time.Duration // from the first byte of any flow to the last of any
}

func (m moved) bits() float64 { return float64(m.Bytes) * 8 }

func helperClient(p protocol, to netip.AddrPort, words []string) error {
	var d load.Direction
	if err := d.UnmarshalText([]byte(words[0])); err != nil {
		return err
	}
	n, err1 := strconv.Atoi(words[1])
	length, err2 := time.ParseDuration(words[2])
	if err1 != nil || err2 != nil {
		return fmt.Errorf("%q: want flows and a length", words)
	}
	flows := make([]flow, n)
	for i := range flows {
		flows[i] = p.flow(host.NewKernel(), to, d, length)
		if err := flows[i].Open(context.Background()); err != nil {
			return err
		}
	}
	results, errs := make([]load.Result, n), make([]error, n)
	var group sync.WaitGroup
	for i, f := range flows {
		group.Go(func() { results[i], errs[i] = f.Run(context.Background()) })
	}
	group.Wait()
	var m moved
	var first, last time.Time
	for i, r := range results {
		if errs[i] != nil {
			return errs[i]
		}
		m.Bytes += r.Bytes
		if first.IsZero() || r.First.Before(first) {
			first = r.First
		}
		if r.Last.After(last) {
			last = r.Last
		}
	}
	m.Over = last.Sub(first)
	return json.NewEncoder(os.Stdout).Encode(m)
}

// asHelper returns the command of a helper in a namespace.
func asHelper(t testing.TB, s *testnet.Space, words ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.Command(program)
	cmd.Env = append(os.Environ(), helperVariable+"="+strings.Join(words, " "))
	cmd.Stderr = os.Stderr
	return cmd
}

// startServer starts a helper as a server and returns once it can be used. stop ends it and returns what it used.
func startServer(t testing.TB, s *testnet.Space, protocol string, at netip.AddrPort, flows int) (stop func() time.Duration) {
	t.Helper()
	cmd := asHelper(t, s, "server", protocol, at.String(), strconv.Itoa(flows))
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the server says %q, %v", line, err)
	}
	return func() time.Duration {
		t.Helper()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
}
