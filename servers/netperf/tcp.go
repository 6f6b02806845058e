package netperf

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

func codePoint(ds int32) dscp.CodePoint { return dscp.FromByte(uint8(ds)) }

// runTCP runs a test over one TCP connection. What goes wrong with that connection is the end of the test, not an error of it.
func (t *test) runTCP(ctx context.Context) *refusal {
	var l net.Listener
	no := t.open(func(at netip.AddrPort, o host.Options) (netip.AddrPort, error) {
		var err error
		if l, err = t.host.ListenTCP(ctx, at, o); err != nil {
			return netip.AddrPort{}, err
		}
		return addrPort(l.Addr()), nil
	})
	if no != nil {
		return no
	}
	defer l.Close()
	t.results.Retransmits = -1
	if !t.begin() {
		return nil
	}
	conn, err := t.accept(ctx, l)
	if err != nil {
		t.end(t.began, "no data connection came")
		return nil
	}
	accepted := t.host.Now()
	var out pump.Outcome
	switch t.kind {
	case wire.TCPStream:
		out = t.receive(ctx, conn, accepted)
	case wire.TCPMaerts:
		out = t.transmit(ctx, conn)
	default:
		out = t.transactions(ctx, conn, accepted)
	}
	ended := t.host.Now()
	if (out.End == pump.TimeUp || out.End == pump.Stalled) && t.kind != wire.TCPMaerts && !out.Last.IsZero() {
		// The client did not end it: the time that data flowed ended with the last of it.
		ended = out.Last
	}
	t.stack(conn)
	if l, ok := conn.(interface{ SetLinger(int) error }); ok && ctx.Err() != nil {
		_ = l.SetLinger(0) // nobody is there to read what is queued
	}
	_ = conn.Close()
	t.end(ended, out.End.String())
	return nil
}

// accept waits for the client's data connection, and turns away others.
func (t *test) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	wait := idleTimeout
	if t.timed {
		wait = t.length + dataGrace
	}
	ctx, cancel := host.WithTimeout(ctx, t.host, wait)
	defer cancel()
	release := pump.OnDone(ctx, func() { _ = l.Close() })
	defer release()
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if t.fromPeer(addrPort(conn.RemoteAddr()).Addr()) {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// fromPeer reports whether a is the address that the control connection comes from; that cannot be said of the other family.
func (t *test) fromPeer(a netip.Addr) bool {
	peer := t.peer.Addr()
	return a.WithZone("") == peer.WithZone("") || familyOf(a) != familyOf(peer)
}

// receive reads an upload to its end. Its time counts from the data connection on, so that a client that starts late has all of it.
func (t *test) receive(ctx context.Context, conn net.Conn, accepted time.Time) pump.Outcome {
	until := accepted.Add(t.o.MaxLength + lengthGrace)
	if t.timed {
		until = accepted.Add(t.length + receiveGrace)
	}
	var n pump.Counter
	out, _ := pump.Receive(ctx, t.host, conn, &n, pump.Options{Until: until, Idle: idleTimeout})
	t.results.RxBytes, t.results.RxCalls = out.Bytes, uint32(out.Calls)
	return out
}

// transmit supplies a download. It ends by the server's clock, or by the client's end of the connection.
func (t *test) transmit(ctx context.Context, conn net.Conn) pump.Outcome {
	until := t.began.Add(t.o.MaxLength + lengthGrace)
	if t.timed {
		until = t.began.Add(t.length + sendLonger)
	}
	var n pump.Counter
	out, _ := pump.Send(ctx, t.host, conn, &n, pump.Options{Until: until, Idle: idleTimeout, Limit: t.units})
	t.results.TxBytes, t.results.TxCalls = out.Bytes, uint32(out.Calls)
	return out
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
	until := accepted.Add(t.o.MaxLength + lengthGrace)
	if t.timed {
		until = accepted.Add(t.length + dataGrace)
	}
	out := pump.Outcome{Last: accepted}
	request, response := make([]byte, min(t.reqSize, pump.ChunkSize)), pump.Payload()
	for {
		if idle := t.host.Now().Add(idleTimeout); idle.Before(until) {
			_ = conn.SetDeadline(idle)
		} else {
			_ = conn.SetDeadline(until)
		}
		if ctx.Err() != nil { // looked at behind the deadline, which may have undone the wake-up
			out.End = pump.Stopped
			return out
		}
		err := readAll(conn, request, t.reqSize)
		if err == nil {
			err = writeAll(conn, response, t.rspSize)
		}
		if out.End = t.ended(err, until); out.End != 0 {
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

// ended says what an error of a transaction means, where until is the test's last moment; 0 where there is none.
func (t *test) ended(err error, until time.Time) pump.End {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return pump.Closed
	case pump.IsDeadline(err) && t.host.Now().Before(until):
		return pump.Stalled
	case pump.IsDeadline(err):
		return pump.TimeUp
	}
	return pump.Broken
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
