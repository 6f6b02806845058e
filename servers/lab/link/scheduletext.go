package link

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
)

// ScheduleError is a mistake in the text of a Schedule.
type ScheduleError struct {
	Line, Column int // from 1; the column counts bytes
	Problem      string
}

func (e *ScheduleError) Error() string {
	return fmt.Sprintf("schedule, line %d, column %d: %s", e.Line, e.Column, e.Problem)
}

// ParseSchedule reads a Schedule from text: one step per line, a time and what is set then, and at most one line "repeat TIME". Empty
// lines, and what follows a "#", are skipped. An error is a *ScheduleError.
//
//	0s    rate 100mbit
//	0s    rate 250mbit for 10s      # a boost
//	15s   rate 40mbit delay 30ms
//	20s   outage for 300ms
//	25s   loss 1.5% for 2s
//	repeat 30s
func ParseSchedule(text string) (Schedule, error) {
	var s Schedule
	var at []int // the lines of the steps
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		t := tokens{line: i + 1, rest: line}
		word := t.next()
		if word == "" {
			continue
		}
		if word == "repeat" {
			if err := s.repeat(&t); err != nil {
				return Schedule{}, err
			}
			continue
		}
		step, err := parseStep(word, &t)
		if err != nil {
			return Schedule{}, err
		}
		if len(s.Steps) == MaxSteps {
			return Schedule{}, t.errorf("more than %d steps", MaxSteps)
		}
		s.Steps, at = append(s.Steps, step), append(at, i+1)
	}
	for i, step := range s.Steps {
		if err := step.check(s.Repeat); err != nil { // only the relation to Repeat is left to be wrong
			return Schedule{}, &ScheduleError{at[i], 1, err.Error()}
		}
	}
	return s, nil
}

func (s *Schedule) repeat(t *tokens) error {
	if s.Repeat != 0 {
		return t.errorf("a second repeat")
	}
	d, err := t.duration("repeat", MinRepeat, MaxScheduleTime)
	if err != nil {
		return err
	}
	s.Repeat = d
	if word := t.next(); word != "" {
		return t.errorf("%q after the repeat: want the end of the line", word)
	}
	return nil
}

// parseStep reads a step whose first word is the time.
func parseStep(word string, t *tokens) (Step, error) {
	var s Step
	var err error
	if s.At, err = t.parseDuration("time", word, 0, MaxScheduleTime); err != nil {
		return s, err
	}
	for word = t.next(); word != ""; word = t.next() {
		var sets Property
		switch word {
		case "rate":
			sets = SetsRate
			s.Rate, err = t.rate()
		case "delay":
			sets = SetsDelay
			s.Delay, err = t.duration("delay", 0, MaxDelay)
		case "loss":
			sets = SetsLoss
			s.Loss, err = t.share()
		case "outage":
			sets = SetsOutage
		case "for":
			if s.For != 0 {
				return s, t.errorf("a second for")
			}
			s.For, err = t.duration("for", 1, MaxScheduleTime)
		default:
			return s, t.errorf("%q: want rate, delay, loss, outage or for", word)
		}
		if err != nil {
			return s, err
		}
		if s.Sets&sets != 0 {
			return s, t.errorf("a second %s", word)
		}
		s.Sets |= sets
	}
	if s.Sets == 0 {
		return s, t.errorf("nothing is set: want rate, delay, loss or outage")
	}
	return s, nil
}

// tokens are the words of a line.
type tokens struct {
	line, column int // of the present word
	rest         string
	restColumn   int
}

// next returns the next word, "" at the end of the line.
func (t *tokens) next() string {
	trimmed := strings.TrimLeft(t.rest, " \t\r")
	t.column = t.restColumn + len(t.rest) - len(trimmed) + 1
	end := strings.IndexAny(trimmed, " \t\r")
	if end < 0 {
		end = len(trimmed)
	}
	t.restColumn = t.column - 1 + end
	t.rest = trimmed[end:]
	return trimmed[:end]
}

func (t *tokens) errorf(format string, args ...any) error {
	return &ScheduleError{t.line, t.column, fmt.Sprintf(format, args...)}
}

func (t *tokens) duration(what string, least, most time.Duration) (time.Duration, error) {
	return t.parseDuration(what, t.next(), least, most)
}

func (t *tokens) parseDuration(what, word string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil || d < least || d > most {
		return 0, t.errorf("%s %q: want %v to %v, as in 1.5s or 300ms", what, word, least, most)
	}
	return d, nil
}

func (t *tokens) rate() (bitrate.Bitrate, error) {
	word := t.next()
	if word == "unlimited" {
		return 0, nil
	}
	r, err := bitrate.Parse(word)
	if err != nil || r < MinRate || r > MaxRate {
		return 0, t.errorf("rate %q: want %v to %v, as in 20mbit, or unlimited", word, MinRate, MaxRate)
	}
	return r, nil
}

func (t *tokens) share() (float64, error) {
	word := t.next()
	number, percent := strings.CutSuffix(word, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !percent || !(v >= 0 && v <= 100) {
		return 0, t.errorf("loss %q: want 0%% to 100%%", word)
	}
	return v / 100, nil
}

// String returns the text that ParseSchedule reads as s.
func (s Schedule) String() string {
	var b strings.Builder
	for _, step := range s.Steps {
		fmt.Fprintf(&b, "%v", step.At)
		if step.Sets&SetsRate != 0 && step.Rate == 0 {
			b.WriteString(" rate unlimited")
		} else if step.Sets&SetsRate != 0 {
			fmt.Fprintf(&b, " rate %v", step.Rate)
		}
		if step.Sets&SetsDelay != 0 {
			fmt.Fprintf(&b, " delay %v", step.Delay)
		}
		if step.Sets&SetsLoss != 0 {
			fmt.Fprintf(&b, " loss %s%%", strconv.FormatFloat(step.Loss*100, 'g', -1, 64))
		}
		if step.Sets&SetsOutage != 0 {
			b.WriteString(" outage")
		}
		if step.For > 0 {
			fmt.Fprintf(&b, " for %v", step.For)
		}
		b.WriteByte('\n')
	}
	if s.Repeat > 0 {
		fmt.Fprintf(&b, "repeat %v\n", s.Repeat)
	}
	return b.String()
}
