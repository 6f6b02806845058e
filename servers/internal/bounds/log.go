package bounds

import (
	"fmt"
	"sync"
	"time"

	"bufferbloat/internal/host"
)

// Log writes lines one at a time, at most ten a second on average after a burst of 64, and says how many it left out. It is safe for concurrent use.
type Log struct {
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

// NewLog returns a Log that calls out with each line, or writes nothing where that is nil.
func NewLog(clock host.Clock, out func(line string)) *Log { return &Log{clock: clock, out: out} }

// Printf writes a line or leaves it out.
func (l *Log) Printf(format string, args ...any) {
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
