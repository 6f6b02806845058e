package netperf

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

// runUDP takes the client's datagrams, until it sends an empty one, and answers them where that is the test. They may be in flight in any
// number.
func (t *test) runUDP(ctx context.Context) *refusal {
	var conn host.PacketConn
	no := t.open(ctx, func(at netip.AddrPort, o host.Options) (netip.AddrPort, error) {
		var err error
		if conn, err = t.host.ListenUDP(ctx, at, o); err != nil {
			return netip.AddrPort{}, err
		}
		return conn.LocalAddr(), nil
	})
	if no != nil {
		return no
	}
	defer conn.Close()
	t.results.RecvBuffer, t.results.SendBuffer = t.response.RecvBuffer, t.response.SendBuffer
	if !t.begin() {
		return nil
	}
	release := pump.OnDone(ctx, func() { _ = conn.SetReadDeadline(t.host.Now().Add(-time.Second)) })
	defer release()
	last, why := t.datagrams(ctx, conn)
	t.end(last, why.String())
	return nil
}

// datagrams is the loop of runUDP. It returns when the test ended, or when its last datagram came where time ended it.
func (t *test) datagrams(ctx context.Context, conn host.PacketConn) (time.Time, pump.End) {
	last := t.began
	buf, response := make([]byte, 1<<16), append([]byte(nil), pump.Payload()[:t.rspSize]...)
	pending := 0 // bytes of a request that came in several datagrams
	failures := 0
	for {
		_ = conn.SetReadDeadline(t.patience(t.began, last, t.old))
		if ctx.Err() != nil { // looked at behind the deadline, which may have undone the wake-up
			return last, pump.Stopped
		}
		d, err := conn.Receive(buf)
		switch {
		case err != nil && pump.IsDeadline(err):
			if ctx.Err() != nil {
				return last, pump.Stopped
			}
			return last, t.late(t.began)
		case err != nil:
			// An answer that met a closed port comes back as an error, which is no end; a socket that gives nothing else is.
			if failures++; failures > maxErrors || errors.Is(err, net.ErrClosed) {
				return last, pump.Broken
			}
			continue
		case d.Rejected != nil || !t.fromPeer(d.From.Addr().Unmap()):
			continue
		case d.N == 0, t.old && t.kind == wire.UDPStream && t.req.RecvSize > 0 && d.N != int(t.req.RecvSize):
			return d.At, pump.Closed
		}
		last, failures = d.At, 0
		if t.kind == wire.UDPStream {
			t.results.RxCalls++
			t.results.RxBytes += uint64(d.N)
			if t.units > 0 && t.results.RxBytes >= t.units {
				return last, pump.Full
			}
			continue
		}
		if pending += d.N; pending < t.reqSize {
			continue
		}
		pending = 0
		t.pay(ctx)
		// The beginning of the request comes back in the answer, which stock servers do not do and stock clients do not look at.
		copy(response, buf[:min(d.N, t.reqSize)])
		if t.reply(conn, response, d) != nil {
			continue // a full queue here is a loss like any other
		}
		t.transacted()
		if uint64(t.results.Transactions) == t.units {
			return d.At, pump.Full
		}
	}
}

// pay waits until a transaction is paid for, where there is a rate: what would be dropped instead would look like a path's loss.
func (t *test) pay(ctx context.Context) {
	if t.in == nil {
		return
	}
	until := t.in.spend(t.reqSize)
	if out := t.out.spend(t.rspSize); out.After(until) {
		until = out
	}
	_ = t.host.SleepUntil(ctx, until)
}

// maxErrors is how many errors in a row a socket may give.
const maxErrors = 100

// reply answers a datagram from the address that it was sent to, as firewalls before the client expect it.
func (t *test) reply(conn host.PacketConn, b []byte, d host.Datagram) error {
	if !d.To.IsValid() {
		_, err := conn.Send(b, d.From)
		return err
	}
	_, err := conn.SendFrom(b, d.To, d.From)
	return err
}
