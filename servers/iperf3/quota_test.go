package iperf3

import (
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/iperf3"
)

func TestATestEndsWhereItsAddressHasMovedItsBytes(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var said []string
			const limit = 100_000
			o := Options{MaxBytesPerHour: limit, Log: func(line string) { said = append(said, line) }}
			inMemory(t, o, func(h *memnet.Net, v *service) {
				p := begin(t, h, at)
				data := p.open(wire.Params{Parallel: 2, Time: time.Minute, Reverse: reverse}, at)
				var moving sync.WaitGroup
				for _, conn := range data {
					moving.Go(func() { move(conn, reverse) })
				}
				if code := p.refused(5 * time.Second); code != wire.RateLimit {
					t.Errorf("reverse %v: it ends with %v", reverse, code)
				}
				for _, conn := range data {
					_ = conn.Close()
				}
				moving.Wait()
				_ = p.conn.Close()
				p = begin(t, h, at)
				p.write(wire.Params{Parallel: 1, Time: time.Second}.AppendTo(nil))
				p.expect(time.Second, wire.AccessDenied)
				_ = p.conn.Close()
			})
			if all := strings.Join(said, "\n"); !strings.Contains(all, "this server's limit in an hour is reached: 100000 bytes") {
				t.Errorf("reverse %v: the log says %q", reverse, all)
			}
		})
	}
}

// move moves bytes on a connection until it ends.
func move(conn net.Conn, reads bool) {
	b := make([]byte, 1000)
	for {
		var err error
		if reads {
			_, err = conn.Read(b)
		} else {
			_, err = conn.Write(b)
		}
		if err != nil {
			return
		}
	}
}

func TestWhoSendsDatagramsToALimitedServerNamesARate(t *testing.T) {
	limit := 5 * bitrate.Mbit
	for _, tt := range []struct {
		name string
		o    Options
		p    wire.Params
		code wire.ErrorCode
		rate bitrate.Bitrate
	}{
		{"up, no rate", Options{MaxUDPRate: limit}, wire.Params{}, wire.RateLimit, 0},
		{"both ways, no rate", Options{MaxUDPRate: limit}, wire.Params{Bidirectional: true}, wire.RateLimit, 0},
		{"down, no rate", Options{MaxUDPRate: limit}, wire.Params{Reverse: true}, 0, limit},
		{"up, a rate", Options{MaxUDPRate: limit}, wire.Params{Rate: limit}, 0, limit},
		{"up, too much", Options{MaxUDPRate: limit}, wire.Params{Rate: limit + 1}, wire.RateLimit, 0},
		{"up, no rate, no limit", Options{}, wire.Params{}, 0, bitrate.Gbit},
	} {
		v, err := newService(tt.o, &memnet.Net{})
		if err != nil {
			t.Fatal(err)
		}
		s := &session{service: v, p: tt.p}
		s.p.Protocol, s.p.Parallel = wire.UDP, 1
		no := s.check()
		if (no == nil) != (tt.code == 0) || no != nil && no.code != tt.code || no == nil && s.rate != tt.rate {
			t.Errorf("%s: %v at %v; want code %d at %v", tt.name, no, s.rate, tt.code, tt.rate)
		}
	}
}
