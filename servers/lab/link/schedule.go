package link

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"bufferbloat/internal/bitrate"
)

// Schedule is how a link changes over time, from the origin of the caller's times on. The zero value changes nothing.
type Schedule struct {
	Steps []Step
	// Repeat begins the schedule again, with the link as Options made it, after this time and each multiple of it; 0 means never. A step
	// that lasts longer is cut off.
	Repeat time.Duration
}

// Step sets some properties of a link at a time.
type Step struct {
	At time.Duration
	// For is how long the step lasts, such as a boost, or an outage; then the link is again what the steps without an end made it. Of steps
	// that overlap, the one that began last counts, then the one that stands last. 0 means until another step without an end says otherwise.
	For   time.Duration
	Sets  Property
	Rate  bitrate.Bitrate // with SetsRate; 0 means unlimited
	Delay time.Duration   // with SetsDelay
	Loss  float64         // with SetsLoss: a share of packets, each on its own, instead of Effects.Loss
}

// Property is a set of properties of a link.
type Property uint8

// The properties. What is in transmission when the rate changes, or when an outage begins or ends, goes on from where it stood.
const (
	SetsRate Property = 1 << iota
	SetsDelay
	SetsLoss
	SetsOutage // nothing is transmitted

	allProperties = SetsRate | SetsDelay | SetsLoss | SetsOutage
)

// Limits of a Schedule.
const (
	MaxSteps        = 1000
	MaxScheduleTime = 1000 * time.Hour
	MinRepeat       = time.Millisecond
)

// state is what a Schedule changes of a link.
type state struct {
	rate    bitrate.Bitrate
	delay   time.Duration
	stopped bool
	lossy   bool // loss is in force
	loss    float64
}

// lossOver returns the loss in force, where l is the link's own.
func (s state) lossOver(l Loss) Loss {
	if s.lossy {
		return Loss{Good: s.loss}
	}
	return l
}

type change struct {
	at time.Duration
	state
}

// Check returns an error that names the step, the value and its range.
func (s Schedule) Check() error {
	if len(s.Steps) > MaxSteps {
		return fmt.Errorf("schedule of %d steps: want at most %d", len(s.Steps), MaxSteps)
	}
	if s.Repeat != 0 && (s.Repeat < MinRepeat || s.Repeat > MaxScheduleTime) {
		return fmt.Errorf("schedule that repeats after %v: want %v to %v", s.Repeat, MinRepeat, MaxScheduleTime)
	}
	for i, step := range s.Steps {
		if err := step.check(s.Repeat); err != nil {
			return fmt.Errorf("step %d of the schedule: %w", i+1, err)
		}
	}
	return nil
}

func (s Step) check(repeat time.Duration) error {
	switch {
	case s.At < 0 || s.At > MaxScheduleTime:
		return fmt.Errorf("time %v: want 0 to %v", s.At, MaxScheduleTime)
	case repeat != 0 && s.At >= repeat:
		return fmt.Errorf("time %v: want less than %v, after which the schedule repeats", s.At, repeat)
	case s.For < 0 || s.For > MaxScheduleTime:
		return fmt.Errorf("for %v: want 0 (no end) to %v", s.For, MaxScheduleTime)
	case s.Sets == 0 || s.Sets&^allProperties != 0:
		return fmt.Errorf("nothing is set: want a rate, a delay, a loss or an outage")
	case s.Sets&SetsRate != 0 && s.Rate != 0 && (s.Rate < MinRate || s.Rate > MaxRate):
		return fmt.Errorf("rate %v: want %v to %v, or unlimited", s.Rate, MinRate, MaxRate)
	case s.Sets&SetsDelay != 0 && (s.Delay < 0 || s.Delay > MaxDelay):
		return fmt.Errorf("delay %v: want 0 to %v", s.Delay, MaxDelay)
	case s.Sets&SetsLoss != 0 && !(s.Loss >= 0 && s.Loss <= 1):
		return fmt.Errorf("loss %v: want a share from 0 to 1", s.Loss)
	}
	return nil
}

// changes returns the states that the link is in one after another, in order of their times, from own on.
func (s Schedule) changes(own state) ([]change, error) {
	if err := s.Check(); err != nil || len(s.Steps) == 0 {
		return nil, err
	}
	steps := slices.Clone(s.Steps)
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	times := []time.Duration{0}
	for _, step := range steps {
		times = append(times, step.At)
		if step.For > 0 {
			times = append(times, step.At+step.For)
		}
	}
	slices.Sort(times)
	var all []change
	for _, at := range slices.Compact(times) {
		if s.Repeat > 0 && at >= s.Repeat {
			break
		}
		all = append(all, change{at, stateAt(steps, own, at)})
	}
	return all, nil
}

// stateAt returns what the steps, sorted by their times, make of own at a time.
func stateAt(steps []Step, own state, at time.Duration) state {
	for _, ends := range []bool{false, true} { // those with an end lie over the others
		for _, s := range steps {
			if s.At <= at && s.For > 0 == ends && (!ends || at < s.At+s.For) {
				own.apply(s)
			}
		}
	}
	return own
}

func (s *state) apply(step Step) {
	if step.Sets&SetsRate != 0 {
		s.rate = step.Rate
	}
	if step.Sets&SetsDelay != 0 {
		s.delay = step.Delay
	}
	if step.Sets&SetsLoss != 0 {
		s.lossy, s.loss = true, step.Loss
	}
	if step.Sets&SetsOutage != 0 {
		s.stopped = true
	}
}
