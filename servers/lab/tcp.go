package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"bufferbloat/internal/host"
)

const listenBacklog = 4096

// Conn is a TCP connection of the lab. Besides net.Conn it has what *net.TCPConn has to end one half or to abort.
type Conn struct {
	host          *Host
	ep            tcpip.Endpoint
	local, remote netip.AddrPort
	localAddr     *net.TCPAddr // as net.Conn returns them
	remoteAddr    *net.TCPAddr
	flow          *flow // guarded by host.lab.mu; nil before the connection stands

	readable, writable       notice
	readDeadline, writeLimit *deadline
	closed                   chan struct{}
	once                     sync.Once

	readMu sync.Mutex
	dst    tcpip.SliceWriter // where a Read puts its bytes

	writeMu sync.Mutex
	src     bytes.Reader // where a Write takes them
}

func (h *Host) newConn(ep tcpip.Endpoint, wq *waiter.Queue) *Conn {
	c := &Conn{host: h, ep: ep, closed: make(chan struct{}), readDeadline: newDeadline(h.lab), writeLimit: newDeadline(h.lab)}
	c.readable.init(h.lab, wq, waiter.ReadableEvents)
	c.writable.init(h.lab, wq, waiter.WritableEvents)
	return c
}

// addressed learns the connection's addresses, and what the link saw of it.
func (c *Conn) addressed(family host.Family) {
	if a, err := c.ep.GetLocalAddress(); err == nil {
		c.local = addrPort(a, family)
	}
	if a, err := c.ep.GetRemoteAddress(); err == nil { // not before it is connected
		c.remote = addrPort(a, family)
	}
	c.localAddr, c.remoteAddr = net.TCPAddrFromAddrPort(c.local), net.TCPAddrFromAddrPort(c.remote)
	l := c.host.lab
	growth := newGrowth(stackClock{l}, c.ep)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.flow = c.host.nic.flows[c.key()]; c.flow != nil {
		c.flow.growth = growth
	}
}

func (c *Conn) key() flowKey {
	return flowKey{c.local.Addr().Is6(), c.local.Port(), c.remote.Port()}
}

// DialTCP implements host.Network.
func (h *Host) DialTCP(ctx context.Context, to netip.AddrPort, o host.Options) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, opError("dial", "tcp", nil, net.TCPAddrFromAddrPort(to), err)
	}
	ep, wq, err := h.endpoint(ctx, tcp.ProtocolNumber, to.Addr(), o)
	if err != nil {
		return fail(err)
	}
	c := h.newConn(ep, wq)
	c.remote = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	err = c.connect(ctx, to)
	c.addressed(host.FamilyOf(to.Addr()))
	if err == nil {
		err = h.add(c)
	}
	if err != nil {
		c.Close()
		return fail(err)
	}
	return c, nil
}

func (c *Conn) connect(ctx context.Context, to netip.AddrPort) error {
	err := c.ep.Connect(fullAddr(to))
	if _, started := err.(*tcpip.ErrConnectStarted); !started {
		return errno(err)
	}
	for {
		select {
		case <-c.writable.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.host.lab.done:
			return c.host.lab.errOver()
		}
		if err := c.ep.LastError(); err != nil {
			return errno(err)
		}
		switch tcp.EndpointState(c.ep.State()) {
		case tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
			continue
		case tcp.StateError, tcp.StateClose:
			return syscall.ECONNABORTED
		}
		return nil
	}
}

// wait returns nil when ready has something, and otherwise why waiting is over.
func (c *Conn) wait(ready, deadline <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-deadline:
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	case <-c.host.lab.done:
		return c.host.lab.errOver()
	}
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	n, err := c.read(b)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *Conn) read(b []byte) (int, error) {
	if over(c.closed) {
		return 0, net.ErrClosed
	}
	deadline := c.readDeadline.passed()
	if over(deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	if len(b) == 0 {
		return 0, nil
	}
	for {
		c.dst = b
		res, err := c.ep.Read(&c.dst, tcpip.ReadOptions{})
		switch err.(type) {
		case nil:
			c.ep.ModerateRecvBuf(res.Count)
			return res.Count, nil
		case *tcpip.ErrWouldBlock:
			if err := c.wait(c.readable.ready, deadline); err != nil {
				return 0, err
			}
		case *tcpip.ErrClosedForReceive:
			if over(c.closed) {
				return 0, net.ErrClosed
			}
			return 0, io.EOF
		default:
			return 0, errno(err)
		}
	}
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	n, err := c.write(b)
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *Conn) write(b []byte) (int, error) {
	if over(c.closed) {
		return 0, net.ErrClosed
	}
	deadline := c.writeLimit.passed()
	if over(deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	done := 0
	for done < len(b) {
		c.src.Reset(b[done:])
		n, err := c.ep.Write(&c.src, tcpip.WriteOptions{})
		done += int(n)
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			if err := c.wait(c.writable.ready, deadline); err != nil {
				return done, err
			}
		default:
			if over(c.closed) {
				return done, net.ErrClosed
			}
			return done, errno(err)
		}
	}
	return done, nil
}

func (c *Conn) opError(op string, err error) error {
	return opError(op, "tcp", c.localAddr, c.remoteAddr, err)
}

// Close implements net.Conn. What was written is still sent.
func (c *Conn) Close() error {
	err := c.opError("close", net.ErrClosed)
	c.once.Do(func() {
		err = nil
		close(c.closed)
		c.readDeadline.at(time.Time{})
		c.writeLimit.at(time.Time{})
		c.ep.Close()
		c.readable.end()
		c.writable.end()
		l := c.host.lab
		l.mu.Lock()
		if n := c.host.nic; n.flows[c.key()] == c.flow {
			n.forget(c.key())
		}
		l.mu.Unlock()
		c.host.remove(c)
	})
	return err
}

// CloseRead and CloseWrite end one half, as in *net.TCPConn.
func (c *Conn) CloseRead() error  { return c.shutdown(tcpip.ShutdownRead) }
func (c *Conn) CloseWrite() error { return c.shutdown(tcpip.ShutdownWrite) }

func (c *Conn) shutdown(half tcpip.ShutdownFlags) error {
	if over(c.closed) {
		return c.opError("close", net.ErrClosed)
	}
	if err := c.ep.Shutdown(half); err != nil {
		return c.opError("close", errno(err))
	}
	return nil
}

// SetLinger is that of *net.TCPConn: with 0, Close resets the connection and forgets what was not sent; negative is the default.
func (c *Conn) SetLinger(seconds int) error {
	c.ep.SocketOptions().SetLinger(tcpip.LingerOption{Enabled: seconds >= 0, Timeout: time.Duration(max(seconds, 0)) * time.Second})
	return nil
}

// LocalAddr and RemoteAddr implement net.Conn.
func (c *Conn) LocalAddr() net.Addr  { return c.localAddr }
func (c *Conn) RemoteAddr() net.Addr { return c.remoteAddr }

// SetDeadline, SetReadDeadline and SetWriteDeadline implement net.Conn, on the host's clock.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.readDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(c.writeLimit, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if over(c.closed) {
		return c.opError("set", net.ErrClosed)
	}
	d.at(t)
	return nil
}

// TCPInfo implements host.Network. BytesAcked comes from the acknowledgements that the link delivered to this host, so it is exact; SendMSS
// is the largest segment sent so far. MinRTT is not known.
func (h *Host) TCPInfo(conn net.Conn) (host.TCPInfo, error) {
	c, ok := conn.(*Conn)
	if !ok || c.host != h {
		return host.TCPInfo{}, fmt.Errorf("TCP info of a %T: %w; it is no connection of this host", conn, errors.ErrUnsupported)
	}
	if over(c.closed) {
		return host.TCPInfo{}, c.opError("get", net.ErrClosed)
	}
	var info tcpip.TCPInfoOption
	if err := c.ep.GetSockOpt(&info); err != nil {
		return host.TCPInfo{}, c.opError("get", errno(err))
	}
	ops := c.ep.SocketOptions()
	out := host.TCPInfo{
		RTT:               info.RTT,
		RTTVariance:       info.RTTVar,
		CongestionWindow:  int(info.SndCwnd),
		CongestionControl: "cubic",
		SendBuffer:        int(ops.GetSendBufferSize()),
		ReceiveBuffer:     int(ops.GetReceiveBufferSize()),
	}
	if s, ok := c.ep.Stats().(*tcp.Stats); ok {
		out.Retransmits, out.HasRetransmits = s.SendErrors.Retransmits.Value(), true
	}
	if ds, err := c.ep.GetSockOptInt(dsOption(c.remote.Addr())); err == nil {
		out.DS, out.HasDS = uint8(ds), true
	}
	h.lab.mu.Lock()
	defer h.lab.mu.Unlock()
	if c.flow != nil {
		out.BytesAcked, out.HasBytesAcked, out.SendMSS = c.flow.bytesAcked(), true, c.flow.maxPayload
		if out.Retransmits += c.flow.synsAgain; c.flow.synsAgain > 0 && c.flow.total == 0 {
			out.RTT = c.flow.handshake
		}
	}
	return out, nil
}

// Listener accepts the TCP connections to one address. Besides net.Listener it has a deadline, as *net.TCPListener has.
type Listener struct {
	host     *Host
	ep       tcpip.Endpoint
	at       netip.AddrPort
	options  host.Options
	readable notice
	deadline *deadline
	closed   chan struct{}
	once     sync.Once
}

// ListenTCP implements host.Network. The accepted connections have the options too; the segment that accepts them (SYN, ACK) goes unmarked.
func (h *Host) ListenTCP(ctx context.Context, at netip.AddrPort, o host.Options) (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, opError("listen", "tcp", nil, net.TCPAddrFromAddrPort(at), err)
	}
	o.Source = netip.Addr{} // it listens at its own address
	ep, wq, err := h.endpoint(ctx, tcp.ProtocolNumber, at.Addr(), o)
	if err != nil {
		return fail(err)
	}
	terr := ep.Bind(fullAddr(at))
	if terr == nil {
		terr = ep.Listen(listenBacklog)
	}
	if terr != nil {
		ep.Close()
		return fail(errno(terr))
	}
	l := &Listener{host: h, ep: ep, options: o, deadline: newDeadline(h.lab), closed: make(chan struct{})}
	bound, _ := ep.GetLocalAddress()
	l.at = addrPort(bound, host.FamilyOf(at.Addr()))
	l.readable.init(h.lab, wq, waiter.ReadableEvents)
	if err := h.add(l); err != nil {
		return fail(err)
	}
	return l, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, opError("accept", "tcp", nil, l.Addr(), err)
	}
	return c, nil
}

func (l *Listener) accept() (*Conn, error) {
	deadline := l.deadline.passed()
	for {
		switch {
		case over(l.closed):
			return nil, net.ErrClosed
		case over(deadline):
			return nil, os.ErrDeadlineExceeded
		}
		ep, wq, err := l.ep.Accept(nil)
		switch err.(type) {
		case nil:
			return l.accepted(ep, wq)
		case *tcpip.ErrWouldBlock:
		default:
			if over(l.closed) {
				return nil, net.ErrClosed
			}
			return nil, errno(err)
		}
		select {
		case <-l.readable.ready:
		case <-deadline:
		case <-l.closed:
		case <-l.host.lab.done:
			return nil, l.host.lab.errOver()
		}
	}
}

func (l *Listener) accepted(ep tcpip.Endpoint, wq *waiter.Queue) (*Conn, error) {
	c := l.host.newConn(ep, wq)
	c.addressed(host.FamilyOf(l.at.Addr()))
	if err := l.host.add(c); err != nil {
		return nil, err
	}
	if l.options.SendBuffer > 0 {
		ep.SocketOptions().SetSendBufferSize(int64(l.options.SendBuffer), true)
	}
	if err := setDSCP(ep, l.at.Addr(), l.options); err != nil {
		c.Close()
		return nil, errno(err)
	}
	return c, nil
}

// Close implements net.Listener. Connections that were not accepted yet are reset.
func (l *Listener) Close() error {
	err := opError("close", "tcp", nil, l.Addr(), net.ErrClosed)
	l.once.Do(func() {
		err = nil
		close(l.closed)
		l.deadline.at(time.Time{})
		l.ep.Close()
		l.readable.end()
		l.host.remove(l)
	})
	return err
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// SetDeadline bounds Accept, also one that is waiting, by the host's clock.
func (l *Listener) SetDeadline(t time.Time) error {
	if over(l.closed) {
		return opError("set", "tcp", nil, l.Addr(), net.ErrClosed)
	}
	l.deadline.at(t)
	return nil
}
