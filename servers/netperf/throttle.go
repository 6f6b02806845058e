package netperf

import (
	"net"
	"sync"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
)

// throttle holds the payload of all tests together to a rate, in one direction. A nil throttle holds nothing.
type throttle struct {
	clock host.Clock
	rate  bitrate.Bitrate

	mu   sync.Mutex
	paid time.Time // when the bytes so far will have been paid for
}

// credit is how far a throttle may be ahead of its rate.
const credit = 20 * time.Millisecond

func newThrottle(clock host.Clock, rate bitrate.Bitrate) *throttle {
	if rate == 0 {
		return nil
	}
	return &throttle{clock: clock, rate: rate}
}

// spend counts n bytes and returns when they are paid for but for the credit.
func (t *throttle) spend(n int) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.clock.Now(); t.paid.Before(now) {
		t.paid = now
	}
	t.paid = t.paid.Add(time.Duration(float64(n) * 8 / float64(t.rate) * float64(time.Second)))
	return t.paid.Add(-credit)
}

// piece is the most bytes to move at once, so that many connections share a rate evenly.
func (t *throttle) piece() int {
	return max(1448, int(float64(t.rate)/8*credit.Seconds()/4))
}

// throttled is a connection whose payload is held to a rate each way. Its deadlines end a call to the connection, and a wait for the rate
// where the next call begins.
type throttled struct {
	net.Conn
	in, out *throttle
	wait    func(until time.Time) // it ends early with the test, and the next call then by its deadline
}

func (c *throttled) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), c.in.piece())])
	if n > 0 {
		c.wait(c.in.spend(n))
	}
	return n, err
}

func (c *throttled) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := c.Conn.Write(b[done:min(len(b), done+c.out.piece())])
		done += n
		if err != nil {
			return done, err
		}
		c.wait(c.out.spend(n))
	}
	return done, nil
}
