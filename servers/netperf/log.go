package netperf

import (
	"fmt"
	"sync"
	"time"

	"bufferbloat/internal/host"
)

// logger writes lines one at a time, at most ten a second on average after a burst, and says how many it left out.
type logger struct {
	clock host.Clock
	out   func(line string)

	mu      sync.Mutex
	spent   time.Time // when the lines so far will have been paid for
	omitted int
}

const (
	lineCost = time.Second / 10
	burst    = 64 * lineCost
)

func (l *logger) printf(format string, args ...any) {
	if l.out == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if l.spent.Before(now) {
		l.spent = now
	}
	if l.spent.Sub(now) >= burst {
		l.omitted++
		return
	}
	l.spent = l.spent.Add(lineCost)
	line := fmt.Sprintf(format, args...)
	if l.omitted > 0 {
		line += fmt.Sprintf(" (%d lines left out before this one)", l.omitted)
		l.omitted = 0
	}
	l.out(line)
}
