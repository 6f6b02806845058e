package netperf

import (
	"context"
	"net"
	"time"

	"bufferbloat/internal/pump"
)

// requestWait bounds the wait for the request on a connection that was made, so that one without does not hold up the others.
const requestWait = 5 * time.Second

// connections takes one connection after the other and answers one request on each; where the messages have no size, it only takes and
// closes them. The client does not signal the end. It returns when the last transaction was done, and why there are no more.
func (t *test) connections(ctx context.Context, l net.Listener) (time.Time, pump.End) {
	last := t.began
	request, response := make([]byte, min(t.reqSize, pump.ChunkSize)), pump.Payload()
	for {
		conn, err := t.accept(ctx, l, t.patience(t.began, last, true))
		if err != nil {
			if ctx.Err() != nil {
				return last, pump.Stopped
			}
			return last, t.late(t.began)
		}
		if t.oneRequest(ctx, conn, request, response) {
			last = t.host.Now()
			t.transacted()
		}
		if uint64(t.results.Transactions) == t.units && t.units > 0 {
			return last, pump.Full
		}
	}
}

// oneRequest answers the request on a connection and closes it, first of the two ends. It reports whether there was one: the last
// connection of a client often carries none.
func (t *test) oneRequest(ctx context.Context, conn net.Conn, request, response []byte) bool {
	defer conn.Close()
	release := pump.OnDone(ctx, func() { _ = conn.SetDeadline(t.host.Now().Add(-time.Second)) })
	defer release()
	now := t.host.Now()
	until := t.patience(t.began, now, true)
	if soon := now.Add(requestWait); soon.Before(until) {
		until = soon
	}
	_ = conn.SetDeadline(until)
	if ctx.Err() != nil {
		return false
	}
	flow := t.throttled(ctx, conn)
	return readAll(flow, request, t.reqSize) == nil && writeAll(flow, response, t.rspSize) == nil
}
