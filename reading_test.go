package bufferbloat

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	"bufferbloat/load"
)

// interrupted is a flow of 1000 bytes a millisecond, whose readings are interrupted for as long as there are pauses: before the counter is looked at, and behind it.
type interrupted struct {
	clock  host.Clock
	began  time.Time
	pauses [][2]time.Duration
}

func (*interrupted) Open(context.Context) error                   { return nil }
func (*interrupted) Run(context.Context) (r load.Result, e error) { return r, e }

func (l *interrupted) Delivered() (uint64, bool) {
	var pause [2]time.Duration
	if len(l.pauses) > 0 {
		pause, l.pauses = l.pauses[0], l.pauses[1:]
	}
	time.Sleep(pause[0])
	n := uint64(l.clock.Now().Sub(l.began) / time.Microsecond)
	time.Sleep(pause[1])
	return n, true
}

func TestAnInterruptedReadingCountsNothingBeforeItHasCome(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		pauses [][2]time.Duration
		late   time.Duration // what the stamp may be behind
	}{
		"undisturbed":       {nil, 0},
		"once before":       {[][2]time.Duration{{30 * ms, 0}}, 0},
		"once behind":       {[][2]time.Duration{{0, 30 * ms}}, 0},
		"not for long":      {[][2]time.Duration{{ms / 2, ms / 2}}, ms / 2},
		"each time, before": {[][2]time.Duration{{30 * ms, 0}, {20 * ms, 0}, {10 * ms, 0}}, 0},
		"each time, behind": {[][2]time.Duration{{0, 30 * ms}, {0, 20 * ms}, {0, 10 * ms}}, 10 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &memnet.Net{}
			r := &run{h: h, start: h.Now()}
			time.Sleep(time.Second)
			p, ok := r.delivered(&interrupted{h, r.start, tt.pauses})
			if behind := p.At - time.Duration(p.Bytes)*time.Microsecond; !ok || behind != tt.late {
				t.Errorf("%s: %d bytes by %v, which is %v behind, want %v", name, p.Bytes, p.At, behind, tt.late)
			}
		})
	}
}
