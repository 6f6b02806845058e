// Package tcp probes with TCP handshakes: each probe is one connection attempt. It stands in where ICMP is not permitted and no
// irtt server runs, as all it needs is a TCP port that answers.
package tcp

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/internal/transact"
)

// MaxInFlight bounds the attempts that wait for an answer, and with them the open sockets. A probe beyond it is not sent.
const MaxInFlight = 256

// initialTimeout is the least time after which TCP sends its SYN again (RFC 6298 2.1; Linux and others use the same).
const initialTimeout = time.Second

// Transport is a probe.Transport that opens a connection for each probe and closes it at once (with a reset, where the stack can).
//
// The RTT runs from just before the connection is asked for until the stack says that it stands, both stamped by this program, so its
// delay in running is part of it. A refusal by the peer (RST) is a round trip like an acceptance and an Answer; Refused counts
// them, because a firewall on the way can send one in the peer's name. An ICMP error is Rejected, and so is a host or network
// that cannot be reached, whoever found that out. Any other failure to open a connection is our own: NotSent.
//
// TCP repeats a SYN that is not answered in time, so a lost one would show as an RTT of a second and more. It does not:
//
//   - Where the stack knows that nothing was sent again, the time from ask to answer is the RTT, however long.
//   - Where a SYN was sent again and the RTT that the stack measured says that the answer was to the first one, likewise: the path is
//     slower than TCP's first timeout. (Linux measures it by the time-stamp option, RFC 7323.) Where it says that the answer was to a later
//     SYN, the first one or its answer was lost, and so is the probe: nothing is reported for it.
//   - Where the stack does not tell, an answer within the first second is one to the first SYN. The time of a later one cannot be told:
//     such a probe is Invalid.
//
// An attempt is given up after Options.Deadline, so no reply is Late.
type Transport struct {
	*transact.Transport
	host    host.Host
	target  netip.AddrPort
	socket  host.Options
	refused atomic.Uint64
}

// Dial returns a Transport of handshakes with target, from sockets with o.Socket's settings. It opens nothing yet: whether target
// answers shows with the first probe.
func Dial(h host.Host, target netip.AddrPort, o probe.Options) (*Transport, error) {
	o, err := o.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("probe with TCP handshakes: %w", err)
	}
	if !target.IsValid() || target.Port() == 0 {
		return nil, fmt.Errorf("probe with TCP handshakes: %v is no address and port", target)
	}
	t := &Transport{host: h, target: target, socket: o.Socket}
	t.Transport = transact.New(h, transact.Options{What: "TCP handshakes", Limit: MaxInFlight, Deadline: o.Deadline}, t.attempt)
	return t, nil
}

// Refused returns how many of the answers were refusals. It may be called from any goroutine.
func (t *Transport) Refused() uint64 { return t.refused.Load() }

// Remarks says how many answers were refusals. Call it when the series is over.
func (t *Transport) Remarks() []probe.Remark {
	n := t.Refused()
	if n == 0 {
		return nil
	}
	return []probe.Remark{{Code: "tcp_refused", Text: fmt.Sprintf(
		"%d answers were refusals (RST): a round trip, though to whoever sent it; a firewall on the way may have, in the name of %v", n, t.target)}}
}

// attempt is one probe. The stamp is taken here, beside the call, and not before the goroutine runs.
func (t *Transport) attempt(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
	sent := t.host.Now()
	begun(sent)
	conn, err := t.host.DialTCP(ctx, t.target, t.socket)
	at := t.host.Now()
	var end ending
	if err != nil {
		end = failed(err, at.Sub(sent))
	} else {
		info, infoErr := t.host.TCPInfo(conn)
		end = established(at.Sub(sent), info, infoErr == nil && info.HasRetransmits)
		transact.Shut(conn)
	}
	if err != nil && end == answered {
		t.refused.Add(1)
	}
	r := probe.Reply{At: at}
	switch end {
	case silent:
		return r, false
	case untimed:
		r.At = time.Time{}
	case rejected, notSent:
		return transact.FailedToConnect(ctx, err)
	}
	return r, true
}

// ending is how an attempt ended.
type ending uint8

const (
	answered ending = iota // the first SYN was
	untimed                // a SYN was, and it cannot be told which
	silent                 // the first SYN was not
	rejected               // by an ICMP error, or no route
	notSent
)

// established judges a handshake that took so long; info counts with hasInfo.
func established(took time.Duration, info host.TCPInfo, hasInfo bool) ending {
	switch {
	case !hasInfo:
		return answeredWithin(took)
	case info.Retransmits == 0:
		return answered
	case info.RTT == 0:
		return untimed
	case took-info.RTT < initialTimeout/2: // an answer to a later SYN would have come at least initialTimeout after RTT
		return answered
	}
	return silent
}

func answeredWithin(took time.Duration) ending {
	if took < initialTimeout {
		return answered
	}
	return untimed
}

// failed judges an attempt that ended with err after so long.
func failed(err error, took time.Duration) ending {
	switch {
	case transact.IsUnreachable(err):
		return rejected
	case transact.IsSilence(err):
		return silent
	case transact.IsRefusal(err):
		return answeredWithin(took)
	}
	return notSent
}
