// Package http probes with fetches: each probe gets one object by HTTP/1.1 over a new connection.
package http

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/internal/fetch"
	"bufferbloat/probe/internal/transact"
)

// MaxInFlight bounds the fetches under way. A probe beyond it is not sent.
const MaxInFlight = 64

// MaxObject is the longest object that is fetched, in bytes.
const MaxObject = fetch.MaxObject

// Options are what a fetch has beyond probe.Options.
type Options struct {
	Roots *x509.CertPool // whom to believe behind https; nil is the system's own
}

// Transport is a probe.Transport of fetches: the completion time of a short flow, seen by who asked for it.
//
// The RTT runs from just before the TCP connection is asked for until the last byte of the object was read, both stamped by this program. A
// small object over http takes two round trips and what the server computes, over https with TLS 1.3 three; a larger one more, as TCP's window
// grows. Connections are not kept, so each fetch meets the path as a new flow. What TCP sends again counts.
//
// A response with a status other than 200 to 299, a redirection too, or without its last byte makes a probe Rejected, as do a refused
// connection and a certificate that is not the server's. A fetch that is not done after Options.Deadline is lost.
type Transport struct {
	*transact.Transport
	target fetch.Target
	path   string
	size   atomic.Int64 // of the object as it was last fetched
}

// Dial returns a Transport of fetches of u, whose host is at target, after one that showed that it can be done. The error says why it can't.
func Dial(ctx context.Context, h host.Host, target netip.AddrPort, u *url.URL, po probe.Options, o Options) (*Transport, error) {
	po, err := po.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("probe with HTTP: %w", err)
	}
	t := &Transport{}
	if t.target, err = fetch.NewTarget(h, target, u, po.Socket, o.Roots); err != nil {
		return nil, fmt.Errorf("probe with HTTP: %w", err)
	}
	if t.path, err = fetch.Path(u); err != nil {
		return nil, fmt.Errorf("probe with HTTP: %w", err)
	}
	t.Transport = transact.New(h, transact.Options{What: "fetches", Limit: MaxInFlight, Deadline: po.Deadline}, t.fetch)
	if err := t.Check(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("probe with HTTP: %v: %w", target, err)
	}
	return t, nil
}

// Size returns the length of the object, in bytes, as it was last fetched. It may be called from any goroutine.
func (t *Transport) Size() int64 { return t.size.Load() }

func (t *Transport) fetch(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
	begun(t.target.Host.Now())
	n, at, err := t.target.Get(ctx, t.path)
	if err != nil {
		return fetch.Failed(ctx, err)
	}
	t.size.Store(n)
	return probe.Reply{At: at}, true
}
