package netperf

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

func codePoint(ds int32) dscp.CodePoint { return dscp.FromByte(uint8(ds)) }

// runTCP runs a test over TCP connections. What goes wrong with one is the end of the test, not an error of it.
func (t *test) runTCP(ctx context.Context) *refusal {
	var l net.Listener
	no := t.open(ctx, func(at netip.AddrPort, o host.Options) (netip.AddrPort, error) {
		var err error
		if l, err = t.host.ListenTCP(ctx, at, o); err != nil {
			return netip.AddrPort{}, err
		}
		return host.AddrPortOf(l.Addr()), nil
	})
	if no != nil {
		return no
	}
	defer func() { _ = l.Close() }()
	if !t.begin() {
		return nil
	}
	if t.kind == wire.TCPCRR {
		t.results.RecvBuffer, t.results.SendBuffer = t.response.RecvBuffer, t.response.SendBuffer
		last, why := t.connections(ctx, l)
		t.end(last, why.String())
		return nil
	}
	wait := idleTimeout
	if t.timed {
		wait = t.length + dataGrace
	}
	conn, err := t.accept(ctx, l, t.host.Now().Add(wait))
	_ = l.Close() // one is all that is taken, and its port may be wanted by the next test
	if err != nil {
		t.end(t.began, "no data connection came")
		return nil
	}
	t.oneConnection(ctx, conn)
	return nil
}

// oneConnection runs the data phase of a test on its connection.
func (t *test) oneConnection(ctx context.Context, conn net.Conn) {
	accepted := t.host.Now()
	t.flowing = accepted
	var out pump.Outcome
	var err error
	switch flow := t.throttled(ctx, conn); t.kind {
	case wire.TCPStream:
		out = t.receive(ctx, flow, accepted)
	case wire.TCPMaerts:
		out, err = t.transmit(ctx, flow)
	default:
		out = t.transactions(ctx, flow, accepted)
	}
	ended := t.host.Now()
	if (out.End == pump.TimeUp || out.End == pump.Stalled) && t.kind != wire.TCPMaerts && !out.Last.IsZero() {
		// The client did not end it: the time that data flowed ended with the last of it.
		ended = out.Last
	}
	t.stack(conn)
	if t.old && t.kind == wire.TCPMaerts && out.End == pump.TimeUp {
		t.awaitEnd(ctx, conn)
	}
	if l, ok := conn.(interface{ SetLinger(int) error }); ok && ctx.Err() != nil {
		_ = l.SetLinger(0) // nobody is there to read what is queued
	}
	_ = conn.Close()
	why := out.End.String()
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		why = "the client closed" // which is how a client of this protocol ends a download
	}
	t.end(ended, why)
}

// awaitEnd ends the stream of a download in its old form, whose client reads on to the end and then ends its own.
func (t *test) awaitEnd(ctx context.Context, conn net.Conn) {
	w, ok := conn.(interface{ CloseWrite() error })
	if !ok || w.CloseWrite() != nil {
		return
	}
	var none pump.Counter
	_, _ = pump.Receive(ctx, t.host, conn, &none, pump.Options{Until: t.began.Add(t.length + oldGrace)})
}

// throttled returns the connection, held to the server's rate where there is one.
func (t *test) throttled(ctx context.Context, conn net.Conn) net.Conn {
	if t.in == nil {
		return conn
	}
	return &throttled{Conn: conn, in: t.in, out: t.out, wait: func(until time.Time) { _ = t.host.SleepUntil(ctx, until) }}
}

// accept waits for the client's data connection, and turns away others. It closes l where none came in time.
func (t *test) accept(ctx context.Context, l net.Listener, until time.Time) (net.Conn, error) {
	ctx, cancel := host.WithDeadline(ctx, t.host, until)
	defer cancel()
	release := pump.OnDone(ctx, func() { _ = l.Close() })
	defer release()
	for {
		var conn net.Conn
		err := t.withRoom(ctx, t.session, func() (err error) {
			conn, err = l.Accept()
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case t.fromPeer(host.AddrPortOf(conn.RemoteAddr()).Addr()):
			return conn, nil
		default:
			_ = conn.Close()
		}
	}
}

// fromPeer reports whether a is the address that the control connection comes from; that cannot be said of the other family.
func (t *test) fromPeer(a netip.Addr) bool {
	peer := t.peer.Addr()
	return a.WithZone("") == peer.WithZone("") || familyOf(a) != familyOf(peer)
}

// receive reads an upload to its end. Its time counts from the data connection on, so that a client that starts late has all of it.
func (t *test) receive(ctx context.Context, conn net.Conn, accepted time.Time) pump.Outcome {
	until := accepted.Add(t.o.MaxLength)
	if t.timed {
		until = accepted.Add(t.length + receiveGrace)
	}
	var n pump.Counter
	out, _ := pump.Receive(ctx, t.host, conn, &n, pump.Options{Until: until, Idle: idleTimeout, Limit: t.clients.Allowance(t.peer.Addr())})
	t.results.RxBytes, t.results.RxCalls = out.Bytes, uint32(out.Calls)
	return out
}

// transmit supplies a download. It ends by the server's clock, or by the client's end of the connection.
func (t *test) transmit(ctx context.Context, conn net.Conn) (pump.Outcome, error) {
	until := t.began.Add(t.o.MaxLength)
	switch {
	case t.old:
		until = t.began.Add(t.length)
	case t.timed:
		until = t.began.Add(t.length + sendLonger)
	}
	limit := t.units
	if left := t.clients.Allowance(t.peer.Addr()); left > 0 && (limit == 0 || left < limit) {
		limit = left
	}
	var n pump.Counter
	out, err := pump.Send(ctx, t.host, conn, &n, pump.Options{Until: until, Idle: idleTimeout, Limit: limit, Size: t.sendSize()})
	t.results.TxBytes, t.results.TxCalls = out.Bytes, uint32(out.Calls)
	return out, err
}

// stack fills in what the stack knows of the data connection; it must still be open.
func (t *test) stack(conn net.Conn) {
	t.results.RecvBuffer, t.results.SendBuffer = t.response.RecvBuffer, t.response.SendBuffer
	info, err := t.host.TCPInfo(conn)
	if err != nil {
		return
	}
	if info.HasRetransmits {
		t.results.Retransmits = int32(min(info.Retransmits, 1<<31-1))
	}
	t.results.Congestion = info.CongestionControl
	if info.ReceiveBuffer > 0 {
		t.results.RecvBuffer = int32(info.ReceiveBuffer)
	}
	if info.SendBuffer > 0 {
		t.results.SendBuffer = int32(info.SendBuffer)
	}
}

// transactions answers requests of reqSize bytes with rspSize bytes until the client ends its side, the time is up or the number
// is reached.
func (t *test) transactions(ctx context.Context, conn net.Conn, accepted time.Time) pump.Outcome {
	release := pump.OnDone(ctx, func() { _ = conn.SetDeadline(t.host.Now().Add(-time.Second)) })
	defer release()
	out := pump.Outcome{Last: accepted}
	request, response := make([]byte, min(t.reqSize, pump.ChunkSize)), pump.Payload()
	for {
		_ = conn.SetDeadline(t.patience(accepted, t.host.Now(), t.old))
		if ctx.Err() != nil { // looked at behind the deadline, which may have undone the wake-up
			out.End = pump.Stopped
			return out
		}
		err := readAll(conn, request, t.reqSize)
		if err == nil {
			err = writeAll(conn, response, t.rspSize)
		}
		if out.End = t.ended(err, accepted); out.End != 0 {
			return out
		}
		out.Last = t.host.Now()
		t.transacted()
		if uint64(t.results.Transactions) == t.units {
			out.End = pump.Full
			return out
		}
	}
}

// transacted counts one transaction.
func (t *test) transacted() {
	t.results.Transactions++
	t.results.RxCalls++
	t.results.TxCalls++
	t.results.RxBytes += uint64(t.reqSize)
	t.results.TxBytes += uint64(t.rspSize)
}

// ended says what an error of a transaction means, in a test whose time began at from; 0 where there is none.
func (t *test) ended(err error, from time.Time) pump.End {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return pump.Closed
	case pump.IsDeadline(err):
		return t.late(from)
	}
	return pump.Broken
}

// late says what it means that nothing more has come: the time is up, or the client has stalled.
func (t *test) late(from time.Time) pump.End {
	length := t.o.MaxLength
	if t.timed {
		length = t.length
	}
	if !t.host.Now().Before(from.Add(length)) {
		return pump.TimeUp
	}
	return pump.Stalled
}

// patience is until when a test whose time began at from waits for the next message, where the last one came at last: until the client
// has been idle for long, or the time is up. Where the client does not signal the end, the test's length and a while of silence are it.
func (t *test) patience(from, last time.Time, unsignalled bool) time.Time {
	until := from.Add(t.o.MaxLength)
	if t.timed {
		until = from.Add(t.length + dataGrace)
	}
	next := last.Add(idleTimeout)
	if end := from.Add(t.length); t.timed && unsignalled {
		next = last.Add(quietEnd)
		if last.Before(end) {
			next = end.Add(quietEnd)
		}
	}
	if next.Before(until) {
		return next
	}
	return until
}

// readAll reads n bytes through buf.
func readAll(r io.Reader, buf []byte, n int) error {
	for n > 0 {
		k, err := io.ReadFull(r, buf[:min(n, len(buf))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// writeAll writes n bytes out of buf, repeated.
func writeAll(w io.Writer, buf []byte, n int) error {
	for n > 0 {
		k, err := w.Write(buf[:min(n, len(buf))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}
