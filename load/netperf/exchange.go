package netperf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// Exchange is an open test of transactions whose requests its user sends when they are due, whatever has come back: a source of probes for a
// fixed schedule, on any netperf server. So many of them may be out as maxOut and maxQueued say.
//
// A stock server's responses say nothing of their requests. Those of a TCP connection come in the order of its requests. Datagrams get a socket each
// while they are out, so that a response is known by the port that it comes to; while none is late that is always the same one. Our server's begin
// with the number of the request, so that one that comes twice is not taken for the next one's.
//
// Send and Receive are called from one goroutine each, at the same time; Wake and Close from any.
type Exchange struct {
	client   *Client
	o        TransactionOptions
	ctl      *control
	response wire.Response
	conn     net.Conn // of TCPRR
	request  []byte
	marked   int    // bytes of it that hold its number
	buf      []byte // TCPRR: the response that comes, and
	got      int    // how much of it is there; Receive's own

	mu      sync.Mutex
	out     []uint64    // TCPRR: the requests that are out, oldest first
	sockets []*exchange // UDPRR
	closed  bool
	wakeAt  host.Timer

	answers chan Answer   // UDPRR
	wake    chan struct{} // holds one
	done    chan struct{} // closed by Close
	readers sync.WaitGroup
}

// Answer is a response.
type Answer struct {
	Seq   uint64 // that Send was given with the request
	At    time.Time
	Stamp host.Stamp
	DS    uint8 // the DS byte that it came in with (UDPRR), valid with HasDS
	HasDS bool
	Err   error // why there is none: the server's host refused the request
}

// exchange is one socket for one request at a time.
type exchange struct {
	conn host.PacketConn
	busy bool
	seq  uint64
	sent time.Time
}

// How many requests may be out. In datagrams they are those of ten seconds at a hundred a second, after which they are lost (probe.DefaultDeadline). On a
// connection more would only lengthen what TCP has to send again; and the emulated lab's TCP puts that off for as long as there is something new to send.
const (
	maxOut    = 1024
	maxQueued = 64
)

// ErrTooManyOut says that so many requests are out that no more can be sent.
var ErrTooManyOut = errors.New("too many requests are out")

// OpenExchange opens a test of kind TCPRR or UDPRR, which the server is asked to serve for Length. Timeout is when a request is given up and
// its socket may serve another. Close must be called.
func (c *Client) OpenExchange(ctx context.Context, o TransactionOptions) (*Exchange, error) {
	if o.Kind != TCPRR && o.Kind != UDPRR || o.Length <= 0 {
		return nil, fmt.Errorf("%v of %v: want TCP_RR or UDP_RR and a length", o.Kind, o.Length)
	}
	t := c.NewTransactions(o)
	if err := t.Open(ctx); err != nil {
		return nil, err
	}
	x := &Exchange{client: c, o: t.o, ctl: t.ctl, response: t.response, marked: t.marked(), request: make([]byte, t.o.RequestSize),
		answers: make(chan Answer, maxOut), wake: make(chan struct{}, 1), done: make(chan struct{})}
	if o.Kind == UDPRR {
		return x, nil
	}
	var err error
	if x.conn, err = t.dial(ctx); err != nil {
		x.ctl.close()
		return nil, c.explain(ctx, err)
	}
	return x, nil
}

// Send sends a request and returns the stamp taken just before it left.
func (x *Exchange) Send(seq uint64) (time.Time, error) {
	if x.o.Kind == TCPRR {
		return x.sendStream(seq)
	}
	s, err := x.socket()
	if err != nil {
		return time.Time{}, err
	}
	mark(x.request[:x.marked], seq)
	x.mu.Lock()
	s.seq, s.busy, s.sent = seq, true, x.client.Host.Now()
	x.mu.Unlock()
	at, err := s.conn.Send(x.request, netip.AddrPort{})
	if err != nil {
		x.mu.Lock()
		s.busy = false
		x.mu.Unlock()
		return time.Time{}, err
	}
	return at, nil
}

func (x *Exchange) sendStream(seq uint64) (time.Time, error) {
	x.mu.Lock()
	if len(x.out) >= maxQueued {
		x.mu.Unlock()
		return time.Time{}, fmt.Errorf("%w: %d", ErrTooManyOut, maxQueued)
	}
	x.out = append(x.out, seq)
	x.mu.Unlock()
	at := x.client.Host.Now()
	_ = x.conn.SetWriteDeadline(at.Add(x.o.Timeout))
	if _, err := x.conn.Write(x.request); err != nil {
		_ = x.conn.Close() // a response to what did go out would be taken for one to a later request
		return time.Time{}, err
	}
	return at, nil
}

// socket returns the first socket that is free, one whose request is given up being replaced.
func (x *Exchange) socket() (*exchange, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, net.ErrClosed
	}
	now := x.client.Host.Now()
	for i, s := range x.sockets {
		if s.busy && now.Sub(s.sent) > x.o.Timeout {
			_ = s.conn.Close()
			x.sockets = append(x.sockets[:i], x.sockets[i+1:]...)
			break
		}
	}
	for _, s := range x.sockets {
		if !s.busy {
			return s, nil
		}
	}
	if len(x.sockets) >= maxOut {
		return nil, fmt.Errorf("%w: %d", ErrTooManyOut, maxOut)
	}
	at := x.client.dataAt(x.ctl, x.response.DataPort)
	conn, err := x.client.Host.DialUDP(context.Background(), at, x.client.dataSocket(x.o.DSCP, ""))
	if err != nil {
		return nil, fmt.Errorf("data socket: %w", err)
	}
	s := &exchange{conn: conn}
	x.sockets = append(x.sockets, s)
	x.readers.Go(func() { x.read(s) })
	return s, nil
}

// read passes on what comes to a socket, until it is closed.
func (x *Exchange) read(s *exchange) {
	buf, pending := make([]byte, x.o.ResponseSize), 0
	for {
		d, err := s.conn.Receive(buf)
		if err != nil && !isRejection(err) {
			return
		}
		a := Answer{At: d.At, Stamp: d.Stamp, DS: d.DS, HasDS: d.HasDS, Err: err}
		if d.Rejected != nil {
			a.Err = d.Rejected
		}
		if a.Err == nil {
			if pending += d.N; pending < x.o.ResponseSize {
				continue
			}
		}
		pending = 0
		x.mu.Lock()
		if a.Err == nil && x.response.Echoes && !carries(buf[:min(d.N, x.marked)], s.seq) {
			x.mu.Unlock() // one that came before comes once more
			continue
		}
		asked := s.busy
		a.Seq, s.busy = s.seq, false
		x.mu.Unlock()
		if !asked {
			continue
		}
		select {
		case x.answers <- a:
		case <-x.done:
			return
		}
	}
}

func isRejection(err error) bool {
	var r *host.RejectedError
	return errors.As(err, &r)
}

// Receive waits for the next response. After Wake it returns an error that wraps os.ErrDeadlineExceeded, after Close net.ErrClosed.
func (x *Exchange) Receive() (Answer, error) {
	if x.o.Kind == TCPRR {
		return x.receiveStream()
	}
	select {
	case a := <-x.answers:
		return a, nil
	case <-x.wake:
		return Answer{}, os.ErrDeadlineExceeded
	case <-x.done:
		return Answer{}, net.ErrClosed
	}
}

func (x *Exchange) receiveStream() (Answer, error) {
	if x.buf == nil {
		x.buf = make([]byte, x.o.ResponseSize)
	}
	for x.got < len(x.buf) { // Wake's deadline may strike within a response
		n, err := x.conn.Read(x.buf[x.got:])
		x.got += n
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: %w", net.ErrClosed, ErrServerGone)
		}
		if err != nil && x.got < len(x.buf) {
			return Answer{}, err
		}
	}
	x.got = 0
	at := x.client.Host.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.out) == 0 {
		return Answer{}, errors.New("a response that nobody asked for")
	}
	a := Answer{Seq: x.out[0], At: at}
	x.out = x.out[:copy(x.out, x.out[1:])]
	return a, nil
}

// Wake makes a waiting Receive, or the next one, return at t.
func (x *Exchange) Wake(t time.Time) error {
	if x.o.Kind == TCPRR {
		return x.conn.SetReadDeadline(t)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wakeAt != nil {
		x.wakeAt.Stop()
	}
	x.wakeAt = x.client.Host.AfterFunc(t.Sub(x.client.Host.Now()), func() {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	})
	return nil
}

// Close ends the test and waits for what it started. It does not wait for the server.
func (x *Exchange) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	if x.wakeAt != nil {
		x.wakeAt.Stop()
	}
	sockets := x.sockets
	x.mu.Unlock()
	close(x.done)
	if x.conn != nil {
		_ = x.conn.Close()
	}
	for i, s := range sockets {
		for range 3 {
			if i == 0 { // they end the server's test
				_, _ = s.conn.Send(nil, netip.AddrPort{})
			}
		}
		_ = s.conn.Close()
	}
	x.ctl.close()
	x.readers.Wait()
	return nil
}
