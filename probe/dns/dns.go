// Package dns probes with look-ups: each probe asks a resolver for a name over UDP.
package dns

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/internal/lookup"
	"bufferbloat/probe/internal/transact"
)

// Port is the UDP port of DNS.
const Port = lookup.Port

// MaxInFlight bounds the look-ups that wait for an answer, and with them the open sockets. A probe beyond it is not sent.
const MaxInFlight = 256

// ErrNoAddress says that a name has no address of the family that was asked for.
var ErrNoAddress = lookup.ErrNoAddress

// Options are what a look-up has beyond probe.Options.
type Options struct {
	Name string // what to look up; it must have an address of the family asked for
	IPv6 bool   // ask for IPv6 addresses instead of IPv4 ones
}

// Transport is a probe.Transport of look-ups.
//
// Each look-up is one UDP query with a random ID from a socket, and so a port, of its own. It is not repeated: one that gets no answer within
// Options.Deadline is lost, where a real resolver's client would ask again after some seconds. The RTT runs from the stamp of the send to that of the
// answer, and has the resolver's work in it: a name that it must first look up elsewhere takes long once, and then as long as its cache is old.
//
// A packet that does not fit the query is a Stray, as anybody can send one. An answer that says that there is no answer (NXDOMAIN, SERVFAIL,
// REFUSED), has no address or was cut short is Rejected with the reason: it is no look-up that anything could go on with. An ICMP error is
// Rejected, too.
type Transport struct {
	*transact.Transport
	asker lookup.Asker
	query *lookup.Query
}

// Dial returns a Transport of look-ups at resolver, after one that showed that it answers. The error says why it does not.
func Dial(ctx context.Context, h host.Host, resolver netip.AddrPort, po probe.Options, o Options) (*Transport, error) {
	po, err := po.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("probe with DNS look-ups: %w", err)
	}
	if !resolver.IsValid() || resolver.Port() == 0 {
		return nil, fmt.Errorf("probe with DNS look-ups: %v is no address and port of a resolver", resolver)
	}
	query, err := lookup.NewQuery(o.Name, o.IPv6)
	if err != nil {
		return nil, err
	}
	t := &Transport{query: query}
	t.Transport = transact.New(h, transact.Options{What: "DNS look-ups", Limit: MaxInFlight, Deadline: po.Deadline}, t.lookUp)
	t.asker = lookup.Asker{Network: h, Clock: h, Resolver: resolver, Socket: po.Socket, Stray: func() { t.Aside(probe.Stray) }}
	if err := t.Check(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("look up %v at %v: %w", query, resolver, err)
	}
	return t, nil
}

func (t *Transport) lookUp(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
	a, err := t.asker.Ask(ctx, t.query, begun)
	if err != nil {
		return transact.Failed(ctx, err)
	}
	return probe.Reply{At: a.At, Stamp: a.Stamp, DS: a.DS, HasDS: a.HasDS}, true
}
