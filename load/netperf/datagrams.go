package netperf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pace"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

// DatagramOptions describe a UDP_STREAM: datagrams to the server, without a word from it until the end. Length must be set.
type DatagramOptions struct {
	Length     time.Duration
	Size       int             // bytes of payload in each; 0 means 1400
	Rate       bitrate.Bitrate // of payload; 0 means as fast as this host's queue takes them
	DSCP       dscp.CodePoint  // mark of what is sent, over Client.Socket's
	ServerDSCP dscp.CodePoint
	DataPort   uint16     // port that the server shall receive at; 0: any
	Server     ServerInfo // what Check found
}

// DatagramResult is what a UDP_STREAM did. The protocol says how many datagrams came, not which.
type DatagramResult struct {
	Size        int
	Sent        uint64 // datagrams that left
	Unsent      uint64 // that this host's queue refused
	Skipped     uint64 // left out, since this host came to them so late that they would have been a burst
	Received    uint64 // by the server's count; valid with HasReceived
	Bytes       uint64 // of payload that the server received
	HasReceived bool
	First, Last time.Time // the first and the last one left
	RemoteDS    uint8
	HasRemoteDS bool
	Warning     string
}

// fullPause is how long a sender without a rate leaves a full queue alone.
const fullPause = time.Millisecond

// SendDatagrams runs a UDP_STREAM. The result is true also beside an error.
func (c *Client) SendDatagrams(ctx context.Context, o DatagramOptions) (DatagramResult, error) {
	if o.Size == 0 {
		o.Size = 1400
	}
	if o.Length <= 0 || o.Size < 1 || o.Size > 65507 || o.Rate < 0 {
		return DatagramResult{}, fmt.Errorf("datagrams of %d bytes for %v at %v: want 1 to 65507 bytes and a time", o.Size, o.Length, o.Rate)
	}
	r := wire.Omni(wire.UDPStream, c.family(), wholeSeconds(o.Length))
	r.DataPort, r.RecvSize = o.DataPort, int32(o.Size)
	if o.ServerDSCP != 0 {
		r.DS = int32(o.ServerDSCP.Byte())
	}
	k, response, err := c.openTest(ctx, r, &o.Server)
	if err != nil {
		return DatagramResult{}, err
	}
	defer k.close()
	out := DatagramResult{Size: o.Size}
	if response.DS >= 0 && response.DS <= 255 {
		out.RemoteDS, out.HasRemoteDS = uint8(response.DS), true
	}
	phase, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results := k.await(o.Server.Layout, func(error) { stop(errControl) })
	err = c.sendDatagrams(phase, o, c.dataAt(k, response.DataPort), &out)
	// Where none of the empty datagrams came through the server ends 4 s beyond its length.
	came := results.within(ctx, leastGrace+5*time.Second+3*k.setup)
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case came:
		k.bye(ctx)
		out.Received, out.Bytes, out.HasReceived = uint64(results.results.RxCalls), results.results.RxBytes, true
	case err == nil || errors.Is(err, errControl):
		if err = results.err; !pump.IsDeadline(err) {
			err = gone(nil, results.err)
		}
		err = fmt.Errorf("the server did not say what it received: %w", err)
	}
	if err != nil {
		return out, c.explain(ctx, err)
	}
	return out, c.judge(ctx, &out)
}

// judge says what is wrong with a result that is complete.
func (c *Client) judge(ctx context.Context, out *DatagramResult) error {
	var warnings []string
	if out.Received == 0 {
		return c.explain(ctx, fmt.Errorf("%w: the server received none of %d datagrams", ErrNoData, out.Sent))
	}
	if out.Received > out.Sent || out.Bytes > out.Sent*uint64(out.Size) {
		got, bytes := out.Received, out.Bytes
		out.Received, out.Bytes, out.HasReceived = 0, 0, false
		return c.explain(ctx, fmt.Errorf("the server says that it received %d datagrams, %d bytes, of the %d datagrams of %d bytes that were sent; "+
			"its figure is not used, and there is no other (a path that doubles datagrams does this too)", got, bytes, out.Sent, out.Size))
	}
	if out.Unsent > 0 {
		warnings = append(warnings, fmt.Sprintf("this host's own queue refused %d datagrams", out.Unsent))
	}
	if out.Skipped > 0 {
		warnings = append(warnings, fmt.Sprintf("this host left out %d datagrams that it came to too late", out.Skipped))
	}
	out.Warning = strings.Join(warnings, "; ")
	return nil
}

// sendDatagrams is the data phase.
func (c *Client) sendDatagrams(ctx context.Context, o DatagramOptions, to netip.AddrPort, out *DatagramResult) error {
	h := c.Host
	conn, err := h.DialUDP(ctx, to, c.dataSocket(o.DSCP, ""))
	if err != nil {
		return fmt.Errorf("data socket: %w", err)
	}
	defer conn.Close()
	message := make([]byte, o.Size)
	copy(message, pump.Payload())
	send := func(uint64, time.Time) error {
		at, err := conn.Send(message, netip.AddrPort{})
		switch {
		case err == nil:
			out.Last = at
			if out.First.IsZero() {
				out.First = at
			}
		case !errors.Is(err, host.ErrNoBuffer):
			return &DataError{At: to, Err: err}
		}
		return err
	}
	until := h.Now().Add(o.Length)
	if o.Rate > 0 {
		var sent pace.Sent
		sent, err = pace.SendDatagrams(ctx, h, pace.Datagrams{Size: o.Size, Rate: o.Rate, Until: until}, send)
		out.Sent, out.Unsent, out.Skipped = sent.Sent, sent.Unsent, sent.Skipped
	} else {
		err = flood(ctx, h, until, out, send)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	for range 3 { // which end the test, though any of them may be lost
		_, _ = conn.Send(nil, netip.AddrPort{})
	}
	return nil
}

// flood sends as fast as this host's queue takes it.
func flood(ctx context.Context, h host.Host, until time.Time, out *DatagramResult, send func(uint64, time.Time) error) error {
	for n := uint64(0); ; n++ {
		now := h.Now()
		if !now.Before(until) {
			return nil
		}
		if n%64 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch err := send(n, now); {
		case err == nil:
			out.Sent++
		case errors.Is(err, host.ErrNoBuffer):
			out.Unsent++
			if err := h.SleepUntil(ctx, now.Add(fullPause)); err != nil {
				return err
			}
		default:
			return err
		}
	}
}
