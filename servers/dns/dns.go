// Package dns is a resolver for the lab: it answers look-ups of whatever name with the address that was asked, and knows nothing else.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
)

// Port is the UDP port of DNS.
const Port = 53

// ttl is how long an answer may be kept, in seconds: not at all, so that each look-up comes here.
const ttl = 0

// maxGrowth is by how much an answer may be longer than its query: an AAAA record.
const maxGrowth = 28

// Options are the settings of a Server. The zero value is useful.
type Options struct {
	// Ready is called once when all addresses are listened at, with their ports. nil is fine.
	Ready func(at []netip.AddrPort)
}

// Server answers look-ups. An answer is never more than 28 bytes longer than its query, so there is little to gain by sending it queries in
// somebody else's name. There is one question in a query, of class IN: for any name, an A query is answered with the address of the server
// that the query came to where that is IPv4, an AAAA query where it is IPv6, and otherwise there is no record. "nx" and names that end in
// ".nx" do not exist.
type Server struct {
	Options Options
}

// Serve answers until ctx is done, and then returns nil. It fails where it can't listen.
func (s *Server) Serve(ctx context.Context, network host.Network, at ...netip.AddrPort) error {
	var conns []host.PacketConn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	var listening []netip.AddrPort
	for _, a := range at {
		c, err := network.ListenUDP(ctx, a, host.Options{})
		if err != nil {
			return fmt.Errorf("DNS server: %w", err)
		}
		conns = append(conns, c)
		listening = append(listening, c.LocalAddr())
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range conns {
		group.Go(func() error { return s.serve(ctx, c) })
	}
	if s.Options.Ready != nil {
		s.Options.Ready(listening)
	}
	return group.Wait()
}

// maxErrors is how many errors of a socket in a row are taken before it is held for broken.
const maxErrors = 100

func (s *Server) serve(ctx context.Context, c host.PacketConn) error {
	defer context.AfterFunc(ctx, func() { c.Close() })()
	in, out := make([]byte, 512), make([]byte, 0, 600)
	for failures := 0; ; {
		d, err := c.Receive(in)
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			if failures++; failures >= maxErrors {
				return fmt.Errorf("DNS server: %w", err)
			}
			continue
		}
		failures = 0
		if d.Rejected != nil || d.Truncated {
			continue
		}
		answer, ok := answer(out, in[:d.N], d.To)
		if !ok {
			continue
		}
		_, _ = c.SendFrom(answer, d.To, d.From) // whoever gets no answer asks again
	}
}

// answer appends to out[:0] the answer to a query that came to the address to, or returns false where it gets none.
func answer(out, query []byte, to netip.Addr) ([]byte, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response { // two servers that answer answers would never end
		return nil, false
	}
	reply := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	q, err := p.Question()
	if err != nil {
		return nil, false
	}
	_, err = p.Question()
	only := errors.Is(err, dnsmessage.ErrSectionDone)
	if h.OpCode != 0 || !only || q.Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeNotImplemented
	} else if missing(q.Name.String()) {
		reply.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(out[:0], reply)
	b.EnableCompression()
	ok := b.StartQuestions() == nil && b.Question(q) == nil && b.StartAnswers() == nil
	r := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl}
	to = to.Unmap()
	switch {
	case !ok || reply.RCode != dnsmessage.RCodeSuccess || !to.IsValid():
	case q.Type == dnsmessage.TypeA && to.Is4():
		ok = b.AResource(r, dnsmessage.AResource{A: to.As4()}) == nil
	case q.Type == dnsmessage.TypeAAAA && to.Is6():
		ok = b.AAAAResource(r, dnsmessage.AAAAResource{AAAA: to.As16()}) == nil
	}
	packet, err := b.Finish()
	return packet, ok && err == nil && len(packet) <= len(query)+maxGrowth // a name that points into the query grows when it is written out
}

// missing reports whether a name, with its last dot, does not exist.
func missing(name string) bool {
	const end = "nx."
	n := len(name) - len(end)
	return n >= 0 && name[n:] == end && (n == 0 || name[n-1] == '.')
}
