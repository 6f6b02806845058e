package directory

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"bufferbloat/internal/host"
)

// How Rank asks.
const (
	rankTries    = 3
	rankTimeout  = 3 * time.Second // for one server's name and each of its handshakes
	rankTogether = 4               // servers at once
)

// Ranked is a server and how far it is.
type Ranked struct {
	Entry   *Entry
	Port    uint16
	Address netip.Addr    // that was asked; the zero Addr where the name has none
	RTT     time.Duration // shortest TCP handshake; meaningful where Err is nil
	Err     error         // why there is no RTT
}

// Rank measures the TCP handshakes with the servers of entries that speak protocol ("" takes what each entry is for), three with each, and returns
// them nearest first; those that don't answer come last with their errors, in the order of the list. Entries without a host and a TCP port of
// that protocol are left out. It is the one function of this package that sends anything.
func Rank(ctx context.Context, h host.Host, entries []*Entry, protocol string, family host.Family, o host.Options) []Ranked {
	var out []Ranked
	for _, e := range entries {
		want := cmp.Or(protocol, e.Protocol)
		if port, ok := e.PortOf(want); ok && e.Host != nil && want != "icmp" && want != "irtt" {
			out = append(out, Ranked{Entry: e, Port: port})
		}
	}
	var group sync.WaitGroup
	places := make(chan struct{}, rankTogether)
	for i := range out {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			out[i].measure(ctx, h, family, o)
		})
	}
	group.Wait()
	slices.SortStableFunc(out, func(a, b Ranked) int {
		switch {
		case a.Err == nil && b.Err == nil:
			return cmp.Compare(a.RTT, b.RTT)
		case a.Err == nil:
			return -1
		case b.Err == nil:
			return 1
		}
		return 0
	})
	return out
}

// measure asks one server.
func (r *Ranked) measure(ctx context.Context, h host.Host, family host.Family, o host.Options) {
	looking, cancel := host.WithTimeout(ctx, h, rankTimeout)
	addresses, err := h.Resolve(looking, *r.Entry.Host, family)
	cancel()
	if err != nil {
		r.Err = err
		return
	}
	for _, r.Address = range addresses[:min(len(addresses), 2)] { // a family that does not get through is not the end
		if r.RTT, r.Err = shortest(ctx, h, netip.AddrPortFrom(r.Address, r.Port), o); r.Err == nil || ctx.Err() != nil {
			return
		}
	}
}

// shortest is the shortest of a few handshakes. One whose SYN was lost is made up for by the others.
func shortest(ctx context.Context, h host.Host, to netip.AddrPort, o host.Options) (time.Duration, error) {
	var all []time.Duration
	for range rankTries {
		took, err := handshake(ctx, h, to, o)
		if err != nil && len(all) == 0 {
			return 0, err
		}
		if err != nil {
			break
		}
		all = append(all, took)
	}
	return slices.Min(all), nil
}

func handshake(ctx context.Context, h host.Host, to netip.AddrPort, o host.Options) (time.Duration, error) {
	dialing, cancel := host.WithTimeout(ctx, h, rankTimeout)
	defer cancel()
	began := h.Now()
	conn, err := h.DialTCP(dialing, to, o)
	took := h.Now().Sub(began)
	if err == nil {
		return took, conn.Close()
	}
	if dialing.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%v does not answer within %v", to, rankTimeout)
	}
	return 0, err
}
