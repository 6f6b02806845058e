package netperf

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

// errClientGone ends a test whose control connection has ended.
var errClientGone = errors.New("the client is gone")

// session is one control connection. Its goroutine is the only one that writes to the connection and sets its deadlines; a second
// one reads records.
type session struct {
	*service
	conn    net.Conn
	peer    netip.AddrPort
	layout  wire.Layout   // of the results that this client understands
	records chan []byte   // closed when the connection has ended
	gone    chan struct{} // closed when nothing of the session is left
}

func newSession(v *service, conn net.Conn) *session {
	// The buffer lets the reader see the end of the connection behind a request that came too early.
	return &session{service: v, conn: conn, peer: host.AddrPortOf(conn.RemoteAddr()), layout: wire.Layout27, records: make(chan []byte, 4),
		gone: make(chan struct{})}
}

// run serves the connection to its end, and returns when nothing of it is left. The session is among those that have no test.
func (s *session) run(ctx context.Context) {
	defer close(s.gone)
	defer s.woke(s)
	alive, gone := context.WithCancelCause(ctx)
	release := pump.OnDone(ctx, func() { _ = s.conn.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.read()
		gone(errClientGone)
	}()
	s.serve(alive)
	gone(nil)
	release()
	_ = s.conn.Close()
	<-done
}

// read passes on the records that come, until there are no more, or more than any client sends ahead. What is not a whole record is dropped,
// and what can't be the beginning of one, as a hello of another protocol, ends the connection at once.
func (s *session) read() {
	defer close(s.records)
	for {
		record := make([]byte, wire.Size)
		if !s.readRecord(record) {
			return
		}
		select {
		case s.records <- record:
		default:
			// The client's end stands behind what is not read, and a test would outlast it.
			s.log.Printf("netperf: %v asks for more before it is answered than any client does", s.peer)
			return
		}
	}
}

// maxType is above every type of a record; text and the hellos of other protocols begin with more.
const maxType = 1 << 16

func (s *session) readRecord(record []byte) bool {
	for n := 0; n < len(record); {
		var old host.Timer
		if n == wire.OldSize {
			old = s.host.AfterFunc(oldClient, func() {
				s.log.Printf("netperf: %v speaks the protocol of netperf 2.5 or before, which is not supported", s.peer)
				_ = s.conn.Close()
			})
		}
		k, err := s.conn.Read(record[n:])
		if old != nil {
			old.Stop()
		}
		n += k
		if n >= 4 && n-k < 4 && binary.BigEndian.Uint32(record) >= maxType {
			s.log.Printf("netperf: %v does not speak netperf: it begins with %q", s.peer, record[:min(n, 16)])
			return false
		}
		if err != nil && n < len(record) {
			return false
		}
	}
	return true
}

// serve answers records, one after the other.
func (s *session) serve(ctx context.Context) {
	if !s.authenticate(ctx) {
		return
	}
	for {
		s.expect(betweenTests)
		record, ok := <-s.records
		if !ok || !s.answer(ctx, record) {
			return
		}
	}
}

// expect bounds the wait for the next record, or with 0 lets it take as long as it may.
func (s *session) expect(d time.Duration) {
	var until time.Time
	if d > 0 {
		until = s.host.Now().Add(d)
	}
	_ = s.conn.SetReadDeadline(until) // it fails only on a connection that is closed, which the reader sees
}

// send writes one record.
func (s *session) send(record []byte) bool {
	_ = s.conn.SetWriteDeadline(s.host.Now().Add(writeTimeout))
	_, err := s.conn.Write(record)
	return err == nil
}

// authenticate asks for the passphrase, if there is one. Who does not know it gets error 403 for every record that he sends,
// because a 2.6.0 client looks only at the answer to its second one.
func (s *session) authenticate(ctx context.Context) bool {
	if s.o.Passphrase == "" {
		return true
	}
	s.expect(firstRecord)
	record, ok := <-s.records
	if !ok {
		return false
	}
	phrase, err := wire.ParsePassphrase(record)
	if !s.clients.Locked(s.peer.Addr()) && err == nil && subtle.ConstantTimeCompare([]byte(phrase), []byte(s.o.Passphrase)) == 1 {
		return true
	}
	s.log.Printf("netperf: %v refused: passphrase missing or wrong", s.peer)
	if err == nil {
		s.clients.Failed(s.peer.Addr())
	}
	// This and the limits on connections and on guesses in a minute bound a search; the answer still comes well within a second.
	_ = s.host.SleepUntil(ctx, s.host.Now().Add(guessDelay)) // cut short where the client has ended its side already
	s.expect(drainTimeout)
	for range 8 {
		if !s.send(wire.Refusal{Number: wire.BadPassphrase, Reason: "passphrase missing or wrong"}.AppendTo(nil, wire.TypePassphrase)) {
			return false
		}
		if _, ok := <-s.records; !ok {
			return false
		}
	}
	return false
}

// answer does what a record asks for, and reports whether the connection goes on.
func (s *session) answer(ctx context.Context, record []byte) bool {
	t, _, err := wire.ParseType(record)
	if err != nil {
		return false
	}
	switch t {
	case wire.TypeOmni:
		return s.omni(ctx, record)
	case wire.TypeTCPStream, wire.TypeTCPMaerts, wire.TypeTCPRR, wire.TypeTCPCRR, wire.TypeUDPRR, wire.TypeUDPStream:
		return s.legacy(ctx, record)
	case wire.TypeDebugOn, wire.TypeDebugOff:
		return s.send(wire.TypeDebugOK.AppendTo(nil, 0))
	case wire.TypeCPUCalibrate:
		return s.send(wire.CPUCalibration{Rate: 100, CPUs: int32(runtime.NumCPU())}.AppendTo(nil))
	case wire.TypeSysInfo:
		s.layout = wire.Layout22 // only 2.6.0 asks on the connection of its test
		info := wire.SysInfo{System: wire.OurName, Release: s.o.Version, Machine: "netperf", Version: "server"}
		return s.send(info.AppendTo(nil))
	case wire.TypePassphrase:
		return true // it has no answer
	}
	s.log.Printf("netperf: %v asked for test type %d, which is not supported", s.peer, t)
	return s.send(wire.TypeOmniResponse.AppendTo(nil, int32(wire.UnknownTest)))
}

// refuse answers with an error. Only after "no such test" the connection goes on; otherwise its end is given time to reach the
// client, since closing with unread input would reset the connection and destroy the answer.
func (s *session) refuse(r *refusal) bool {
	s.log.Printf("netperf: %v refused: %s", s.peer, r.why)
	if !s.send(wire.Refusal{Number: r.number, Reason: r.why}.AppendTo(nil, wire.TypeOmniResponse)) {
		return false
	}
	if r.number == wire.UnknownTest {
		return true
	}
	if w, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	s.expect(drainTimeout)
	for range s.records {
	}
	return false
}
