package lab

import (
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// growth completes the stack's CUBIC for one connection. In congestion avoidance a window of cwnd segments grows by (target-cwnd)/cwnd
// segments per acknowledged segment (RFC 9438, 4.4), which is nearly always less than one; the stack computes that and then cuts it to
// a whole number, so its window stays where the last loss put it, at 0.7 of the full one, for seconds, and then bursts. A queue
// would be seen at 0.7 of its depth in place of the 0.96 that CUBIC keeps it at in the median. growth carries the fractions that the stack drops.
//
// The stack offers no way to its congestion window from outside, so this reaches for its fields by name and touches them only while the
// stack itself holds the endpoint's lock. With a stack whose fields have other names connections go without; a test would fail then.
type growth struct {
	clock    tcpip.Clock
	sender   *tcp.TCPSenderState
	rtt      *tcp.TCPRTTState
	cubic    *tcp.TCPCubicState
	seen     seqnum.Value // what was acknowledged at the last look
	fraction float64      // of a segment that the window has grown beyond sender.SndCwnd
}

// newGrowth returns nil where the endpoint is not connected, or not as this package knows it.
func newGrowth(clock tcpip.Clock, e tcpip.Endpoint) *growth {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return nil
	}
	ep.LockUser()
	defer ep.UnlockUser()
	snd := reflect.ValueOf(ep).Elem().FieldByName("snd")
	if !snd.IsValid() || snd.Kind() != reflect.Pointer || snd.IsNil() {
		return nil
	}
	cc := snd.Elem().FieldByName("cc")
	if !cc.IsValid() || cc.Kind() != reflect.Interface || cc.Elem().Kind() != reflect.Pointer {
		return nil
	}
	sender := field[tcp.TCPSenderState](snd.Elem(), "TCPSenderState")
	rtt := field[tcp.TCPRTTState](snd.Elem(), "rtt", "TCPRTTState")
	cubic := field[tcp.TCPCubicState](cc.Elem().Elem(), "TCPCubicState")
	if sender == nil || rtt == nil || cubic == nil {
		return nil
	}
	return &growth{clock: clock, sender: sender, rtt: rtt, cubic: cubic, seen: sender.SndUna}
}

// field returns a pointer to a field of v, reached by names one below the other; nil where there is none of type T.
func field[T any](v reflect.Value, names ...string) *T {
	for _, name := range names {
		if v.Kind() != reflect.Struct {
			return nil
		}
		v = v.FieldByName(name)
		if !v.IsValid() {
			return nil
		}
	}
	if !v.CanAddr() || v.Type() != reflect.TypeFor[T]() {
		return nil
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// grow adds what was acknowledged since the last call. It is called as the connection sends a segment, by the goroutine that holds the
// endpoint's lock.
func (g *growth) grow() {
	s := g.sender
	acked := float64(g.seen.Size(s.SndUna)) / float64(max(s.MaxPayloadSize, 1))
	g.seen = s.SndUna
	if s.FastRecovery.Active || s.SndCwnd < s.Ssthresh || s.SndCwnd < 1 {
		g.fraction = 0
		return
	}
	since := g.clock.NowMonotonic().Sub(g.cubic.T)
	t := (since + g.rtt.SRTT).Seconds() - g.cubic.K
	cwnd := float64(s.SndCwnd)
	target := min(g.cubic.C*t*t*t+g.cubic.WMax, 1.5*cwnd) // RFC 9438, 4.2
	if target <= cwnd {
		return
	}
	g.fraction += acked * (target - cwnd) / cwnd
	whole := int(g.fraction)
	s.SndCwnd += whole
	g.fraction -= float64(whole)
}
