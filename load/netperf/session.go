package netperf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// openTest opens a control connection and asks for a test on it; with Client.Ask it fills in server. Errors are as Check's.
func (c *Client) openTest(ctx context.Context, request wire.Request, server *ServerInfo) (*control, wire.Response, error) {
	k, err := c.connect(ctx)
	if err != nil {
		return nil, wire.Response{}, err
	}
	if c.DataAddr.IsValid() {
		request.ServerAddr = wire.AddrFrom(c.DataAddr)
	}
	if c.Adjust != nil {
		c.Adjust(&request)
	}
	var record []byte
	if c.Ask && server.Name == "" {
		if record, err = k.ask(ctx, wire.TypeSysInfo.AppendTo(k.begin, -1), responseTimeout); err == nil {
			err = server.read(record)
		}
		if server.Layout != wire.UnknownLayout && !strings.HasPrefix(server.Name, "netserver 2.7") {
			server.Layout = wire.Layout22 // our server takes who asks on the connection of a test for a 2.6 client
		}
	}
	var response wire.Response
	if err == nil {
		record, err = k.ask(ctx, request.AppendTo(k.begin), responseTimeout)
	}
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

// family is netperf's number for the family of the address that data goes to.
func (c *Client) family() wire.Family {
	a := c.Addr.Addr()
	if c.DataAddr.IsValid() {
		a = c.DataAddr
	}
	if host.FamilyOf(a) == host.IPv6 {
		return wire.IPv6
	}
	return wire.IPv4
}

// dataAt is where a test's data goes: by default to the control connection's own remote address, since a second look-up of the server's name
// could lead to another machine.
func (c *Client) dataAt(k *control, port uint16) netip.AddrPort {
	if c.DataAddr.IsValid() {
		return netip.AddrPortFrom(c.DataAddr, port)
	}
	return netip.AddrPortFrom(k.remote.Addr(), port)
}

// dataSocket are the settings of a test's data socket.
func (c *Client) dataSocket(mark dscp.CodePoint, congestion string) host.Options {
	o := c.Socket
	if c.DataSource.IsValid() {
		o.Source = c.DataSource
	}
	if mark != 0 {
		o.DSCP = mark
	}
	if congestion != "" {
		o.CongestionControl = congestion
	}
	return o
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
	at      time.Time // when they were complete
	err     error     // why there are none
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
		o.at = k.host.Now()
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
