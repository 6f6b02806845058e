package netperf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

// TransactionKind is a kind of transaction.
type TransactionKind uint8

// The kinds.
const (
	TCPRR  TransactionKind = iota + 1 // all transactions on one connection
	TCPCRR                            // each on a connection of its own, from the request for the connection to the end of the response
	UDPRR                             // in datagrams
)

func (k TransactionKind) String() string {
	switch k {
	case TCPRR:
		return "TCP_RR"
	case TCPCRR:
		return "TCP_CRR"
	case UDPRR:
		return "UDP_RR"
	}
	return fmt.Sprintf("transaction kind %d", uint8(k))
}

// TransactionOptions describe a test of transactions. Kind and Length must be set.
type TransactionOptions struct {
	Kind   TransactionKind
	Length time.Duration // from Run on
	Count  uint64        // transactions, after which the test ends; 0: it ends by its time alone
	// RequestSize and ResponseSize are in bytes; 0 means 1.
	RequestSize, ResponseSize int
	Burst                     int           // requests out beside the one; not of TCPCRR. With UDPRR, see TransactionResult.Duplicates
	Timeout                   time.Duration // UDPRR: after which a request counts as lost, and the next is sent; 0 means 2 s
	// Wait is the longest time between Open and Run that the server is asked to allow for; 0 means 22 s. A stock server ends a TCPCRR test so
	// much later.
	Wait                    time.Duration
	DSCP                    dscp.CodePoint // mark of what this end sends, over Client.Socket's
	ServerDSCP              dscp.CodePoint // mark of what the server sends; 0 leaves it alone
	CongestionControl       string         // of this end, over Client.Socket's; "" leaves it alone
	ServerCongestionControl string         // of the server's end; "" leaves it alone
	DataPort                uint16         // port that the server shall take the data at; 0: any
	Server                  ServerInfo     // what Check found
	// Ended is called from Run's goroutine with each transaction when it is over, that is with when its request left and when its response had come, or
	// was given up where answered is false. It must be quick, since the next request waits for it. nil is for none.
	Ended func(sent, over time.Time, answered bool)
}

// Transactions is a test in which a request is sent when the response to the one before has come. It says how many go through a path and how
// long each took; since it samples least when the queue is longest, the view of RTTs that weighs by time is the one to judge a queue by.
//
// Open and Run are called once, in this order, from one goroutine; Sample from one at any time.
type Transactions struct {
	client   *Client
	o        TransactionOptions
	ctl      *control
	response wire.Response

	mu      sync.Mutex
	rtts    RTTs
	done    uint64
	lost    uint64
	twice   uint64      // responses that came once more
	next    uint64      // number of the next request, and
	numbers []uint64    // those of the requests in out
	began   time.Time   // of the first request
	last    time.Time   // of the last transaction's end, or of the last loss
	out     []time.Time // when the requests left that are out, oldest first
	longest time.Duration
	at      time.Time // of the last Sample, and
	atDone  uint64    // what was counted then
	atLost  uint64
	info    host.TCPInfo
	hasInfo bool

	results    wire.Results // valid after Run, with hasResults
	hasResults bool
}

// TransactionResult is what a test of transactions did. Its times are on the host's clock.
type TransactionResult struct {
	Transactions uint64
	Lost         uint64 // requests without a response in time (UDPRR)
	// Duplicates are responses that came once more (UDPRR), as far as they can be told from others. With a burst and a stock server they can't, and
	// Warning says so.
	Duplicates  uint64
	RTTs        *RTTs
	First, Last time.Time // the first request left; the last response came. Zero where there was none
	// Waiting is how long the oldest request, which left at Oldest, had been out when the time was up; both are zero where none was.
	Oldest                time.Time
	Waiting               time.Duration
	ServerTransactions    uint64 // the server's own count
	HasServerTransactions bool
	RemoteDS              uint8 // the DS byte that the server says it sends; valid with HasRemoteDS
	HasRemoteDS           bool
	Warning               string
}

// Interval is what a test of transactions did between two moments.
type Interval struct {
	From, To     time.Time
	Transactions uint64 // that ended in it
	Lost         uint64 // requests that were given up in it
	// Longest is the longest time of a transaction that ended in it, or of a request that was out at its end.
	Longest time.Duration
}

// NewTransactions returns a test that is not opened.
func (c *Client) NewTransactions(o TransactionOptions) *Transactions {
	o.RequestSize, o.ResponseSize = max(1, o.RequestSize), max(1, o.ResponseSize)
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Wait == 0 {
		o.Wait = connectTimeout + responseTimeout
	}
	return &Transactions{client: c, o: o}
}

// maxBurst bounds what a user may have out at once.
const maxBurst = 1 << 16

// Open connects and has the server prepare the test. A test that was opened must be run or closed. Errors are as Check's.
func (t *Transactions) Open(ctx context.Context) error {
	o := t.o
	if o.Kind < TCPRR || o.Kind > UDPRR || o.Length <= 0 || o.Burst < 0 || o.Burst >= maxBurst || o.Kind == TCPCRR && o.Burst > 0 {
		return fmt.Errorf("%v of %v with %d beside the one: want a kind, a length and a burst that goes with it", o.Kind, o.Length, o.Burst)
	}
	if limit := 65507; o.Kind == UDPRR && (o.RequestSize > limit || o.ResponseSize > limit) {
		return fmt.Errorf("messages of %d and %d bytes: a datagram holds at most %d", o.RequestSize, o.ResponseSize, limit)
	}
	var err error
	t.ctl, t.response, err = t.client.openTest(ctx, t.request(), &t.o.Server)
	return err
}

func (t *Transactions) request() wire.Request {
	test := map[TransactionKind]wire.Test{TCPRR: wire.TCPRR, TCPCRR: wire.TCPCRR, UDPRR: wire.UDPRR}[t.o.Kind]
	r := wire.Omni(test, t.client.family(), wholeSeconds(t.o.Length+t.o.Wait))
	if t.o.Count > 0 && t.o.Count < 1<<31 {
		r.Length = -int32(t.o.Count)
	}
	r.Flags |= wire.FlagNoDelay
	r.RequestSize, r.ResponseSize, r.DataPort, r.Congestion = int32(t.o.RequestSize), int32(t.o.ResponseSize), t.o.DataPort, t.o.ServerCongestionControl
	if t.o.ServerDSCP != 0 {
		r.DS = int32(t.o.ServerDSCP.Byte())
	}
	return r
}

// Close gives up a test that was opened and will not be run.
func (t *Transactions) Close() {
	if t.ctl != nil {
		t.ctl.close()
	}
}

// Run runs the test to its end, opening it first if it is not. The result is what was counted, and is true also beside an error. Once
// ctx is done Run returns within a second.
func (t *Transactions) Run(ctx context.Context) (TransactionResult, error) {
	if t.ctl == nil {
		if err := t.Open(ctx); err != nil {
			return TransactionResult{}, err
		}
	}
	defer t.ctl.close()
	h := t.client.Host
	until := h.Now().Add(t.o.Length)
	phase, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results := t.ctl.await(t.o.Server.Layout, func(error) { stop(errControl) })
	var err error
	switch t.o.Kind {
	case TCPRR:
		err = t.stream(phase, until)
	case TCPCRR:
		err = t.connections(phase, until)
	default:
		err = t.datagrams(phase, until, results)
	}
	ended := h.Now()
	wait := t.grace()
	if unreached := (*DataError)(nil); errors.As(err, &unreached) {
		wait = 0 // what the server says of no data is of no interest
	}
	came := results.within(ctx, wait)
	if ctx.Err() == nil && came {
		t.ctl.bye(ctx)
	}
	return t.settle(ctx, ended, results, err)
}

// grace is how long the server may take for its results: until its own timer, where the end did not reach it, and what is under way.
func (t *Transactions) grace() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := leastGrace + 3*max(t.rtts.most, t.ctl.setup)
	if t.o.Kind != TCPRR {
		wait += t.o.Wait + 5*time.Second // a stock server waits 4 s beyond the length that it was asked for
	}
	return min(wait, 2*maxGrace)
}

// settle puts the result together and says what is wrong with it.
func (t *Transactions) settle(ctx context.Context, ended time.Time, results *outcome, err error) (TransactionResult, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results, t.hasResults = results.results, results.err == nil
	rtts := t.rtts
	out := TransactionResult{Transactions: t.done, Lost: t.lost, Duplicates: t.twice, RTTs: &rtts, First: t.began}
	if t.done > 0 {
		out.Last = t.last
	}
	if len(t.out) > 0 {
		out.Oldest, out.Waiting = t.out[0], max(0, ended.Sub(t.out[0]))
	}
	if d := t.response.DS; d >= 0 && d <= 255 {
		out.RemoteDS, out.HasRemoteDS = uint8(d), true
	}
	var warnings []string
	if text := paceText(t.response, t.response.SendSize); text != "" {
		warnings = append(warnings, text+", and transactions wait for that too")
	}
	var refused *RefusedError
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case errors.As(results.err, &refused):
		return out, t.client.explain(ctx, refused)
	case err == nil && results.err != nil && !pump.IsDeadline(results.err), errors.Is(err, errControl):
		err = gone(nil, results.err)
	case results.err != nil:
		warnings = append(warnings, "the server sent no result")
	default:
		out.ServerTransactions, out.HasServerTransactions = uint64(results.results.Transactions), true
	}
	if err == nil && t.done == 0 {
		err = fmt.Errorf("%w: no transaction in %v of %v", ErrNoData, t.o.Length, t.o.Kind)
	}
	if t.o.Kind == UDPRR && t.o.Burst > 0 && !t.response.Echoes && t.done > 0 {
		warnings = append(warnings, blindBurst)
	}
	if err == nil && t.o.Count > t.done {
		warnings = append(warnings, fmt.Sprintf("it ended after %d of %d transactions", t.done, t.o.Count))
	}
	out.Warning = strings.Join(warnings, "; ")
	if err != nil {
		return out, t.client.explain(ctx, err)
	}
	return out, nil
}

// blindBurst is what can't be seen in a test of UDPRR with a burst against a stock server.
const blindBurst = "this server's responses do not say which request they answer: with a burst, one that the path doubled would be taken for the next one's, and no " +
	"time be true from there on"

// Sample returns what happened since the call before it, or since the first request. It is false before there was one.
func (t *Transactions) Sample() (Interval, bool) {
	now := t.client.Host.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.began.IsZero() {
		return Interval{}, false
	}
	i := Interval{From: t.at, To: now, Transactions: t.done - t.atDone, Lost: t.lost - t.atLost, Longest: t.longest}
	if i.From.IsZero() {
		i.From = t.began
	}
	if len(t.out) > 0 {
		i.Longest = max(i.Longest, now.Sub(t.out[0]))
	}
	t.at, t.atDone, t.atLost, t.longest = now, t.done, t.lost, 0
	return i, true
}

// TCPInfo returns what the stack knew of the data connection at the end of a TCPRR test.
func (t *Transactions) TCPInfo() (host.TCPInfo, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.info, t.hasInfo
}

// sent notes a request that leaves at a moment.
func (t *Transactions) sent(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.began.IsZero() {
		t.began, t.last = at, at
	}
	t.out, t.numbers = append(t.out, at), append(t.numbers, t.next)
	t.next++
}

// came notes the response to the oldest request, and reports whether the test has all that it wants.
func (t *Transactions) came(at time.Time) bool {
	t.mu.Lock()
	if len(t.out) == 0 {
		t.mu.Unlock()
		return false // nobody asked
	}
	sent, all := t.answered(0, at)
	t.mu.Unlock()
	if t.o.Ended != nil {
		t.o.Ended(sent, at, true)
	}
	return all
}

// answered notes the response to one of the requests that are out. It returns when that left, and whether the test has all that it wants. t.mu is held.
func (t *Transactions) answered(i int, at time.Time) (sent time.Time, all bool) {
	sent = t.out[i]
	rtt := max(0, at.Sub(sent))
	t.out, t.numbers = slices.Delete(t.out, i, i+1), slices.Delete(t.numbers, i, i+1)
	t.rtts.add(rtt, at.Sub(t.last))
	t.last = at
	t.longest = max(t.longest, rtt)
	t.done++
	return sent, t.done == t.o.Count
}

// giveUp counts the requests that are out as lost.
func (t *Transactions) giveUp(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rtts.lose(at.Sub(t.last))
	t.last = at
	t.lost += uint64(len(t.out))
	if t.o.Ended != nil {
		for _, sent := range t.out {
			t.o.Ended(sent, at, false)
		}
	}
	t.out, t.numbers = t.out[:0], t.numbers[:0]
}

func (t *Transactions) oldest() (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.out) == 0 {
		return time.Time{}, false
	}
	return t.out[0], true
}

// socket are the settings of the data socket.
func (t *Transactions) socket() host.Options {
	return t.client.dataSocket(t.o.DSCP, t.o.CongestionControl)
}

func (t *Transactions) dataAddr() netip.AddrPort { return t.client.dataAt(t.ctl, t.response.DataPort) }

// Response returns the server's answer to the request of an open test.
func (t *Transactions) Response() wire.Response { return t.response }

// Server returns what is known of the server: what the options said, or with Client.Ask what it answered to Open.
func (t *Transactions) Server() ServerInfo { return t.o.Server }

// Results returns the server's last message, or false before the end of Run and where there was none.
func (t *Transactions) Results() (wire.Results, bool) { return t.results, t.hasResults }

// dial opens a data connection.
func (t *Transactions) dial(ctx context.Context) (net.Conn, error) {
	dialing, cancel := host.WithTimeout(ctx, t.client.Host, dataTimeout)
	defer cancel()
	conn, err := t.client.Host.DialTCP(dialing, t.dataAddr(), t.socket())
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case isOptionError(err):
		return nil, fmt.Errorf("data connection: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v: %w", dataTimeout, err)
	}
	return nil, &DataError{At: t.dataAddr(), Err: err}
}

// stream runs the transactions of one connection.
func (t *Transactions) stream(ctx context.Context, until time.Time) error {
	h := t.client.Host
	conn, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(until)
	release := pump.OnDone(ctx, func() { _ = conn.SetDeadline(past(h)) })
	defer release()
	err = t.exchange(conn)
	if info, ierr := h.TCPInfo(conn); ierr == nil {
		t.mu.Lock()
		t.info, t.hasInfo = info, true
		t.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errSurplus):
		return err
	case err != nil && !pump.IsDeadline(err):
		return fmt.Errorf("%w %v before its time: %w", ErrCutShort, until.Sub(h.Now()).Round(time.Millisecond), err)
	}
	// The response that is under way ends the server's loop, and its end ours.
	_ = conn.SetDeadline(h.Now().Add(goodbye))
	if w, ok := conn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil && ctx.Err() == nil {
		_, _ = io.CopyN(io.Discard, conn, int64(t.o.Burst+1)*int64(t.o.ResponseSize)+1)
	}
	return nil
}

// errSurplus is why no response can be told from what else a server sends.
var errSurplus = errors.New("the server sends more than the responses that it was asked for: its transactions cannot be counted")

// exchange sends and receives until an error, or nil at the last transaction of Count. It asks for one byte more than is due, which must not come.
func (t *Transactions) exchange(conn net.Conn) error {
	h := t.client.Host
	size := int64(t.o.ResponseSize)
	due := int64(t.o.Burst+1) * size
	request, response := make([]byte, t.o.RequestSize), make([]byte, min(due+1, 64<<10))
	for range t.o.Burst + 1 {
		t.sent(h.Now())
		if _, err := conn.Write(request); err != nil {
			return err
		}
	}
	for got := int64(0); ; {
		n, err := conn.Read(response[:min(due+1-got, int64(len(response)))])
		if got += int64(n); got > due {
			return errSurplus
		}
		at := h.Now()
		for ; got >= size; got -= size {
			if t.came(at) {
				return nil
			}
			t.sent(h.Now())
			if _, err := conn.Write(request); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// connections runs one transaction after the other, each on its connection. One that fails is lost; where all fail from the beginning it
// is the error.
func (t *Transactions) connections(ctx context.Context, until time.Time) error {
	h := t.client.Host
	request, response := make([]byte, t.o.RequestSize), make([]byte, min(t.o.ResponseSize, 64<<10))
	for h.Now().Before(until) {
		timed, cancel := host.WithDeadline(ctx, h, until)
		t.sent(h.Now())
		at, err := t.connection(timed, until, request, response)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			if t.came(at) {
				return nil
			}
		case !h.Now().Before(until):
			return nil
		default:
			t.giveUp(h.Now())
			t.mu.Lock()
			never := t.done == 0
			t.mu.Unlock()
			if never {
				return err
			}
			// A server that refuses at once is not to be asked as fast as this end can.
			if h.SleepUntil(timed, h.Now().Add(100*time.Millisecond)) != nil && ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// connection is one transaction. It returns when the response was complete, and after the server has closed.
func (t *Transactions) connection(ctx context.Context, until time.Time, request, response []byte) (time.Time, error) {
	conn, err := t.dial(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(until)
	release := pump.OnDone(ctx, func() { _ = conn.SetDeadline(past(t.client.Host)) })
	defer release()
	if _, err := conn.Write(request); err != nil {
		return time.Time{}, err
	}
	for left := t.o.ResponseSize; left > 0; {
		n, err := io.ReadFull(conn, response[:min(left, len(response))])
		left -= n
		if err != nil {
			return time.Time{}, err
		}
	}
	at := t.client.Host.Now()
	if n, _ := conn.Read(response[:1]); n > 0 { // the server closes first
		return time.Time{}, errSurplus
	}
	return at, nil
}

// datagrams runs the transactions in datagrams. A request without a response in time is lost, with those beside it; the next ones leave from
// other ports, so that a response that comes too late is not taken for one of theirs.
func (t *Transactions) datagrams(ctx context.Context, until time.Time, results *outcome) error {
	h := t.client.Host
	for h.Now().Before(until) {
		var conns []host.PacketConn
		for range t.ports() {
			conn, err := h.DialUDP(ctx, t.dataAddr(), t.socket())
			if err != nil {
				closeAll(conns)
				return fmt.Errorf("data socket: %w", err)
			}
			conns = append(conns, conn)
		}
		more, err := t.burst(ctx, conns, until, results)
		if !more || err != nil {
			for range 3 { // which end the test, though any of them may be lost
				_, _ = conns[0].Send(nil, netip.AddrPort{})
			}
		}
		closeAll(conns)
		if !more || err != nil {
			return err
		}
	}
	return nil
}

func closeAll(conns []host.PacketConn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// ports is how many ports take turns in sending requests. A stock server's responses do not say which request they answer, so that one that came twice
// would be taken for the next one's. From two ports in turn it comes to the one that waits for nothing, and was there before that port's next request
// left.
func (t *Transactions) ports() int {
	if t.response.Echoes || t.o.Burst > 0 {
		return 1
	}
	return 2
}

// burst exchanges datagrams on sockets in turn until the time is up, the count is reached, or requests were lost, when it reports that there is more
// to do.
func (t *Transactions) burst(ctx context.Context, conns []host.PacketConn, until time.Time, results *outcome) (more bool, err error) {
	h := t.client.Host
	release := pump.OnDone(ctx, func() {
		for _, c := range conns {
			_ = c.SetReadDeadline(past(h))
		}
	})
	defer release()
	request, response := make([]byte, t.o.RequestSize), make([]byte, 1<<16)
	conn := conns[0]
	for range t.o.Burst + 1 {
		t.post(conn, request)
	}
	pending := 0 // bytes of a response that came in several datagrams
	for turn := 1; ; {
		wait := until
		if oldest, out := t.oldest(); out && oldest.Add(t.o.Timeout).Before(until) {
			wait = oldest.Add(t.o.Timeout)
		}
		_ = conn.SetReadDeadline(wait)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		d, err := conn.Receive(response)
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case err != nil && pump.IsDeadline(err):
			if !h.Now().Before(until) {
				return false, nil
			}
			t.giveUp(h.Now())
			return true, nil
		case err != nil, d.Rejected != nil:
			if t.o.Count > 0 && results.within(ctx, t.o.Timeout) {
				return false, nil // where a response was lost the server has its count before this end
			}
			if err == nil {
				err = d.Rejected
			}
			return false, &DataError{At: t.dataAddr(), Err: err}
		}
		if pending += d.N; pending < t.o.ResponseSize {
			continue
		}
		pending = 0
		due, full := t.took(response[:d.N], d.At)
		if full {
			return false, nil
		}
		if due {
			conn = conns[turn%len(conns)]
			turn++
			t.post(conn, request)
		}
	}
}

// took notes a datagram that came, and reports whether the next request is due: not after a response that was there before. full says that the test
// has all that it wants.
func (t *Transactions) took(b []byte, at time.Time) (due, full bool) {
	t.mu.Lock()
	i := 0
	if n := t.marked(); t.response.Echoes && len(b) >= n {
		i = slices.IndexFunc(t.numbers, func(number uint64) bool { return carries(b[:n], number) })
	} else if len(t.out) > 0 && at.Before(t.out[0].Add(-min(t.rtts.Min()/2, time.Millisecond))) { // stamps of the kernel's clock are not exact in ours
		i = -1
	}
	if i < 0 || len(t.out) == 0 {
		t.twice++
		t.mu.Unlock()
		return false, false
	}
	sent, all := t.answered(i, at)
	t.mu.Unlock()
	if t.o.Ended != nil {
		t.o.Ended(sent, at, true)
	}
	return true, all
}

// marked is how many bytes of a request are a number that its response begins with too, at an end that echoes.
func (t *Transactions) marked() int { return min(8, t.o.RequestSize, t.o.ResponseSize) }

// mark writes the last bytes of a number.
func mark(b []byte, number uint64) {
	for i := range b {
		b[len(b)-1-i] = byte(number >> (8 * i))
	}
}

// carries reports whether b is as mark writes it.
func carries(b []byte, number uint64) bool {
	for i := range b {
		if b[len(b)-1-i] != byte(number>>(8*i)) {
			return false
		}
	}
	return true
}

// post sends a request. One that a full queue here refuses is as good as lost, and is given up in its time.
func (t *Transactions) post(conn host.PacketConn, request []byte) {
	mark(request[:t.marked()], t.next) // which is written in this goroutine alone
	at, err := conn.Send(request, netip.AddrPort{})
	if err != nil {
		at = t.client.Host.Now()
	}
	t.sent(at)
}
