package acceptance

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load/netperf"
	probes "bufferbloat/probe"
	"bufferbloat/probe/icmp"
	"bufferbloat/probe/irtt"
	irttserver "bufferbloat/servers/irtt"
	"bufferbloat/servers/lab"
	lablink "bufferbloat/servers/lab/link"
	netperfserver "bufferbloat/servers/netperf"
)

// seen is what became of a series, and what the link says it did to its packets meanwhile.
type seen struct {
	samples  []probes.Sample
	outcomes map[probes.Outcome]uint64
	tally    probes.Tally
	down, up lablink.Stats // of the series alone
	one, rtt time.Duration // what a packet takes one way and both where nothing is done to it
}

func (s *seen) lost() uint64 {
	return s.outcomes[probes.Lost] + s.outcomes[probes.LostUp] + s.outcomes[probes.LostDown]
}

// unknown is how many packets at the end nothing came after, so that it is no matter whether they were held back.
func (s *seen) unknown(kind string) uint64 {
	if kind == "udp_rr" { // what netperf has on the link before has labSeed meet other packets
		return 1
	}
	return 0
}

// duplicates are how many replies came twice, as this kind of probe can tell: a request of netperf's has one response and what comes later is nobody's.
func (s *seen) duplicates(kind string, d lablink.Stats) uint64 {
	if kind == "udp_rr" {
		return 0
	}
	return d.Duplicated.Packets
}

// TestProbesThroughTheLabAreCountedExactly sends each kind of probe that is a datagram over an emulated link that loses, doubles, holds back and delays packets, in
// virtual time, and compares every count with the link's own, and every delay with its arithmetic.
func TestProbesThroughTheLabAreCountedExactly(t *testing.T) {
	loses, doubles := lablink.Effects{Loss: lablink.Loss{Good: 0.05}}, lablink.Effects{Duplicate: 0.05}
	holds := lablink.Effects{Reorder: lablink.Reorder{Share: 0.03, Distance: 2}}
	all := lablink.Effects{Loss: loses.Loss, Duplicate: doubles.Duplicate, Reorder: holds.Reorder, Corrupt: 0.02}
	for _, c := range []struct {
		claim    string
		down, up lablink.Effects
		check    func(t *testing.T, kind string, s *seen)
	}{
		{claim: "nothing is done", check: func(t *testing.T, kind string, s *seen) {
			if s.outcomes[probes.Received] != labProbes {
				t.Errorf("%s: %v", kind, s.outcomes)
			}
		}},
		{claim: "lost on the way there", up: loses, check: func(t *testing.T, kind string, s *seen) {
			drops := s.up.Drops[lablink.Lost].Packets
			if s.lost() != drops || s.outcomes[probes.LostDown] != 0 || kind == "irtt" && s.outcomes[probes.LostUp]+1 < drops {
				t.Errorf("%s: %v, want %d lost on the way up", kind, s.outcomes, drops)
			}
		}},
		{claim: "lost on the way back", down: loses, check: func(t *testing.T, kind string, s *seen) {
			drops := s.down.Drops[lablink.Lost].Packets
			if s.lost() != drops || s.outcomes[probes.LostUp] != 0 || kind == "irtt" && s.outcomes[probes.LostDown]+1 < drops {
				t.Errorf("%s: %v, want %d lost on the way down", kind, s.outcomes, drops)
			}
		}},
		{claim: "doubled on the way there", up: doubles, check: func(t *testing.T, kind string, s *seen) {
			if got, want := s.tally.Duplicates, s.duplicates(kind, s.up); got != want || s.lost() != 0 {
				t.Errorf("%s: %d duplicates, want %d; %v", kind, got, want, s.outcomes)
			}
		}},
		{claim: "doubled on the way back", down: doubles, check: func(t *testing.T, kind string, s *seen) {
			if got, want := s.tally.Duplicates, s.duplicates(kind, s.down); got != want || s.lost() != 0 {
				t.Errorf("%s: %d duplicates, want %d; %v", kind, got, want, s.outcomes)
			}
		}},
		{claim: "held back on the way back", down: holds, check: func(t *testing.T, kind string, s *seen) {
			if got, want := s.tally.Reordered, s.down.Held; got != want && got+s.unknown(kind) != want || s.lost() != 0 || s.tally.Duplicates != 0 {
				t.Errorf("%s: %d reordered, want %d; %v", kind, got, want, s.outcomes)
			}
		}},
		{claim: "held back on the way there", up: holds, check: func(t *testing.T, kind string, s *seen) {
			if got, want := s.tally.Reordered, s.up.Held; got != want && got+s.unknown(kind) != want || s.lost() != 0 || s.tally.Duplicates != 0 {
				t.Errorf("%s: %d reordered, want %d; %v", kind, got, want, s.outcomes)
			}
		}},
		{claim: "everything at once both ways", down: all, up: all, check: func(t *testing.T, kind string, s *seen) {
			// Damaged packets fail a checksum and are given up by the host that they come to.
			came := s.down.Out.Packets - s.down.Corrupted
			got := s.outcomes[probes.Received] + s.tally.Duplicates
			if got > came || kind != "udp_rr" && got+s.down.Corrupted < s.down.Out.Packets {
				t.Errorf("%s: %d replies counted, %d came of which %d were damaged", kind, got, s.down.Out.Packets, s.down.Corrupted)
			}
		}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []string{"icmp", "irtt", "udp_rr"} {
				s := throughLink(t, kind, lab.Config{Down: 100 * bitrate.Mbit, Up: 50 * bitrate.Mbit, EffectsDown: c.down, EffectsUp: c.up, Seed: labSeed, Virtual: true})
				checkSums(t, kind, s)
				c.check(t, kind, s)
			}
		})
	}
}

// With labSeed the last probe is one that nothing is done to: what comes after the last reply is nobody's.
const labProbes, labSeed = 1000, 2

// checkSums checks what holds whatever the link did.
func checkSums(t *testing.T, kind string, s *seen) {
	t.Helper()
	sum := uint64(0)
	for _, n := range s.outcomes {
		sum += n
	}
	if sum != labProbes || len(s.samples) != labProbes || s.outcomes[probes.Unsent]+s.outcomes[probes.Invalid]+s.outcomes[probes.Unfinished]+s.outcomes[probes.Late] != 0 {
		t.Errorf("%s: outcomes %v of %d probes", kind, s.outcomes, labProbes)
	}
	if s.tally.Stray+s.tally.Corrupt+s.tally.TooLate+s.tally.ReceiveErrors+s.tally.Rejected != 0 {
		t.Errorf("%s: tally %+v, want nothing that nobody sent", kind, s.tally)
	}
	exact := 0
	for _, x := range s.samples {
		if !x.Outcome.HasRTT() {
			continue
		}
		if x.RTT < s.rtt {
			t.Errorf("%s: probe %d took %v, want at least %v", kind, x.Seq, x.RTT, s.rtt)
		}
		if x.RTT == s.rtt {
			exact++
		}
		if kind == "irtt" && (!x.HasOneWay || x.Up+x.Down != x.RTT || x.Up < s.one) {
			t.Errorf("irtt: probe %d: %v up and %v down, want what makes up %v", x.Seq, x.Up, x.Down, x.RTT)
		}
	}
	held := s.down.Held + s.up.Held
	if answered := int(s.outcomes[probes.Received]); exact+int(held) < answered || held == 0 && exact != answered {
		t.Errorf("%s: %d of %d took just %v, where %d were held back", kind, exact, answered, s.rtt, held)
	}
}

// throughLink runs one series of one kind.
func throughLink(t *testing.T, kind string, config lab.Config) *seen {
	t.Helper()
	l, err := lab.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Errorf("lab: %v", err)
		}
	})
	defer func() { cancel(); running.Wait(); l.Close() }()
	to, err := l.Client().Resolve(ctx, lab.Name, host.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	o := probes.Options{Interval: 10 * time.Millisecond}
	s := &seen{outcomes: map[probes.Outcome]uint64{}}
	var tr probes.Transport
	size := icmp.MessageSize + 20
	ready := make(chan struct{})
	tell := func([]netip.AddrPort) { close(ready) }
	switch kind {
	case "icmp":
		tr, err = icmp.Dial(ctx, l.Client(), to[0], o)
	case "irtt":
		size = 60 + 8 + 20
		running.Go(func() {
			server := irttserver.Server{Options: irttserver.Options{Ready: tell}}
			_ = server.Serve(ctx, l.Server(), netip.AddrPortFrom(netip.IPv4Unspecified(), irtt.DefaultPort))
		})
		<-ready
		tr, err = irtt.Dial(ctx, l.Client(), netip.AddrPortFrom(to[0], irtt.DefaultPort), o, irtt.Options{})
	case "udp_rr":
		size = rrSize + 8 + 20
		running.Go(func() {
			server := netperfserver.Server{Options: netperfserver.Options{Ready: tell}}
			_ = server.Serve(ctx, l.Server(), netip.AddrPortFrom(netip.IPv4Unspecified(), 12865))
		})
		<-ready
		c := netperf.Client{Host: l.Client(), Server: lab.Name, Addr: netip.AddrPortFrom(to[0], 12865)}
		var x *netperf.Exchange
		x, err = c.OpenExchange(ctx, netperf.TransactionOptions{Kind: netperf.UDPRR, Length: time.Minute, RequestSize: rrSize, ResponseSize: rrSize, Timeout: 2 * time.Second})
		tr = exchange{x}
	}
	if err != nil {
		t.Fatal(err)
	}
	wire := (size + lablink.EthernetOverhead) * 8
	s.one = 20*time.Millisecond + time.Duration(wire)*time.Second/time.Duration(config.Up)
	s.rtt = s.one + 20*time.Millisecond + time.Duration(wire)*time.Second/time.Duration(config.Down)
	h := l.Client()
	_ = h.SleepUntil(ctx, h.Now().Add(time.Second)) // what else belongs to the opening has come
	before := l.Stats()
	s.samples = make([]probes.Sample, labProbes)
	s.tally, err = probes.Run(ctx, ctx, h, closeLater{tr}, o, h.Now(), labProbes, func(x probes.Sample) {
		s.outcomes[x.Outcome]++
		s.samples[x.Seq] = x
	})
	after := l.Stats()
	_ = tr.Close()
	if err != nil {
		t.Errorf("%s: %v", kind, err)
	}
	s.down, s.up = less(after.Down, before.Down), less(after.Up, before.Up)
	return s
}

const rrSize = 32 // of a request and its response

// exchange is netperf's requests and responses as probes.
type exchange struct{ *netperf.Exchange }

func (e exchange) Receive() (probes.Reply, error) {
	a, err := e.Exchange.Receive()
	r := probes.Reply{Seq: a.Seq, At: a.At, Stamp: a.Stamp}
	if a.Err != nil {
		r.Kind, r.Err = probes.Rejected, a.Err
	}
	return r, err
}

// closeLater keeps a transport open, so that what it sends as it closes is not counted.
type closeLater struct{ probes.Transport }

func (closeLater) Close() error { return nil }

// less returns what was added to the counters that are looked at.
func less(a, b lablink.Stats) lablink.Stats {
	a.Out.Packets -= b.Out.Packets
	a.Duplicated.Packets -= b.Duplicated.Packets
	a.Corrupted -= b.Corrupted
	a.Held -= b.Held
	for i := range a.Drops {
		a.Drops[i].Packets -= b.Drops[i].Packets
	}
	return a
}
