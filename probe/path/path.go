// Package path probes the routers on the way to a host: each one's delay tells up to where the path is as it was, and so where its queue is.
package path

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/icmp"
)

// Defaults and limits of Options.
const (
	DefaultHops = 5
	MaxHops     = 30
	// DefaultInterval is how often a router is probed. Linux and others send one such answer to a host in a second, after a few at once.
	DefaultInterval = time.Second
)

// Options are what a search for routers has beyond probe.Options. The zero value is useful.
type Options struct {
	Hops     int           // how far to look; 0 means DefaultHops
	Patience time.Duration // how long a router may take to answer; 0 means a second
}

// Hop is a router on the way.
type Hop struct {
	TTL  uint8 // how many hops away: 1 is the gateway
	Addr netip.Addr
	UDP  bool // it is probed with UDP datagrams, as no router answers for echo requests
}

// prober is a probe.Transport of one distance.
type prober interface {
	probe.Transport
	Answers() []netip.Addr
	SendStamps() (stack, all uint64)
}

// dialer opens a prober.
type dialer func(ctx context.Context, network host.Network, target netip.Addr, ttl uint8, o probe.Options) (prober, error)

func dialEcho(ctx context.Context, network host.Network, target netip.Addr, ttl uint8, o probe.Options) (prober, error) {
	return icmp.DialHop(ctx, network, target, ttl, o)
}

// tries is how often each distance is probed in a search. A router that may answer once in a second answers a few at once.
const (
	tries    = 3
	tryEvery = 100 * time.Millisecond
)

// Discover returns the routers on the way to target that answer, nearest first, without target itself and what is behind it. It sends three echo requests to
// each distance, and where no router answers, or ICMP is not permitted, three UDP datagrams. Without one that answers, the result is empty; an error says that no probe
// could be sent.
func Discover(ctx context.Context, h host.Host, target netip.Addr, po probe.Options, o Options) ([]Hop, error) {
	if o.Hops == 0 {
		o.Hops = DefaultHops
	}
	if o.Patience == 0 {
		o.Patience = time.Second
	}
	if o.Hops < 1 || o.Hops > MaxHops || o.Patience < 0 {
		return nil, fmt.Errorf("look for routers over %d hops with a patience of %v: want 1 to %d, and more than 0", o.Hops, o.Patience, MaxHops)
	}
	target = target.Unmap()
	answers, err := search(ctx, h, target, po, o, dialEcho)
	hops, beside := routers(answers, target)
	if len(hops) == 0 && !beside && ctx.Err() == nil {
		if answers, udpErr := search(ctx, h, target, po, o, dialDatagrams); udpErr == nil {
			if hops, _ = routers(answers, target); len(hops) > 0 {
				err = nil
			}
			for i := range hops {
				hops[i].UDP = true
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look for routers on the way to %v: %w", target, err)
	}
	return hops, nil
}

// routers returns the routers among those who answered at each distance, and whether target itself is the first hop.
func routers(answers [][]netip.Addr, target netip.Addr) (hops []Hop, beside bool) {
	for i, list := range answers {
		for _, a := range list {
			if a.WithZone("") == target.WithZone("") {
				return hops, i == 0
			}
		}
		if len(list) > 0 {
			hops = append(hops, Hop{TTL: uint8(i + 1), Addr: list[0]})
		}
	}
	return hops, false
}

// search returns who answers at each distance.
func search(ctx context.Context, h host.Host, target netip.Addr, po probe.Options, o Options, dial dialer) ([][]netip.Addr, error) {
	po.Interval, po.Deadline = tryEvery, o.Patience
	limited, cancel := host.WithTimeout(ctx, h, tries*tryEvery+o.Patience)
	defer cancel()
	answers := make([][]netip.Addr, o.Hops)
	var group errgroup.Group
	var failed error
	for i := range answers {
		// The sockets are opened here, because a goroutine may run in another network namespace than its caller.
		t, err := dial(ctx, h, target, uint8(i+1), po)
		if err != nil {
			failed = err
			break
		}
		group.Go(func() error {
			tally, err := probe.Run(limited, limited, h, t, po, h.Now(), tries, func(probe.Sample) {})
			answers[i] = t.Answers()
			if err == nil && len(answers[i]) == 0 && tally.FirstError != "" && tally.Rejected == 0 {
				err = errors.New(tally.FirstError)
			}
			return err
		})
	}
	err := group.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case failed != nil:
		return nil, failed
	}
	return answers, err
}

// Transport is a probe.Transport of one router.
//
// The RTT is from the send of an ICMP echo request, or a UDP datagram, with the hop's TTL to the router's word that the TTL ran out. Routers make that word where
// they have time for it: a high RTT of one router that those behind it do not have is its own, not the path's. What does not come back is no
// loss of the path, as routers limit how many such words they send.
type Transport struct {
	prober
	hop Hop
}

// Dial opens a Transport of the router hop on the way to target. Nothing is sent.
func Dial(ctx context.Context, network host.Network, target netip.Addr, hop Hop, po probe.Options) (*Transport, error) {
	dial := dialEcho
	if hop.UDP {
		dial = dialDatagrams
	}
	t, err := dial(ctx, network, target.Unmap(), hop.TTL, po)
	if err != nil {
		return nil, fmt.Errorf("probe router %v: %w", hop.Addr, err)
	}
	return &Transport{t, hop}, nil
}

// Remarks says whether the path changed. Call it when the series is over.
func (t *Transport) Remarks() []probe.Remark {
	var others []string
	for _, a := range t.Answers() {
		if a != t.hop.Addr {
			others = append(others, a.String())
		}
	}
	if len(others) == 0 {
		return nil
	}
	return []probe.Remark{{Code: "path_changed", Weakens: true, Text: fmt.Sprintf("%d hops away, not only %v answered but also %s: the path changed, or there are several",
		t.hop.TTL, t.hop.Addr, strings.Join(others, ", "))}}
}
