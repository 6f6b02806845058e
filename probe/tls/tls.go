// Package tls probes with TLS handshakes: each probe is a new TCP connection and the whole TLS handshake over it.
package tls

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/internal/fetch"
	"bufferbloat/probe/internal/transact"
)

// Port is the port of HTTPS.
const Port = 443

// MaxInFlight bounds the handshakes under way. A probe beyond it is not sent.
const MaxInFlight = 64

// Options are what a handshake has beyond probe.Options.
type Options struct {
	Name  string         // of the server, as its certificate has it: a host name or an address
	Roots *x509.CertPool // whom to believe; nil is the system's own
}

// Transport is a probe.Transport of handshakes.
//
// The RTT runs from just before the TCP connection is asked for until the TLS handshake is done, both stamped by this program: two round trips
// with TLS 1.3, three with TLS 1.2, and what the two ends compute. Nothing is resumed from an earlier one. What TCP sends again counts, since
// whoever waits for a secure connection waits for it; so the times have steps of a second where a SYN was lost.
//
// A peer that refuses, speaks no TLS or can't prove that it is Options.Name makes a probe Rejected. A handshake that is not done after
// Options.Deadline is lost.
type Transport struct {
	*transact.Transport
	target fetch.Target
}

// Dial returns a Transport of handshakes with target, after one that showed that it can be done. The error says why it can't.
func Dial(ctx context.Context, h host.Host, target netip.AddrPort, po probe.Options, o Options) (*Transport, error) {
	po, err := po.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("probe with TLS handshakes: %w", err)
	}
	if !target.IsValid() || target.Port() == 0 || o.Name == "" {
		return nil, fmt.Errorf("probe with TLS handshakes: %v and %q: want an address, a port and the server's name", target, o.Name)
	}
	t := &Transport{target: fetch.Target{Host: h, At: target, Name: o.Name, TLS: fetch.Config(h, o.Name, o.Roots), Socket: po.Socket}}
	t.Transport = transact.New(h, transact.Options{What: "TLS handshakes", Limit: MaxInFlight, Deadline: po.Deadline}, t.handshake)
	if err := t.Check(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("probe with TLS handshakes: %v: %w", target, err)
	}
	return t, nil
}

func (t *Transport) handshake(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
	begun(t.target.Host.Now())
	c, err := t.target.Connect(ctx)
	at := t.target.Host.Now()
	if err != nil {
		return fetch.Failed(ctx, err)
	}
	c.Shut()
	return probe.Reply{At: at}, true
}
