// Package irtt probes with the irtt protocol: UDP echo requests to an irtt server, whose replies tell when it received and answered each
// and which others reached it.
//
// # Times
//
// A reply carries the server's stamps on two clocks. The monotonic ones give probe.Reply.Processing, the time from its receive stamp to its
// send stamp. The wall clock ones give one-way delays: Up is the server's receive stamp minus the wall clock reading of our own send
// stamp, Down the wall clock reading of our receive stamp minus the server's send stamp. The readings are those that were taken
// together with the stamps (a time.Time of the host's clock has both), so each delay is as right as the two wall clocks agreed
// at its own moment; they are signed and never clamped, and clocks that disagree by an hour show an hour. Where a wall
// clock was stepped between the two ends of one probe, that probe has none. A step between two probes shows as a jump of Up
// and Down by the same amount in opposite directions. The round-trip time uses no wall clock.
package irtt

import (
	"errors"
	"fmt"
	"hash"
	"slices"
	"time"

	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/probe"
)

// DefaultPort is the UDP port of irtt servers.
const DefaultPort = wire.Port

// MaxSafeLength is the longest Options.Length that passes a path of the least MTU of IPv6, 1280 bytes, unfragmented.
const MaxSafeLength = 1280 - 40 - 8

const maxLength = 65535 - 20 - 8 // payload of the longest UDP datagram over IPv4

// Options are what irtt has beyond probe.Options. The zero value is useful.
type Options struct {
	// HMAC makes the hash with the key that the server was started with, as package hmacmd5 does; nil for none. irtt's own option takes a key that
	// begins with 0x as hexadecimal digits.
	HMAC func() hash.Hash
	// Length is the UDP payload of each request and reply in bytes, less than the protocol's own fields need means just those: 60, or 76 with a
	// key, and 2 more where probes have a mark, with which a server of ours says how they came in. More than MaxSafeLength may not pass the path.
	Length int
	// Duration is how long the session is to last, which the server must grant in full. 0 asks for no end and takes what
	// the server grants: Send says so when it is over.
	Duration time.Duration
	// Opens is when the open request is sent, counted from the call of Dial, ascending; nil means 0, 250 ms, 500 ms, 1 s.
	Opens []time.Duration
	// OpenWait is when Dial gives up, counted like Opens; 0 means 1 s after the last of them. The context may end it sooner.
	OpenWait time.Duration
}

var defaultOpens = [...]time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond, time.Second}

const maxOpens = 32

// withDefaults returns a copy of o with its zero fields filled in, or an error that names the field that is out of range.
func (o Options) withDefaults() (Options, error) {
	if o.Opens == nil {
		o.Opens = defaultOpens[:]
	}
	o.Opens = slices.Clone(o.Opens)
	switch {
	case o.Length < 0 || o.Length > maxLength:
		return o, fmt.Errorf("irtt length %d: want 0 to %d bytes", o.Length, maxLength)
	case o.Duration < 0:
		return o, fmt.Errorf("irtt duration %v: want 0 or more", o.Duration)
	case len(o.Opens) == 0 || len(o.Opens) > maxOpens || o.Opens[0] < 0 || !slices.IsSorted(o.Opens):
		return o, fmt.Errorf("times of the irtt open requests %v: want 1 to %d, ascending from 0 or more", o.Opens, maxOpens)
	}
	last := o.Opens[len(o.Opens)-1]
	if o.OpenWait == 0 {
		o.OpenWait = last + time.Second
	}
	if o.OpenWait < last {
		return o, fmt.Errorf("irtt open wait %v: want no less than the last open request at %v", o.OpenWait, last)
	}
	return o, nil
}

// What a caller may want to tell apart.
var (
	// ErrNoAnswer says that nothing valid came in answer to the open requests.
	ErrNoAnswer = errors.New("no valid answer to the open request")
	// ErrRefused says that the server answered and opened no session.
	ErrRefused = errors.New("server opened no session")
	// ErrSessionEnded says that the server ended the session while probes were being sent.
	ErrSessionEnded = errors.New("server ended the session")
)

// RestrictedError says that the server would run the test only with another value of a parameter. The session is closed then.
type RestrictedError struct {
	Parameter      string // "interval", "duration", "length", "clock", "DSCP"
	Asked, Granted string // as people read them
	Advice         string
	// Interval and Duration are what the server grants where that is the Parameter, otherwise 0. An interval above the one asked for is the
	// server's minimum.
	Interval, Duration time.Duration
}

func (e *RestrictedError) Error() string {
	return fmt.Sprintf("server grants %s %s where %s was asked for; %s", e.Parameter, e.Granted, e.Asked, e.Advice)
}

// checkGranted returns an error unless the session runs as asked for. Fewer statistics and stamps are taken: what they
// would have told is then absent from the replies, and so is the mark that a request came in with. Replies may be as short as length, which is what the
// user wants.
func checkGranted(asked, granted wire.Params, length int) error {
	if granted.Version != wire.Version {
		return fmt.Errorf("server speaks irtt protocol version %d, want %d; use another server", granted.Version, wire.Version)
	}
	if granted.Interval != asked.Interval {
		return intervalError(asked.Interval, granted.Interval)
	}
	shortened := granted.Duration < asked.Duration
	if granted.Duration > asked.Duration || granted.Duration == 0 || shortened && asked.Duration != wire.Endless {
		return &RestrictedError{Parameter: "duration", Asked: asked.Duration.String(), Granted: granted.Duration.String(),
			Advice: "make the test shorter or use another server", Duration: granted.Duration}
	}
	if granted.Length < length || granted.Length > asked.Length {
		return &RestrictedError{Parameter: "length", Asked: fmt.Sprint(length), Granted: fmt.Sprint(granted.Length),
			Advice: "ask for no more than it grants"}
	}
	if granted.Stamps != wire.NoStamps && granted.Clock != asked.Clock {
		return &RestrictedError{Parameter: "clock", Asked: asked.Clock.String(), Granted: granted.Clock.String(),
			Advice: "use another server"}
	}
	if granted.DS != asked.DS {
		return &RestrictedError{Parameter: "DSCP", Asked: fmt.Sprintf("%#02x", asked.DS), Granted: fmt.Sprintf("%#02x", granted.DS),
			Advice: "its replies would not have the mark: probe without DSCP or use another server"}
	}
	return nil
}

func intervalError(asked, granted time.Duration) error {
	advice := "use its minimum"
	if granted < asked {
		advice = "it would forget the session between two probes: probe more often"
	}
	return &RestrictedError{Parameter: "interval", Asked: asked.String(), Granted: granted.String(), Advice: advice, Interval: granted}
}

// warning says what the granted parameters keep from the results, "" if nothing.
func warning(asked, granted wire.Params) string {
	var w string
	add := func(s string) {
		if w != "" {
			w += "; "
		}
		w += s
	}
	switch granted.Stamps {
	case wire.BothStamps:
	case wire.NoStamps:
		add("the irtt server gives no time stamps: RTT includes its own processing time, and there are no one-way delays")
	default:
		add("the irtt server gives only one time stamp per probe: RTT includes its own processing time")
	}
	if granted.Stats&wire.WindowStats == 0 {
		add("the irtt server does not tell which probes reached it: losses have no direction")
	}
	if asked.Duration == wire.Endless && granted.Duration < asked.Duration {
		add(fmt.Sprintf("the irtt server ends the session after %v", granted.Duration))
	}
	return w
}

var _ probe.Transport = (*Transport)(nil)
