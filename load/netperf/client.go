// Package netperf loads a path with bulk TCP flows, transactions and datagrams from and to a netperf server.
//
// It speaks to netserver 2.6 and 2.7 and to our own server. Every flow, and every test of transactions, has a control connection and a data connection of its
// own, both from the client to the server. All waiting is bounded: 7 s for a control connection, 9 s for a data connection,
// 5 s plus three round trips for an answer to Check and 15 s for the answer to a flow's request; at the end of an upload, three
// times the highest round-trip time seen plus 2 s from the last acknowledgement on, at most 30 s in all, for what is still under way,
// and once more as long without acknowledgements for the results. A stock server takes 4 s beyond the time that it was asked for to end a test
// whose end it does not see; that and 5 s is how long the results of transactions and of datagrams are waited for.
package netperf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load/internal/remote"
)

const (
	connectTimeout  = 7 * time.Second // longer than a round trip of five seconds, as a full satellite link has
	dataTimeout     = 9 * time.Second
	checkTimeout    = 5 * time.Second
	responseTimeout = 15 * time.Second
	quiet           = 2 * time.Second // a record that has begun and stands still for so long is no record
	goodbye         = 2 * time.Second // for the server to close its side
)

// Client knows a server. Its methods may be called from several goroutines; its fields must not change once it is used.
type Client struct {
	Host       host.Host
	Server     string         // the server as the user named it, for messages; "" where it was given as an address
	Addr       netip.AddrPort // its control port
	Passphrase string         // "" where the server wants none
	Socket     host.Options   // of all connections; a flow's own marks and congestion control are set on its data connection
	// DataAddr is where data goes, which the server is told; the zero Addr is where the control connection leads. DataSource is the local address
	// of the data sockets, over Socket's.
	DataAddr, DataSource netip.Addr
	// Ask has each test ask on its own control connection what the server is, where its options do not say. It costs a round trip, and no
	// connection as Check does.
	Ask bool
	// Adjust, where it is not nil, is called with each request before it is sent: for what no option has a word for.
	Adjust func(*wire.Request)
}

// ServerInfo is what Check learned of a server. The zero value stands for a server that was not asked.
type ServerInfo struct {
	Name   string      // "netserver 2.7", "netserver 2.6", our own server's name and version; "netserver" where it does not tell
	Layout wire.Layout // form of its results; unknown where it does not tell
	Setup  time.Duration
	Answer time.Duration // from the first request to its answer
	Addr   netip.AddrPort
}

// Check connects, shows the passphrase and asks the server what it is, so that a server that cannot be used is known before
// any load or probe is sent. Setup in what it returns is the time of the TCP handshake. An error says what the user can do; it
// wraps ErrUnreachable, ErrPassphrase, ErrSilent, ErrTooOld, ErrNotNetserver or a *RefusedError, or it is the cause of ctx.
func (c *Client) Check(ctx context.Context) (ServerInfo, error) {
	k, err := c.connect(ctx)
	if err != nil {
		return ServerInfo{}, err
	}
	defer k.close()
	info := ServerInfo{Setup: k.setup, Addr: k.remote}
	record, err := k.ask(ctx, wire.TypeSysInfo.AppendTo(k.begin, -1), checkTimeout+3*k.setup)
	if errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w, as stock servers do for a %w: %s", ErrClosed, ErrPassphrase, c.passphraseAdvice())
	}
	if err != nil {
		return ServerInfo{}, c.explain(ctx, err)
	}
	info.Answer = k.answered.Sub(k.asked)
	if err := info.read(record); err != nil {
		return ServerInfo{}, c.explain(ctx, err)
	}
	k.bye(ctx)
	return info, nil
}

// read fills in what the answer to a request for system information tells.
func (s *ServerInfo) read(record []byte) error {
	_, word, err := wire.ParseType(record)
	if err != nil {
		return err
	}
	switch number := wire.ErrorNumber(word); number {
	case 0:
	case wire.UnknownTest:
		s.Name = "netserver" // it does not know the question, which is its right
		return nil
	default:
		return &RefusedError{Number: number}
	}
	sys, err := wire.ParseSysInfo(record)
	if err != nil {
		return fmt.Errorf("%w: %w; is the port right?", ErrNotNetserver, err)
	}
	switch sys.System {
	case wire.Deprecated:
		s.Name, s.Layout = "netserver 2.7", wire.Layout27
	case wire.OurName:
		s.Name, s.Layout = wire.OurName+" "+sys.Release, wire.Layout27
	default:
		s.Name, s.Layout = "netserver 2.6", wire.Layout22
	}
	return nil
}

func (c *Client) passphraseAdvice() string {
	if c.Passphrase == "" {
		return "if this server wants a passphrase, give it"
	}
	return "check the passphrase; public servers change theirs often"
}

func (c *Client) remote() remote.Server {
	return remote.Server{Protocol: "netperf", Program: "netserver", Name: c.Server, Addr: c.Addr}
}

// explain puts the server's name before err, unless it is not the server's fault that ctx is done.
func (c *Client) explain(ctx context.Context, err error) error { return c.remote().Explain(ctx, err) }
