package memnet

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
)

// pair returns the two ends of a connection.
func (n *Net) pair(from, to netip.AddrPort, dialed, accepted host.Options) (*conn, *conn) {
	up, down := newStream(n), newStream(n)
	return &conn{net: n, in: down, out: up, local: from, remote: to, o: dialed}, &conn{net: n, in: up, out: down, local: to, remote: from, o: accepted}
}

// conn is one end.
type conn struct {
	net           *Net
	in, out       *stream
	local, remote netip.AddrPort
	o             host.Options
	linger        sync.Once
	drop          bool
	counted       bool // against Net.Descriptors
	closing       sync.Once
}

func (c *conn) Read(b []byte) (int, error)         { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error)        { return c.out.write(b) }
func (c *conn) LocalAddr() net.Addr                { return net.TCPAddrFromAddrPort(c.local) }
func (c *conn) RemoteAddr() net.Addr               { return net.TCPAddrFromAddrPort(c.remote) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.in.reader.set(c.in, t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.out.writer.set(c.out, t) }
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetLinger with 0 makes Close reset the connection.
func (c *conn) SetLinger(int) error {
	c.linger.Do(func() { c.drop = true })
	return nil
}

// CloseWrite ends what this end sends, behind what is queued.
func (c *conn) CloseWrite() error { return c.out.finish() }

// Close ends both directions, with a reset where something that came was not read.
func (c *conn) Close() error {
	c.closing.Do(func() {
		if c.counted {
			c.net.give()
		}
	})
	unread := c.in.abandon()
	if unread || c.drop {
		c.out.reset(syscall.ECONNRESET)
	} else {
		_ = c.out.finish()
	}
	c.out.mu.Lock()
	c.out.writer.closed = true
	c.out.cond.Broadcast()
	c.out.mu.Unlock()
	return nil
}

// stream is one direction of a connection.
type stream struct {
	net            *Net
	mu             sync.Mutex
	cond           sync.Cond
	queue          []segment
	queued         int       // bytes in queue
	free           time.Time // when the link has sent everything
	flights        []segment // not acknowledged yet, without their bytes
	acked          uint64
	finished       bool  // the writer's end
	broken         error // reset
	deaf           bool  // the reader has closed
	reader, writer side
}

type segment struct {
	at   time.Time // arrival
	data []byte
	size int
}

// side is one end's deadline and state of a stream.
type side struct {
	deadline time.Time
	timer    *time.Timer
	closed   bool
}

func (s *side) set(on *stream, t time.Time) error {
	on.mu.Lock()
	defer on.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.deadline = t
	if s.timer != nil {
		s.timer.Stop()
	}
	if !t.IsZero() {
		s.timer = time.AfterFunc(time.Until(t), on.wake)
	}
	on.cond.Broadcast()
	return nil
}

func (s *side) over() bool { return !s.deadline.IsZero() && !time.Now().Before(s.deadline) }

func newStream(n *Net) *stream {
	s := &stream{net: n}
	s.cond.L = &s.mu
	return s
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cond.Broadcast()
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case s.reader.closed:
			return 0, net.ErrClosed
		case s.reader.over():
			return 0, os.ErrDeadlineExceeded
		case len(s.queue) > 0 && !now.Before(s.queue[0].at):
			n := copy(b, s.queue[0].data)
			s.queued -= n
			if s.queue[0].data = s.queue[0].data[n:]; len(s.queue[0].data) == 0 {
				s.queue = s.queue[1:]
			}
			s.cond.Broadcast()
			return n, nil
		case s.broken != nil:
			return 0, s.broken
		case len(s.queue) == 0 && s.finished && !now.Before(s.free.Add(s.net.Delay)):
			return 0, io.EOF
		}
		s.cond.Wait()
	}
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(b) {
		switch {
		case s.writer.closed:
			return n, net.ErrClosed
		case s.broken != nil:
			return n, s.broken
		case s.finished, s.deaf:
			return n, syscall.EPIPE
		case s.writer.over():
			return n, os.ErrDeadlineExceeded
		}
		k := min(len(b)-n, s.net.Buffer-s.queued, 1448)
		if k == 0 {
			s.cond.Wait()
			continue
		}
		s.send(b[n : n+k])
		n += k
	}
	return n, nil
}

// send queues b; s.mu is held.
func (s *stream) send(b []byte) {
	if now := time.Now(); s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(len(b)) * time.Second / time.Duration(s.net.BytesPerS))
	at := s.free.Add(s.net.Delay)
	s.queue = append(s.queue, segment{at: at, data: append([]byte(nil), b...)})
	s.flights = append(s.flights, segment{at: at.Add(s.net.Delay), size: len(b)})
	s.queued += len(b)
	time.AfterFunc(time.Until(at), s.wake)
}

// progress returns what was acknowledged and how long what is queued will take.
func (s *stream) progress() (acked uint64, queued time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.flights) > 0 && !now.Before(s.flights[0].at) {
		s.acked += uint64(s.flights[0].size)
		s.flights = s.flights[1:]
	}
	return s.acked, max(0, s.free.Sub(now))
}

func (s *stream) finish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer.closed {
		return net.ErrClosed
	}
	if !s.finished {
		s.finished = true
		if now := time.Now(); s.free.Before(now) {
			s.free = now
		}
		time.AfterFunc(time.Until(s.free.Add(s.net.Delay)), s.wake)
	}
	return nil
}

// abandon closes the reader's end and reports whether something was left unread.
func (s *stream) abandon() (unread bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unread = len(s.queue) > 0 && !s.reader.closed
	s.reader.closed, s.deaf = true, true
	s.queue = nil
	s.cond.Broadcast()
	return unread
}

// reset destroys the stream.
func (s *stream) reset(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.queue = err, nil
	s.cond.Broadcast()
}
