package netperf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
)

// FlowOptions describe one flow. Direction and Length must be set.
type FlowOptions struct {
	Direction load.Direction
	Length    time.Duration // from Run on; then the flow begins to end
	// Wait is the longest time between Open and Run that the server is asked to allow for, since its own timer starts with Open;
	// 0 means 22 s, which is as long as the Open of another flow can take.
	Wait                    time.Duration
	DSCP                    dscp.CodePoint // mark of what this end sends on the data connection, over Client.Socket's
	ServerDSCP              dscp.CodePoint // mark of what the server sends; 0 leaves it alone
	CongestionControl       string         // of this end, over Client.Socket's; "" leaves it alone
	ServerCongestionControl string         // of the server's end; "" leaves it alone. A server may ignore it
	DataPort                uint16         // port that the server shall take the data connection at; 0: any
	ServerCPU               bool           // ask for the server's CPU use
	Bytes                   uint64         // of payload, after which the flow begins to end; 0: it ends by its time alone
	// Rate is what an upload sends at most; 0 is no bound. A server can't be asked for one: a download with a rate does not open.
	Rate bitrate.Bitrate
	// Size is the most bytes of one write of the sender, on either end; 0 leaves it to each. Buffer bounds what this end reads at once, so that
	// many downloads take little memory; 0 is 128 KiB.
	Size, Buffer int
	Server       ServerInfo // what Check found; without it the server's retransmits and congestion control are unknown
}

// Flow is one bulk flow. Open and Run are called once, in this order, from one goroutine; Delivered at any time from any.
type Flow struct {
	client *Client
	o      FlowOptions

	ctl      *control
	response wire.Response
	results  wire.Results // valid after Run, with hasResults
	received pump.Counter
	sent     pump.Counter

	mu     sync.Mutex
	data   net.Conn // nil until it stands
	base   uint64   // acknowledged before any payload was: the SYN where the stack counts it
	acked  uint64   // highest seen; only an upload's
	acks   bool     // the stack tells
	rtt    time.Duration
	ackAt  time.Time // when acked last grew, as far as was looked
	first  time.Time // when it first grew
	ended  bool      // data is closed, the figures stand
	writes uint64    // all that was written, valid with ended or after the last write
	final  bool      // writes is valid

	hasResults bool
}

// NewFlow returns a flow that is not opened.
func (c *Client) NewFlow(o FlowOptions) *Flow {
	if o.Wait == 0 {
		o.Wait = connectTimeout + responseTimeout
	}
	return &Flow{client: c, o: o}
}

// Open connects and has the server prepare the flow, so that several flows can be opened first and then run together. A flow
// that was opened must be run or closed. Errors are as Check's.
func (f *Flow) Open(ctx context.Context) error {
	if f.o.Direction != load.Download && f.o.Direction != load.Upload || f.o.Length <= 0 {
		return fmt.Errorf("a flow wants a direction and a length, not %v of %v", f.o.Direction, f.o.Length)
	}
	if f.o.Rate != 0 && f.o.Direction == load.Download {
		return f.client.explain(ctx, fmt.Errorf("a download of %v: this protocol can't ask the server for a rate: %w", f.o.Rate, errors.ErrUnsupported))
	}
	k, response, err := f.client.openTest(ctx, f.request(), &f.o.Server)
	if err != nil {
		return err
	}
	f.ctl, f.response = k, response
	return nil
}

// request is what the server is asked for. Its length only bounds the server: the client's own time decides, so the server gets
// the time until Run, and what an upload may need to drain or a download to be ended from this side, on top.
func (f *Flow) request() wire.Request {
	test, more := wire.TCPMaerts, 2*time.Second
	if f.o.Direction == load.Upload {
		test, more = wire.TCPStream, f.mostGrace()
	}
	r := wire.Omni(test, f.client.family(), wholeSeconds(f.o.Length+f.o.Wait+more))
	if f.o.Bytes > 0 && f.o.Bytes <= math.MaxInt32 {
		r.Length = -int32(f.o.Bytes) // no longer than it takes, whatever the server's limit
	}
	r.DataPort, r.Congestion = f.o.DataPort, f.o.ServerCongestionControl
	if f.o.ServerDSCP != 0 {
		r.DS = int32(f.o.ServerDSCP.Byte())
	}
	if f.o.Size > 0 && f.o.Direction == load.Download {
		r.SendSize = int32(min(f.o.Size, math.MaxInt32))
	}
	if f.o.ServerCPU {
		r.Flags |= wire.FlagCPU
	}
	return r
}

// Shorten has Run take less time than the options say, before it is called.
func (f *Flow) Shorten(by time.Duration) { f.o.Length = max(0, f.o.Length-by) }

// Close gives up a flow that was opened and will not be run.
func (f *Flow) Close() {
	if f.ctl != nil {
		f.ctl.close()
	}
}

// Run runs the flow to its end, opening it first if it is not. The Result is what was counted, and is true also beside an
// error, which then says why there is no more of it: a *DataError, ErrServerGone, ErrCutShort, ErrNoData, a *RefusedError, or the cause of
// ctx. Once ctx is done Run drops what is still queued and returns within a second.
func (f *Flow) Run(ctx context.Context) (load.Result, error) {
	if f.ctl == nil {
		if err := f.Open(ctx); err != nil {
			return load.Result{}, err
		}
	}
	defer f.ctl.close()
	until := f.client.Host.Now().Add(f.o.Length)
	data, setup, err := f.connect(ctx)
	if err != nil {
		return load.Result{}, f.client.explain(ctx, err)
	}
	r := &running{Flow: f, host: f.client.Host, data: data, until: until, setup: setup}
	r.out.Connected = r.host.Now()
	if f.response.DS >= 0 && f.response.DS <= 255 {
		r.out.RemoteDS, r.out.HasRemoteDS = uint8(f.response.DS), true
	}
	r.sayPace(f.response)
	f.connected(data)
	err = r.run(ctx)
	r.out.Warning = strings.Join(r.warnings, "; ")
	f.results, f.hasResults = r.server.results, r.server.err == nil
	return r.out, err
}

// connect opens the data connection.
func (f *Flow) connect(ctx context.Context) (net.Conn, time.Duration, error) {
	h, o, at := f.client.Host, f.client.dataSocket(f.o.DSCP, f.o.CongestionControl), f.client.dataAt(f.ctl, f.response.DataPort)
	wait := dataTimeout + 2*f.ctl.setup // the link may be loaded by now
	dialing, cancel := host.WithTimeout(ctx, h, wait)
	defer cancel()
	start := h.Now()
	conn, err := h.DialTCP(dialing, at, o)
	switch {
	case err == nil:
		return conn, h.Now().Sub(start), nil
	case isOptionError(err):
		return nil, 0, fmt.Errorf("data connection: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v: %w", wait.Round(time.Second), err)
	}
	return nil, 0, &DataError{At: at, Err: err}
}

// isOptionError tells a socket option that this host does not have (a congestion control that is not there, or not for everyone)
// from a connection that was not made.
func isOptionError(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)
}

// Delivered returns how many bytes have arrived so far: read here (download), or acknowledged by the server's stack (upload).
// It is false before data can flow and where the stack does not tell. It never falls.
func (f *Flow) Delivered() (uint64, bool) {
	if f.o.Direction == load.Download {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.received.Bytes(), f.data != nil
	}
	f.look()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.acked, f.acks
}

// TCPInfo returns what this host's stack knows of the data connection now, or false before it stands, after its end, and where the stack does not tell.
// It is safe to call at any time from any goroutine.
func (f *Flow) TCPInfo() (host.TCPInfo, bool) { return f.look() }

// Sent returns how many bytes this end has written so far, which is more than has arrived.
func (f *Flow) Sent() uint64 { return f.sent.Bytes() }

// Response returns the server's answer to the request of an open flow.
func (f *Flow) Response() wire.Response { return f.response }

// Results returns the server's last message, or false before the end of Run and where there was none.
func (f *Flow) Results() (wire.Results, bool) { return f.results, f.hasResults }

// Server returns what is known of the server: what the options said, or with Client.Ask what it answered to Open.
func (f *Flow) Server() ServerInfo { return f.o.Server }

// connected publishes the data connection to Delivered.
func (f *Flow) connected(data net.Conn) {
	info, err := f.client.Host.TCPInfo(data)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data, f.rtt = data, info.RTT
	f.acks = err == nil && info.HasBytesAcked && f.o.Direction == load.Upload
	f.base = info.BytesAcked
}

// look asks the stack what was acknowledged. It is called from the sampler's goroutine and from the flow's own. The connection
// stays open while it looks, because closing takes the same lock.
func (f *Flow) look() (host.TCPInfo, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil || f.ended {
		return host.TCPInfo{}, false
	}
	info, err := f.client.Host.TCPInfo(f.data)
	if err != nil {
		return host.TCPInfo{}, false
	}
	f.rtt = max(f.rtt, info.RTT)
	if !info.HasBytesAcked || info.BytesAcked < f.base {
		return info, true
	}
	acked := info.BytesAcked - f.base
	if f.final {
		acked = min(acked, f.writes) // the FIN is acknowledged too
	}
	if acked > f.acked {
		f.acked, f.ackAt = acked, f.client.Host.Now()
		if f.first.IsZero() {
			f.first = f.ackAt
		}
	}
	return info, true
}

// wrote says that no more will be written than n bytes.
func (f *Flow) wrote(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes, f.final = n, true
	f.acked = min(f.acked, n)
}

// end closes the data connection; with drop, what is queued here is thrown away instead of sent.
func (f *Flow) end(drop bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	if l, ok := f.data.(interface{ SetLinger(int) error }); ok && drop {
		_ = l.SetLinger(0)
	}
	_ = f.data.Close()
}
