package bufferbloat_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/protocols"
)

// ways is a stack of many addresses and devices, which notes from which of them its sockets send.
type ways struct {
	host.Host
	missing string // a device that is not there

	mu   sync.Mutex
	seen map[string]bool // "tcp 12865 from ADDRESS through DEVICE"
}

// through notes the way of a socket, and returns the options that the lab can have.
func (w *ways) through(what string, o host.Options) host.Options {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[fmt.Sprintf("%s from %v through %s", what, o.Source, o.Interface)] = true
	o.Source, o.Interface = netip.Addr{}, ""
	return o
}

func (w *ways) DialTCP(ctx context.Context, to netip.AddrPort, o host.Options) (net.Conn, error) {
	return w.Host.DialTCP(ctx, to, w.through(fmt.Sprint("tcp ", to.Port()), o))
}

func (w *ways) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	return w.Host.DialUDP(ctx, to, w.through(fmt.Sprint("udp ", to.Port()), o))
}

func (w *ways) DialEcho(ctx context.Context, to netip.Addr, o host.Options) (host.EchoConn, error) {
	return w.Host.DialEcho(ctx, to, w.through("echo", o))
}

func (w *ways) ListenTCP(ctx context.Context, at netip.AddrPort, o host.Options) (net.Listener, error) {
	if w.missing != "" && o.Interface == w.missing {
		return nil, fmt.Errorf("listen at %v: %w", at, fmt.Errorf("bind to device %q: %w", o.Interface, syscall.ENODEV))
	}
	return w.Host.ListenTCP(ctx, netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), w.through("try", o))
}

// wayPlan has a flow of each protocol and some probes, each of which leaves this host another way.
func wayPlan() bufferbloat.Plan {
	from := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, n}) }
	p := one(2*time.Second,
		bufferbloat.FlowPlan{Name: "plain", Direction: load.Upload},
		bufferbloat.FlowPlan{Name: "netperf", Direction: load.Upload, Source: from(1), Interface: "wan1"},
		bufferbloat.FlowPlan{Name: "iperf3 a", Direction: load.Download, Protocol: bufferbloat.IPerf3, Source: from(2)},
		bufferbloat.FlowPlan{Name: "iperf3 b", Direction: load.Download, Protocol: bufferbloat.IPerf3, Interface: "wan3"},
		bufferbloat.FlowPlan{Name: "datagrams", Direction: load.Upload, Protocol: bufferbloat.IPerf3UDP, Rate: 100 * bitrate.Kbit, Source: from(4)},
		bufferbloat.FlowPlan{Name: "http", Direction: load.Download, Protocol: bufferbloat.HTTP, Source: from(5)})
	p.Server.IPerf3Port, p.Server.Source, p.Server.Interface = 5201, from(100), "wan0"
	p.Probes = append(p.Probes,
		bufferbloat.ProbePlan{Name: "echo", Kind: bufferbloat.ICMP, Interval: 200 * time.Millisecond, Source: from(6)},
		bufferbloat.ProbePlan{Name: "irtt", Kind: bufferbloat.IRTT, Interval: 200 * time.Millisecond, Interface: "wan7"},
		bufferbloat.ProbePlan{Name: "rr", Kind: bufferbloat.TCPRR, Interval: 200 * time.Millisecond, Source: from(8)},
		bufferbloat.ProbePlan{Name: "fetch", Kind: bufferbloat.Fetch, Interval: time.Second, Source: from(9)})
	return p
}

func TestEachFlowAndProbeLeavesThisHostByItsOwnWay(t *testing.T) {
	w := &ways{seen: map[string]bool{}}
	rec, err := rig{link: light, apps: true, iperf3: true, host: func(h host.Host) host.Host { w.Host = h; return w },
		options: bufferbloat.RunOptions{Kinds: protocols.All(protocols.Options{})}}.run(t, t.Context(), wayPlan())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rec.Flows {
		if f.Error != "" || f.Result.Bytes == 0 {
			t.Errorf("%s: %q, %d bytes", f.Name, f.Error, f.Result.Bytes)
		}
	}
	count := func(part string) (n int) {
		for text := range w.seen {
			if strings.Contains(text, part) {
				n++
			}
		}
		return n
	}
	for _, want := range []string{
		"tcp 12865 from 198.51.100.1 through wan1", "tcp 12865 from 198.51.100.100 through wan0", "tcp 5201 from 198.51.100.2 through wan0",
		"tcp 5201 from 198.51.100.100 through wan3", "udp 5201 from 198.51.100.4 through wan0", "tcp 80 from 198.51.100.5 through wan0",
		"echo from 198.51.100.6 through wan0", "echo from 198.51.100.100 through wan0", "udp 2112 from 198.51.100.100 through wan7",
		"tcp 12865 from 198.51.100.8 through wan0", "tcp 80 from 198.51.100.9 through wan0", "try from 198.51.100.1 through wan1",
	} {
		if !w.seen[want] {
			t.Errorf("no socket %q", want)
		}
	}
	for part, want := range map[string]int{"198.51.100.1 through wan1": 3, "198.51.100.8 ": 2} { // tried, its control connection and its data
		if got := count(part); got != want {
			t.Errorf("%d kinds of socket from %s, want %d: %v", got, part, want, w.seen)
		}
	}
}

// agreed is a stack whose connections from an address have ECN.
type agreed struct {
	host.Host
	mu   sync.Mutex
	with map[net.Conn]bool
}

func (a *agreed) DialTCP(ctx context.Context, to netip.AddrPort, o host.Options) (net.Conn, error) {
	c, err := a.Host.DialTCP(ctx, to, host.Options{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.with[c] = err == nil && o.Source.IsValid()
	return c, err
}

func (a *agreed) ListenTCP(ctx context.Context, _ netip.AddrPort, _ host.Options) (net.Listener, error) {
	return a.Host.ListenTCP(ctx, netip.AddrPortFrom(netip.IPv4Unspecified(), 0), host.Options{})
}

func (a *agreed) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	info, err := a.Host.TCPInfo(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	info.ECN = a.with[c]
	return info, err
}

func TestHowManyFlowsHaveECNIsSaid(t *testing.T) {
	source := netip.MustParseAddr("198.51.100.1")
	for want, sources := range map[string][2]netip.Addr{"": {}, "load: 1 of 2 streams agreed on ECN": {source}, "load: 2 of 2 streams agreed on ECN": {source, source}} {
		rec, err := rig{link: light, host: func(h host.Host) host.Host { return &agreed{Host: h, with: map[net.Conn]bool{}} }}.run(t, t.Context(), one(time.Second,
			bufferbloat.FlowPlan{Name: "a", Direction: load.Upload, Source: sources[0]}, bufferbloat.FlowPlan{Name: "b", Direction: load.Download, Source: sources[1]}))
		if err != nil {
			t.Fatal(err)
		}
		if f, ok := finding(rec, "ecn_agreed"); ok != (want != "") || ok && (!strings.HasPrefix(f.Text, want) || f.Severity != bufferbloat.Note) {
			t.Errorf("got %+v, want %q", f, want)
		}
	}
}

func TestADeviceThatThisHostDoesNotHaveIsAnErrorBeforeTheRun(t *testing.T) {
	w := &ways{seen: map[string]bool{}, missing: "wan9"}
	p := wayPlan()
	p.Phases[1].Flows = slices.DeleteFunc(p.Phases[1].Flows, func(f bufferbloat.FlowPlan) bool { return f.Protocol != "" })
	p.Phases[1].Flows[1].Interface = "wan9"
	p.Probes = p.Probes[:1]
	_, err := rig{link: light, host: func(h host.Host) host.Host { w.Host = h; return w }}.run(t, t.Context(), p)
	if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), `flow "netperf" can't run`) || len(w.seen) != 0 {
		t.Errorf("got %v after %v", err, w.seen)
	}
}
