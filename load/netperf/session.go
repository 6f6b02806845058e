package netperf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// openTest opens a control connection and asks for a test on it. Errors are as Check's.
func (c *Client) openTest(ctx context.Context, request wire.Request, server ServerInfo) (*control, wire.Response, error) {
	k, err := c.connect(ctx)
	if err != nil {
		return nil, wire.Response{}, err
	}
	var response wire.Response
	record, err := k.ask(ctx, request.AppendTo(k.begin), responseTimeout)
	if err == nil {
		response, err = wire.ParseResponse(record)
	}
	switch {
	case errors.Is(err, ErrClosed) && server.Name == "":
		err = fmt.Errorf("%w, as stock servers do for a %w: %s", ErrClosed, ErrPassphrase, c.passphraseAdvice())
	case errors.Is(err, ErrClosed):
		err = fmt.Errorf("%w, though it answered before: it may limit its connections; try fewer streams", ErrClosed)
	case err != nil:
	case response.Error != 0:
		err = refusedBy(record)
	case response.DataPort == 0:
		err = errors.New("the server could not bind its data address: it names port 0")
	}
	if err != nil {
		k.close()
		return nil, wire.Response{}, c.explain(ctx, err)
	}
	return k, response, nil
}

// refusedBy is the error of an answer with an error number.
func refusedBy(record []byte) error {
	p, err := wire.ParseRefusal(record)
	if err != nil {
		return err
	}
	return &RefusedError{Number: p.Number, Reason: p.Reason}
}

// family is netperf's number for the family of the server's address.
func (c *Client) family() wire.Family {
	if host.FamilyOf(c.Addr.Addr()) == host.IPv6 {
		return wire.IPv6
	}
	return wire.IPv4
}

// wholeSeconds rounds a time up to what a request can say.
func wholeSeconds(d time.Duration) int32 {
	return int32(min(math.Ceil(d.Seconds()), math.MaxInt32))
}

// outcome waits for the server's last message of a test in a goroutine of its own.
type outcome struct {
	ctl     *control
	layout  wire.Layout
	arrived chan struct{} // closed when the wait is over; then these are valid
	results wire.Results
	err     error // why there are none
}

// await begins to wait; ended is called where the results can't come any more.
func (k *control) await(layout wire.Layout, ended func(error)) *outcome {
	o := &outcome{ctl: k, layout: layout, arrived: make(chan struct{})}
	go func() {
		defer close(o.arrived)
		record := make([]byte, wire.Size)
		if _, err := io.ReadFull(k.conn, record); err != nil {
			o.err = err
			ended(err)
			return
		}
		o.results, o.err = wire.ParseResults(record, layout)
		if o.err == nil && o.results.Error != 0 {
			o.err = refusedBy(record)
			ended(o.err)
		}
	}()
	return o
}

// within waits for the results until ctx is done, for d at most, and reports whether they came. Then the goroutine is gone.
func (o *outcome) within(ctx context.Context, d time.Duration) bool {
	release := o.ctl.wakeBy(ctx, o.ctl.host.Now().Add(d))
	defer release()
	<-o.arrived
	return o.err == nil
}
