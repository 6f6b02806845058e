package timestamp

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	"bufferbloat/probe"
)

const ms = time.Millisecond

func TestOneWayDelaysByTheClocks(t *testing.T) {
	noon := time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)
	night := time.Date(2020, 2, 29, 23, 59, 59, 999_500_000, time.UTC)
	for name, c := range map[string]struct {
		sent, at          time.Time
		receive, transmit uint32
		up, down          time.Duration
		ok                bool
	}{
		"at noon":                 {noon, noon.Add(40 * ms), 43_200_030, 43_200_031, 30 * ms, 9 * ms, true},
		"over midnight":           {night, night.Add(40 * ms), 29, 29, 29*ms + 500*time.Microsecond, 10*ms + 500*time.Microsecond, true},
		"a peer before midnight":  {night.Add(time.Second), night.Add(1040 * ms), 86_399_999, 86_399_999, -1000*ms - 500*time.Microsecond, 1040*ms + 500*time.Microsecond, true},
		"a clock that is behind":  {noon, noon.Add(40 * ms), 43_195_000, 43_195_000, -5 * time.Second, 5040 * ms, true},
		"not standard":            {noon, noon.Add(40 * ms), 43_200_030 | nonstandard, 43_200_030 | nonstandard, 0, 0, false},
		"in the wrong byte order": {noon, noon.Add(40 * ms), 0x1e2e9302, 0x1e2e9302, 0, 0, false},
		"one of them is not":      {noon, noon.Add(40 * ms), 1, day, 0, 0, false},
	} {
		up, down, ok := message{receive: c.receive, transmit: c.transmit}.oneWay(c.sent, c.at)
		if up != c.up || down != c.down || ok != c.ok {
			t.Errorf("%s: up %v, down %v, %v; want %v, %v, %v", name, up, down, ok, c.up, c.down, c.ok)
		}
	}
	if got := sinceMidnight(time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)); got != day-1000 {
		t.Errorf("before 1970: %d", got)
	}
}

// socket answers what it is sent, as answer changes it.
type socket struct {
	host.EchoConn
	answer func(m *message) bool
	in     chan message
}

func (s *socket) Identifier() (uint16, bool) { return 77, true }
func (s *socket) Close() error               { return nil }
func (s *socket) Send(b []byte, _ netip.AddrPort) (time.Time, error) {
	m, err := parse(b)
	m.kind, m.receive, m.transmit = reply, m.originate+3, m.originate+3
	if s.answer == nil || s.answer(&m) {
		s.in <- m
	}
	return time.Now(), err
}
func (s *socket) Receive(b []byte) (host.Datagram, error) {
	m := <-s.in
	return host.Datagram{N: copy(b, m.AppendTo(nil)), At: time.Now()}, nil
}

type network struct {
	host.Host
	socket *socket
}

func (n network) DialEcho(context.Context, netip.Addr, host.Options) (host.EchoConn, error) {
	return n.socket, nil
}
func (n network) Now() time.Time { return time.Now() }

func TestWhatIsAReply(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(m *message) bool
		want   probe.ReplyKind
	}{
		"what was asked for":      {nil, probe.Answer},
		"to another identifier":   {func(m *message) bool { m.id++; return true }, probe.Stray},
		"to a probe not yet sent": {func(m *message) bool { m.seq++; return true }, probe.Stray},
		"with another time":       {func(m *message) bool { m.originate++; return true }, probe.Corrupt},
	} {
		s := &socket{answer: c.answer, in: make(chan message, 1)}
		tr, err := Dial(t.Context(), network{socket: s}, netip.MustParseAddr("192.0.2.2"), probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		const seq = 1<<16 + 5 // the number on the wire has wrapped
		if _, err := tr.Send(seq); err != nil {
			t.Fatal(err)
		}
		r, err := tr.Receive()
		if err != nil || r.Kind != c.want || r.Kind == probe.Answer && (r.Seq != seq || !r.HasOneWay || r.Up > 3*ms || r.Up < 0) {
			t.Errorf("%s: %+v, %v; want kind %v", name, r, err, c.want)
		}
	}
}

func TestARealHostAnswersWithItsClock(t *testing.T) {
	n := testnet.New(t)
	n.Client.Inside(t, func() {
		k := host.NewKernel()
		tr, err := Dial(t.Context(), k, n.Server.IP, probe.Options{Interval: 20 * ms})
		if errors.Is(err, os.ErrPermission) {
			facility.Missing(t, "raw-icmp", err.Error())
		}
		if err != nil {
			t.Error(err)
			return
		}
		received := 0
		tally, err := probe.Run(t.Context(), t.Context(), k, tr, probe.Options{Interval: 20 * ms}, k.Now(), 10, func(s probe.Sample) {
			// One clock, cut to milliseconds at one end.
			if s.Outcome == probe.Received && s.HasOneWay && s.Up <= s.RTT && s.Up > -2*ms && s.Down >= 0 && s.Down <= s.RTT+2*ms {
				received++
			}
		})
		if err != nil || received+int(tally.SenderLate) != 10 || received == 0 {
			t.Errorf("%d received with true one-way delays, %+v, %v", received, tally, err)
		}
		if _, err := Dial(t.Context(), k, n.Server.IP6, probe.Options{}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("over IPv6: %v", err)
		}
	})
}

// What parses, encodes back to the same bytes but for the checksum.
func FuzzParse(f *testing.F) {
	f.Add(message{kind: reply, id: 1, seq: 2, originate: 3, receive: 4, transmit: 5}.AppendTo(nil))
	f.Add([]byte{13, 0, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		got := m.AppendTo(nil)
		copy(got[2:4], b[2:4])
		if !bytes.Equal(got, b[:MessageSize]) {
			t.Errorf("%x parses to %+v, encodes to %x", b, m, got)
		}
		if up, down, ok := m.oneWay(time.Unix(1e9, 0), time.Unix(1e9, 1)); ok && (up.Abs() > 12*time.Hour || down.Abs() > 12*time.Hour) {
			t.Errorf("%+v: up %v, down %v", m, up, down)
		}
	})
}
