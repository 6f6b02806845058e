package iperf3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

// MaxStreams is how many streams a test may have in each direction, as all versions have it.
const MaxStreams = 128

// Default sizes. A server of 3.16 or later counts an upload in whole blocks, so its figure is as coarse as a block for each stream.
const (
	downloadBlock = 128 << 10
	uploadBlock   = 16 << 10
	// datagram fits every path without fragments, tunnels and IPv6 included.
	datagram = 1200
)

// maxLength is what bounds a test that ends by bytes or blocks.
const maxLength = time.Hour

// TestOptions describe a test. Downloads or Uploads, and Length, Bytes or Blocks must be set; a UDP test needs its Rate.
type TestOptions struct {
	UDP                bool
	Downloads, Uploads int             // flows in each direction; where there are both, as many of one as of the other
	Length             time.Duration   // from the start on; 0 is no limit where there is one in bytes or blocks
	Omit               time.Duration   // at the start, not counted, on top of Length; whole seconds
	Bytes              uint64          // of all flows of a direction together, after which they end; 0 is no limit
	Blocks             uint64          // likewise, in blocks of Size
	Rate               bitrate.Bitrate // of each flow's payload; 0 is no limit
	KernelPacing       bool            // have the stacks of both ends keep TCP's Rate, evenly, instead of the programs
	Burst              int             // blocks or datagrams that leave at once, with a Rate; 0 is 1
	Size               int             // bytes of a block or datagram's payload; 0 means 128 KiB for downloads, 16 KiB for uploads, 1200 bytes for UDP
	DSCP               dscp.CodePoint  // mark of what both ends send on the data streams, over Client.Socket's
	CongestionControl  string          // of both ends, over Client.Socket's; "" leaves it alone. A server may ignore it
	Window             int             // bytes of socket buffers at both ends; 0 leaves them to the stacks
	Wait               time.Duration   // the longest time between Open and Run; a stock server gives up after its own, 120 s or less, and ours after no less than that
	WideCounters       bool            // 64-bit sequence numbers, for UDP tests of more than 2^32 datagrams
}

// check says what no server can do.
func (o TestOptions) check() error {
	switch n := max(o.Downloads, o.Uploads); {
	case o.Downloads < 0 || o.Uploads < 0 || n == 0 || n > MaxStreams:
		return fmt.Errorf("an iperf3 test of %d downloads and %d uploads: want 1 to %d", o.Downloads, o.Uploads, MaxStreams)
	case o.Downloads > 0 && o.Uploads > 0 && o.Downloads != o.Uploads:
		return fmt.Errorf("an iperf3 test of %d downloads and %d uploads: with both directions, want as many of each", o.Downloads, o.Uploads)
	case o.Length < 0 || o.Length == 0 && o.Bytes == 0 && o.Blocks == 0:
		return errors.New("an iperf3 test without an end: want a length, or a number of bytes or blocks")
	case o.Length > 24*time.Hour || o.Omit < 0 || o.Omit > 10*time.Minute || o.Omit%time.Second != 0:
		return fmt.Errorf("an iperf3 test of %v after %v: want at most 24h, after whole seconds up to 10m", o.Length, o.Omit)
	case o.Bytes > 0 && o.Blocks > 0:
		return errors.New("an iperf3 test that ends by bytes and by blocks: want one of them")
	case o.UDP && o.Rate <= 0:
		return errors.New("a UDP flow without a rate: want one, since nothing else would slow it down")
	case o.Rate < 0:
		return fmt.Errorf("a rate of %v: want 0 or more", o.Rate)
	case o.UDP && (o.Size < wire.MinDatagram || o.Size > wire.MaxDatagram):
		return fmt.Errorf("datagrams of %d bytes: want %d to %d", o.Size, wire.MinDatagram, wire.MaxDatagram)
	case o.Size < 1 || o.Size > 1<<20:
		return fmt.Errorf("blocks of %d bytes: want 1 to %d", o.Size, 1<<20)
	case o.Burst < 0 || o.Burst > 1000:
		return fmt.Errorf("a burst of %d: want 0 to 1000", o.Burst)
	}
	return nil
}

// Test is one test with its flows. They begin and end together: the first Open opens the test for all of them, and the first Run runs it.
type Test struct {
	client *Client
	o      TestOptions
	flows  []*Flow // in the order of their streams: uploads, then downloads

	ctl      *control      // written before opened is closed
	openErr  error         // likewise
	opened   chan struct{} // closed when the first Open has done its work
	finished chan struct{} // closed when the results of all flows stand

	beginning sync.Mutex
	begun     bool                    // somebody opens the test, or has
	abort     context.CancelCauseFunc // of who runs it; nil before that
}

// NewTest returns a test that is not opened. Options that no server can do are an error of Open.
func (c *Client) NewTest(o TestOptions) *Test {
	if o.Size == 0 {
		o.Size = o.size()
	}
	t := &Test{client: c, o: o, opened: make(chan struct{}), finished: make(chan struct{})}
	add := func(d load.Direction, n int) {
		for i := range min(n, MaxStreams) {
			t.flows = append(t.flows, &Flow{test: t, direction: d, index: i, id: wire.StreamID(len(t.flows))})
		}
	}
	add(load.Upload, o.Uploads)
	add(load.Download, o.Downloads)
	return t
}

// size is the default size. With a rate a TCP block is at most what 10 ms of it carry, so that the rate is one at any scale.
func (o TestOptions) size() int {
	size := downloadBlock
	switch {
	case o.UDP:
		return datagram
	case o.Uploads > 0:
		size = uploadBlock
	}
	if o.Rate > 0 {
		const packet, turns = 1448, 100 // a second
		size = min(size, packet*max(1, int(min(o.Rate/8/turns/packet, 1<<10))))
	}
	return size
}

// Flows returns the test's flows of one direction.
func (t *Test) Flows(d load.Direction) []*Flow {
	var list []*Flow
	for _, f := range t.flows {
		if f.direction == d {
			list = append(list, f)
		}
	}
	return list
}

// Open agrees with the server on the test, once, whoever calls it. Errors wrap those of this package, a wire.ErrorCode or the cause of ctx.
func (t *Test) Open(ctx context.Context) error {
	t.beginning.Lock()
	first := !t.begun
	t.begun = true
	t.beginning.Unlock()
	if first {
		t.openErr = t.open(ctx)
		close(t.opened)
		return t.openErr
	}
	select {
	case <-t.opened:
		return t.openErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Test) open(ctx context.Context) error {
	if err := t.o.check(); err != nil {
		return err
	}
	params, err := t.params()
	if err != nil {
		return err
	}
	k, err := t.client.open(ctx)
	if err != nil {
		return err
	}
	if err := t.agree(ctx, k, params); err != nil {
		k.close()
		return t.client.explain(ctx, err)
	}
	t.ctl = k
	return nil
}

// Close gives up a test that was opened and will not be run. It does nothing to one that was not opened.
func (t *Test) Close() {
	select {
	case <-t.opened:
		if t.ctl != nil {
			t.ctl.close()
		}
	default:
	}
}

// params is what the server is asked for. Its time only bounds the server: the client's own decides.
func (t *Test) params() (wire.Params, error) {
	o := t.o
	p := wire.Params{Omit: o.Omit, Bytes: o.Bytes, Blocks: o.Blocks, Parallel: max(o.Downloads, o.Uploads),
		Reverse: o.Uploads == 0, Bidirectional: o.Uploads > 0 && o.Downloads > 0, Size: o.Size, PacingTimer: time.Millisecond,
		Burst: o.Burst, Wait: o.Wait.Truncate(time.Second), Window: o.Window, TOS: int(o.DSCP.Byte()), Congestion: o.CongestionControl, ClientVersion: t.client.Version}
	if o.Length > 0 {
		p.Time = (o.Length + time.Second - 1).Truncate(time.Second)
	}
	if p.ClientVersion == "" {
		p.ClientVersion = "3.12"
	}
	switch {
	case o.UDP:
		p.Protocol, p.Rate, p.HasRate, p.Counters64 = wire.UDP, o.Rate, true, o.WideCounters
		p.NamedStreams = true
		// Only the server's report says how an upload's datagrams came over time.
		p.ServerOutput = o.Uploads > 0
	case o.KernelPacing:
		p.KernelRate = o.Rate
	default:
		p.Rate = o.Rate
	}
	l := t.client.Login
	if l == nil {
		return p, nil
	}
	now := l.Now
	if now == nil {
		now = t.client.Host.Now
	}
	var err error
	p.AuthToken, err = wire.Login{User: l.User, Password: l.Password, At: now()}.Token(l.Key, l.Padding)
	return p, err
}

// agree sends the parameters and waits for leave to open the streams.
func (t *Test) agree(ctx context.Context, k *control, p wire.Params) error {
	message := p.AppendTo(nil)
	if n := len(message) - 4; n > wire.MaxParams {
		return fmt.Errorf("parameters of %d bytes, and a server takes at most %d", n, wire.MaxParams)
	}
	release := k.wakeBy(ctx, answerTimeout+k.setup)
	defer release()
	var b [1]byte
	_, err := k.conn.Write(message)
	if err == nil || isReset(err) {
		_, err = io.ReadFull(k.conn, b[:]) // what was said before a reset may still be there
	}
	switch {
	case err == nil:
	case pump.IsDeadline(err):
		return fmt.Errorf("%w to the parameters within %v", ErrSilent, answerTimeout)
	case errors.Is(err, io.EOF) || isReset(err):
		return fmt.Errorf("%w%s", ErrRefused, t.refusedAdvice())
	default:
		return err
	}
	s, err := wire.ParseState(b[0])
	switch {
	case err != nil:
		return fmt.Errorf("%w: it answers the parameters with byte 0x%02x", ErrNotIPerf3, b[0])
	case s == wire.CreateStreams:
		return nil
	case s == wire.AccessDenied:
		return ErrBusy
	case s == wire.ServerError:
		e := wire.ReadError(k.conn)
		switch {
		case e.Code == wire.NotAuthorised && t.client.Login == nil:
			return fmt.Errorf("%w; it wants a user name, a password and its public key", e)
		case e.Code == wire.NotAuthorised:
			return fmt.Errorf("%w%s", e, t.refusedAdvice())
		}
		return e
	case s == wire.ServerTerminate:
		return &wire.StateError{State: s}
	}
	return fmt.Errorf("%w: it answers the parameters with %v", ErrNotIPerf3, s)
}

// refusedAdvice is what the user can do about a refusal without a reason.
func (t *Test) refusedAdvice() string {
	l := t.client.Login
	if l == nil {
		return "; it may want a user name and password, a lower rate, fewer streams or a shorter test"
	}
	other := wire.PKCS1
	if l.Padding == wire.PKCS1 {
		other = wire.OAEP
	}
	return fmt.Sprintf("; check user name, password, public key and this host's clock, or try the other padding, %v (this was %v: "+
		"servers before 3.17 want PKCS#1, later ones OAEP)", other, l.Padding)
}
