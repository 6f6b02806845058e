package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/load"
)

// FlowOptions describe one flow. Direction and Length must be set.
type FlowOptions struct {
	Direction load.Direction
	Length    time.Duration   // from Run on
	Bytes     uint64          // payload after which it ends; 0 is no bound
	Rate      bitrate.Bitrate // of an upload; 0 is no bound
	Body      int64           // bytes of an upload's bodies; 0 begins with 1 MiB and grows to 64 MiB
}

// The bodies of an upload where FlowOptions say nothing: servers have their limits, and each body costs a round trip.
const (
	firstBody   = 1 << 20
	largestBody = 64 << 20
)

// Flow is one flow. Open and Run are called once, in this order, from one goroutine; Delivered and TCPInfo at any time from any.
type Flow struct {
	client *Client
	o      FlowOptions

	received pump.Counter  // payload of downloads
	sent     pump.Counter  // payload of the upload's present body that the stack has taken
	records  atomic.Uint64 // the same, where whole TLS records are written

	mu        sync.Mutex
	link      *link // nil before it stands and after its end
	acks      bool  // the stack tells what is acknowledged
	connected bool
	opened    time.Time    // when link was
	done      uint64       // delivered by connections before this one
	past      host.TCPInfo // what the stack counted on those
	before    uint64       // payload of the bodies before the present one, on this connection
	highest   uint64       // of what Delivered returned
	first     time.Time
	grew      time.Time // when it was last seen to have grown
}

// NewFlow returns a flow that is not opened.
func (c *Client) NewFlow(o FlowOptions) *Flow { return &Flow{client: c, o: o} }

func (f *Flow) method() string {
	if f.o.Direction == load.Upload {
		return "POST"
	}
	return "GET"
}

// Open connects and asks the server whether it will do what the flow wants. A flow that was opened must be run or closed. An error says what the user can
// do; it wraps ErrUnreachable, ErrNotHTTP, ErrRedirected or a *StatusError, or is the cause of ctx.
func (f *Flow) Open(ctx context.Context) error {
	if f.o.Direction != load.Download && f.o.Direction != load.Upload || f.o.Length <= 0 || f.o.Body < 0 {
		return fmt.Errorf("a flow wants a direction and a length, not %v of %v", f.o.Direction, f.o.Length)
	}
	l, err := f.client.open(ctx, f.method())
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if refused := (*StatusError)(nil); errors.As(err, &refused) {
			return err // which names the URL
		}
		return fmt.Errorf("%s: %w", f.client.URL.Redacted(), err)
	}
	f.use(l)
	return nil
}

// use makes l the flow's connection.
func (f *Flow) use(l *link) {
	info, err := f.client.Host.TCPInfo(l.raw)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.link, f.connected, f.opened = l, true, f.client.Host.Now()
	f.acks = err == nil && info.HasBytesAcked
}

// unuse closes the flow's connection, and keeps what it delivered.
func (f *Flow) unuse() {
	if f.o.Direction == load.Upload {
		f.look()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.link == nil {
		return
	}
	if info, err := f.counts(); err == nil {
		f.past = info
	}
	f.link.drop()
	f.link, f.before = nil, 0
	f.done = f.highest
}

// Close gives up a flow that was opened and will not be run.
func (f *Flow) Close() { f.unuse() }

// Delivered returns how many bytes of payload have arrived so far, or false where that is not known. It never falls.
func (f *Flow) Delivered() (uint64, bool) {
	if f.o.Direction == load.Download {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.received.Bytes(), f.connected
	}
	f.look()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.highest, f.acks
}

// TCPInfo returns the state of the flow's connection, or false where none stands. What counts or adds up in it does so over all connections of the flow.
func (f *Flow) TCPInfo() (host.TCPInfo, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.link == nil {
		return host.TCPInfo{}, false
	}
	info, err := f.counts()
	return info, err == nil
}

// counts is what the stack knows of the present connection, and counted on it and on those before. f.mu is held.
func (f *Flow) counts() (host.TCPInfo, error) {
	info, err := f.client.Host.TCPInfo(f.link.raw)
	info.BytesAcked += f.past.BytesAcked
	info.Retransmits += f.past.Retransmits
	info.DeliveredCE += f.past.DeliveredCE
	info.Busy += f.past.Busy
	info.ReceiveWindowLimited += f.past.ReceiveWindowLimited
	info.SendBufferLimited += f.past.SendBufferLimited
	return info, err
}

// look asks the stack what of an upload was acknowledged. The connection stays open while it looks, because closing takes the same lock.
func (f *Flow) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.link == nil {
		return
	}
	info, err := f.client.Host.TCPInfo(f.link.raw)
	if err != nil || !info.HasBytesAcked || info.BytesAcked < f.link.base {
		return
	}
	if now := f.done + f.payload(info.BytesAcked-f.link.base); now > f.highest {
		f.highest, f.grew = now, f.client.Host.Now()
		if f.first.IsZero() {
			f.first = f.grew
		}
	}
}

// payload is what acknowledged bytes of the connection have of an upload's bodies. f.mu is held.
func (f *Flow) payload(acked uint64) uint64 {
	l, written := f.link, f.before+f.sent.Bytes()+f.records.Load()
	if l.secure == nil {
		return min(less(acked, l.heads), written+uint64(largestWrite)) // a write that is under way counts as it is acknowledged
	}
	// What TLS holds back (together) counts as written here and is not under way yet.
	inner := l.secure.inner
	flown, pending := inner.written.Load(), uint64(max(0, inner.pending.Load()))
	held := uint64(max(0, inner.held.Load()))
	if acked > flown {
		return less(written, held) + min(acked-flown, pending)
	}
	return less(written, held+flown-acked)
}

// largestWrite is more than the pump hands to the stack at once.
const largestWrite = 1 << 20

func less(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}

// freshness is how long a connection may have stood idle before a flow: servers close those that nobody uses.
const freshness = 4 * time.Second

// Run runs the flow to its end, opening it first if it is not. The Result is what was counted, and is true also beside an error, which says why there is no
// more of it. Once ctx is done Run returns within a second.
func (f *Flow) Run(ctx context.Context) (load.Result, error) {
	if f.link != nil && f.client.Host.Now().Sub(f.opened) > freshness {
		f.unuse()
		f.past = host.TCPInfo{} // which is none of the flow's
	}
	if f.link == nil {
		if err := f.Open(ctx); err != nil {
			return load.Result{}, err
		}
	}
	defer f.unuse()
	r := &running{Flow: f, host: f.client.Host}
	r.began = r.host.Now()
	r.until = r.began.Add(f.o.Length)
	r.out.Connected = r.began
	err := r.run(ctx)
	return r.out, err
}

// running is a flow under way.
type running struct {
	*Flow
	host    host.Host
	began   time.Time
	until   time.Time
	out     load.Result
	moved   uint64 // payload read, or written in bodies that were not refused
	present uint64 // of the present body
	objects int
	links   int           // connections beyond the first
	headed  time.Time     // when the first answer's head was read
	paid    time.Time     // when the first payload of the present object was read; zero before
	waited  time.Duration // for answers, while no payload moved
	starved time.Duration // for room in the server's HTTP/2 windows
	size    int64         // of the last object
	good    uint64        // payload of bodies that the server has answered
	tls     load.TLS
	lost    string // what is worth a warning
}

// errOver says that the flow's time is up or its bytes are moved.
var errOver = errors.New("the flow is over")

// run does one request after the other.
func (r *running) run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	if r.o.Direction == load.Upload {
		group.Go(func() { r.watchFirst(watching) })
	}
	body := r.o.Body
	if body == 0 {
		body = firstBody
	}
	var err error
	for err == nil {
		if err = r.linked(ctx); err != nil {
			break
		}
		if r.o.Direction == load.Download {
			err = r.get(ctx)
		} else {
			body, err = r.post(ctx, body)
		}
	}
	stop()
	group.Wait()
	return r.finish(ctx, err)
}

// linked makes sure that there is a connection.
func (r *running) linked(ctx context.Context) error {
	if r.host.Now().After(r.until) {
		return errOver
	}
	if r.link != nil {
		return nil
	}
	r.links++
	began := r.host.Now()
	bounded, cancel := host.WithDeadline(ctx, r.host, r.until)
	defer cancel()
	l, err := r.client.open(bounded, r.method())
	r.waited += r.host.Now().Sub(began)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			return errOver
		}
		return err
	}
	r.use(l)
	return nil
}

// watchFirst sees soon when the first byte of an upload has arrived, for a rate that is not reckoned over the wait for it.
func (r *running) watchFirst(ctx context.Context) {
	const every = 5 * time.Millisecond
	for n := 1; r.host.SleepUntil(ctx, r.began.Add(time.Duration(n)*every)) == nil; n++ {
		r.look()
		r.mu.Lock()
		seen := !r.first.IsZero()
		r.mu.Unlock()
		if seen {
			return
		}
		n = max(n, int(r.host.Now().Sub(r.began)/every))
	}
}

// left is how much payload the flow may still move, as a limit of the pump: 0 is none.
func (r *running) left() uint64 {
	if r.o.Bytes == 0 {
		return 0
	}
	return r.o.Bytes - r.moved
}

// get gets the object once. errOver says that the flow is over.
func (r *running) get(ctx context.Context) error {
	asked := r.host.Now()
	p, err := r.request(ctx, "GET", 0)
	if err != nil {
		return err
	}
	if p.Status != 200 {
		return r.link.refused("GET", &p)
	}
	now := r.host.Now()
	r.waited += now.Sub(asked)
	if r.headed.IsZero() {
		r.headed = now
	}
	before := r.received.Bytes()
	r.paid = time.Time{}
	if err := r.read(ctx, &p); err != nil {
		return err
	}
	r.size = int64(r.received.Bytes() - before)
	// Small bodies come long behind their heads where the server's stack holds them back for an acknowledgement (RFC 9293, 3.7.4). A TLS record
	// takes its time on the path, and is handed over whole.
	if !r.paid.IsZero() && (r.link.secure == nil || r.size < smallObject) {
		r.waited += r.paid.Sub(now)
	}
	if r.objects++; r.size == 0 {
		return fmt.Errorf("%s is empty; name an object with bytes in it", r.link.place.url.Redacted())
	}
	if p.Close || r.link.closing() || p.Length < 0 && !p.Chunked && r.link.two == nil {
		r.account()
		r.unuse()
	}
	return nil
}

// smallObject is a size below which an object keeps no path busy.
const smallObject = 64 << 10

// request sends a request's head and reads the answer's, in the flow's time.
func (r *running) request(ctx context.Context, method string, length int64) (wire.Response, error) {
	defer r.link.wakeBy(ctx, r.until)()
	err := r.link.ask(method, length)
	if err == nil {
		var p wire.Response
		if p, err = r.link.answer(); err == nil {
			return p, nil
		}
	}
	return wire.Response{}, r.ended(ctx, err)
}

// ended says what an error on the connection means for the flow.
func (r *running) ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !r.host.Now().Before(r.until) || pump.IsDeadline(err):
		return errOver
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%v: %w", r.link.place.addr, err)
}

// read reads a body and counts it. Over a plain connection what is not buffered yet is read there, where nothing needs copying.
func (r *running) read(ctx context.Context, p *wire.Response) error {
	if r.link.secure != nil || p.Length < 0 {
		return r.pump(ctx, &readFrom{r.link.stream, r.link.body(p)}, 0)
	}
	buffered := min(int64(r.link.reader.Buffered()), p.Length)
	if buffered > 0 {
		if err := r.pump(ctx, &readFrom{r.link.stream, io.LimitReader(r.link.reader, buffered)}, uint64(buffered)); err != nil {
			return err
		}
	}
	if rest := p.Length - buffered; rest > 0 {
		return r.pump(ctx, r.link.raw, uint64(rest))
	}
	return nil
}

// readFrom is a connection that is read by way of another reader.
type readFrom struct {
	net.Conn
	from io.Reader
}

func (c *readFrom) Read(b []byte) (int, error) { return c.from.Read(b) }

// pump receives n bytes, 0 for all up to the end of what c has, until the flow's time is up.
func (r *running) pump(ctx context.Context, c net.Conn, n uint64) error {
	limit := n
	if left := r.left(); left > 0 && (limit == 0 || left < limit) {
		limit = left
	}
	out, err := pump.Receive(ctx, r.host, c, &r.received, pump.Options{Until: r.until, Limit: limit})
	r.moved += out.Bytes
	if out.Bytes > 0 {
		if r.out.First.IsZero() {
			r.out.First = r.headed // TLS hands over whole records: the first began to arrive with the head
		}
		if r.paid.IsZero() {
			r.paid = out.First
		}
		r.out.Last = out.Last
	}
	switch {
	case r.o.Bytes > 0 && r.moved >= r.o.Bytes:
		return errOver
	case out.End == pump.TimeUp:
		return errOver
	case out.End == pump.Full, out.End == pump.Closed && n == 0:
		return nil
	case out.End == pump.Closed:
		return r.ended(ctx, io.EOF)
	}
	return r.ended(ctx, err)
}

// post sends one body and reads the answer. It returns how long the next body shall be.
func (r *running) post(ctx context.Context, body int64) (next int64, err error) {
	if left := r.left(); left > 0 {
		body = int64(min(uint64(body), left))
	}
	l := r.link
	r.mu.Lock()
	l.heads += uint64(len(l.head("POST", body)))
	r.mu.Unlock()
	release := l.wakeBy(ctx, r.until)
	err = l.ask("POST", body)
	release()
	if err != nil {
		return body, r.ended(ctx, err)
	}
	o := pump.Options{Until: r.until, Limit: uint64(body), Rate: r.o.Rate}
	var out pump.Outcome
	if l.secure != nil {
		out, err = r.sendRecords(ctx, o)
	} else {
		out, err = pump.Send(ctx, r.host, l.stream, &r.sent, o)
	}
	r.moved += out.Bytes
	r.present = out.Bytes
	if out.End == pump.TimeUp {
		return body, errOver
	}
	if err != nil && ctx.Err() == nil && out.End == pump.Broken {
		return r.tooLarge(ctx, body, err)
	}
	if err != nil {
		return body, r.ended(ctx, err)
	}
	return r.answered(ctx, body)
}

// answered reads the answer to a body that was sent.
func (r *running) answered(ctx context.Context, body int64) (next int64, err error) {
	asked := r.host.Now()
	release := r.link.wakeBy(ctx, r.until)
	p, err := r.link.answer()
	if err == nil && p.Status/100 == 2 {
		err = r.link.skip(&p)
	}
	release()
	if err != nil {
		return body, r.ended(ctx, err)
	}
	if p.Status/100 != 2 {
		return r.shrink(body, &p)
	}
	r.waited += r.host.Now().Sub(asked)
	r.look()
	r.objects, r.size, r.good = r.objects+1, body, r.good+uint64(body)
	r.nextBody()
	if p.Close || r.link.closing() {
		r.account()
		r.unuse()
	}
	if r.o.Bytes > 0 && r.moved >= r.o.Bytes {
		return body, errOver
	}
	if r.o.Body == 0 && r.lost == "" {
		body = min(4*body, largestBody)
	}
	return body, nil
}

// nextBody makes the body that was sent one of those before.
func (r *running) nextBody() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before += r.sent.Bytes() + r.records.Load()
	r.sent = pump.Counter{}
	r.records.Store(0)
}

// tooLarge finds out why a server broke off in the middle of a body. What it said is on the connection, if it said anything.
func (r *running) tooLarge(ctx context.Context, body int64, cause error) (int64, error) {
	release := r.link.wakeBy(ctx, r.host.Now().Add(time.Second))
	p, err := r.link.answer()
	release()
	if err != nil || p.Status/100 == 2 {
		return body, r.ended(ctx, cause)
	}
	return r.shrink(body, &p)
}

// shrink goes on with smaller bodies where a server takes none so large, and otherwise returns why it refuses.
func (r *running) shrink(body int64, p *wire.Response) (int64, error) {
	const least = 64 << 10
	if p.Status != 413 || r.o.Body != 0 || body <= least {
		return body, r.link.refused("POST", p)
	}
	r.moved -= r.present
	r.lost = fmt.Sprintf("the server takes no body of %d bytes; smaller ones were sent", body)
	r.account()
	r.unuse()
	r.nextBody()
	r.mu.Lock()
	r.before = 0
	r.mu.Unlock()
	return max(least, body/4), nil
}

// account adds up what TLS cost on the flow's present connection.
func (r *running) account() {
	if s := r.link.secure; s != nil {
		r.tls.Handshake += s.handshake
		r.tls.Busy += s.busy()
		r.tls.Version, r.tls.Cipher = versionAndCipher(s)
	}
}

// finish makes the result.
func (r *running) finish(ctx context.Context, err error) error {
	r.out.Stopped = r.host.Now()
	if r.o.Direction == load.Upload {
		r.look()
	}
	if r.link != nil {
		r.account()
	}
	if r.tls.Version != "" {
		r.out.TLS = &r.tls
	}
	r.count()
	r.out.Warning = r.warning()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && !errors.Is(err, errOver):
		return err
	case r.out.Bytes == 0:
		return ErrNoData
	}
	return nil
}

// count says what arrived, and by whose count, and of an upload what this host's stack counted.
func (r *running) count() {
	if r.o.Direction == load.Download {
		r.out.Bytes, r.out.CountedBy = r.received.Bytes(), load.CountedByReads
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.past
	if r.link != nil {
		if info, err := r.counts(); err == nil {
			told = info
		}
	}
	r.out.Retransmits, r.out.HasRetransmits, r.out.CongestionControl = told.Retransmits, told.HasRetransmits, told.CongestionControl
	switch {
	case r.acks:
		r.out.Bytes, r.out.CountedBy = r.highest, load.CountedByAcks
		r.out.First, r.out.Last = r.first, r.grew
	case r.good > 0:
		r.out.Bytes, r.out.CountedBy = r.good, load.CountedByServer
		r.out.First, r.out.Last = r.began, r.out.Stopped
	default:
		r.out.Bytes, r.out.CountedBy = r.moved, load.NotCounted
		r.out.First, r.out.Last = r.began, r.out.Stopped
	}
	if r.out.Bytes == 0 {
		r.out.First, r.out.Last = time.Time{}, time.Time{}
	}
}

// windowBound says whether the server's HTTP/2 window, and not the path, may be what an upload shows: where it waited for room most of its time, and moved
// about as much in each shortest round trip as the window has.
func (r *running) windowBound() string {
	took := r.out.Stopped.Sub(r.began)
	if r.link == nil || r.link.two == nil || r.starved < took/2 {
		return ""
	}
	info, ok := r.TCPInfo()
	window := float64(r.link.two.initial)
	if !ok || info.MinRTT <= 0 || float64(r.out.Bytes)*info.MinRTT.Seconds()/took.Seconds() < 0.7*window {
		return ""
	}
	return fmt.Sprintf("the server's HTTP/2 window of %.0f bytes, and not the path, may be what it shows", window)
}

// warning says what weakens the flow.
func (r *running) warning() string {
	var all []string
	if r.lost != "" {
		all = append(all, r.lost)
	}
	if r.links > 0 {
		all = append(all, fmt.Sprintf("the server ended its connections: there were %d", r.links+1))
	}
	if text := r.windowBound(); text != "" {
		all = append(all, text)
	}
	const much = 0.05
	took := r.out.Stopped.Sub(r.began)
	if share := r.waited.Seconds() / took.Seconds(); share > much && r.objects > 1 {
		what := fmt.Sprintf("for the next of %d objects of %d bytes: name a larger one", r.objects, r.size)
		if r.o.Direction == load.Upload {
			what = fmt.Sprintf("for the server's answers to %d bodies, the last of %d bytes", r.objects, r.size)
		}
		all = append(all, fmt.Sprintf("%.0f %% of the time it waited %s", math.Round(100*share), what))
	}
	return strings.Join(all, "; ")
}
