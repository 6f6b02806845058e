package link

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
)

// schedule parses a text, or fails the test.
func schedule(t testing.TB, text string) Schedule {
	t.Helper()
	s, err := ParseSchedule(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// arrivals sends packets of 1000 bytes, all at once, and returns when each arrived.
func arrivals(t *testing.T, o Options, n int) []time.Duration {
	t.Helper()
	o.Queue = tailDrop(1 << 24)
	var at []time.Duration
	for _, a := range run(newLink(t, o), flood(Packet{Size: 1000}, n, 0, 0), time.Hour) {
		at = append(at, a.at)
	}
	return at
}

func TestTheRateChangesInTheMiddleOfATransmission(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []time.Duration // of packets that take 8 ms each
	}{
		"half the rate from the middle of the second": {"12ms rate 500kbit", []time.Duration{8 * ms, 20 * ms, 36 * ms}},
		"twice the rate for 6 ms":                     {"8ms rate 2mbit for 6ms", []time.Duration{8 * ms, 12 * ms, 18 * ms}},
		"unlimited from the middle of the second":     {"12ms rate unlimited", []time.Duration{8 * ms, 12 * ms, 12 * ms}},
		"an outage stops, and goes on from there":     {"12ms outage for 100ms", []time.Duration{8 * ms, 116 * ms, 124 * ms}},
		"an outage over a boost":                      {"0s rate 2mbit for 10ms\n2ms outage for 4ms", []time.Duration{8 * ms, 14 * ms, 22 * ms}},
		"an outage from the start":                    {"0s outage for 5ms", []time.Duration{13 * ms, 21 * ms, 29 * ms}},
		"the last step of a time counts":              {"0s rate 4mbit\n0s rate 2mbit", []time.Duration{4 * ms, 8 * ms, 12 * ms}},
		"steps in any order":                          {"9ms rate 1mbit\n0s rate 8mbit", []time.Duration{1 * ms, 2 * ms, 3 * ms}},
		"every 10 ms 5 ms of outage":                  {"5ms outage for 5ms\nrepeat 10ms", []time.Duration{13 * ms, 31 * ms, 44 * ms}},
		"a boost that is cut off by the repetition":   {"0s rate 500kbit\n6ms rate 2mbit for 1h\nrepeat 10ms", []time.Duration{8500 * time.Microsecond, 17 * ms, 24 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := arrivals(t, Options{Rate: bitrate.Mbit, Schedule: schedule(t, tt.text)}, 3); !slices.Equal(got, tt.want) {
				t.Errorf("packets arrived at %v, want %v", got, tt.want)
			}
		})
	}
}

func TestTheRateIsExactAcrossChanges(t *testing.T) {
	// 3 and 7 Mbit/s, in turn for 1 ms each: 5 Mbit/s on average, in packets that divide into neither.
	s := Schedule{Steps: []Step{{Sets: SetsRate, Rate: 3 * bitrate.Mbit}, {At: ms, Sets: SetsRate, Rate: 7 * bitrate.Mbit}}, Repeat: 2 * ms}
	o := Options{Rate: bitrate.Mbit, Schedule: s, Queue: tailDrop(1 << 24)}
	got := run(newLink(t, o), flood(Packet{Size: 1337}, 10000, 0, 0), time.Hour)
	want := 10000 * 1337 * 8 / 5e6
	// Within a turn of 2 ms it is up to 0.4 ms behind the average.
	if at := got[9999].at.Seconds(); math.Abs(at-want) > 0.0005 {
		t.Errorf("10000 packets took %.6f s, want %.6f", at, want)
	}
}

func TestTheDelayChangesWithoutReordering(t *testing.T) {
	o := Options{Rate: bitrate.Mbit, Delay: 50 * ms, Schedule: schedule(t, "12ms delay 10ms")}
	if got, want := arrivals(t, o, 3), []time.Duration{58 * ms, 58 * ms, 58 * ms}; !slices.Equal(got, want) {
		t.Errorf("packets arrived at %v, want %v: no earlier than the one before", got, want)
	}
}

func TestTheLossChanges(t *testing.T) {
	o := Options{Rate: bitrate.Mbit, Schedule: schedule(t, "10ms loss 100% for 10ms"), Effects: Effects{Loss: Loss{Good: 0}}}
	if got, want := arrivals(t, o, 4), []time.Duration{8 * ms, 24 * ms, 32 * ms}; !slices.Equal(got, want) {
		t.Errorf("packets arrived at %v, want %v", got, want)
	}
}

func TestALinkThatStandsStillForEverAnnouncesNothing(t *testing.T) {
	l := newLink(t, Options{Rate: bitrate.Mbit, Queue: tailDrop(1 << 20), Schedule: schedule(t, "2ms outage")})
	l.Send(Packet{Size: 1000}, 0)
	l.Advance(time.Second, nil)
	if at, ok := l.NextDelivery(); ok {
		t.Errorf("the next delivery is at %v", at)
	}
}

func TestScheduleMistakesAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"0s rate 20":                          `line 1, column 9: rate "20": want 1kbit to 1000Gbit, as in 20mbit, or unlimited`,
		"\n  # a comment\n 5 rate 1mbit":      `line 3, column 2: time "5": want 0s to 1000h0m0s, as in 1.5s or 300ms`,
		"-1s outage":                          `line 1, column 1: time "-1s": want 0s`,
		"0s rate 0bit":                        `line 1, column 9: rate "0bit": want 1kbit`,
		"0s delay 2m":                         `line 1, column 10: delay "2m": want 0s to 1m0s`,
		"0s loss 101%":                        `line 1, column 9: loss "101%": want 0% to 100%`,
		"0s loss 0.1":                         `line 1, column 9: loss "0.1": want 0% to 100%`,
		"0s":                                  `line 1, column 3: nothing is set: want rate, delay, loss or outage`,
		"0s for 1s":                           `line 1, column 10: nothing is set`,
		"0s outage for":                       `line 1, column 14: for "": want 1ns to`,
		"0s outage for 0s":                    `line 1, column 15: for "0s": want 1ns`,
		"0s outage for 1s for 2s":             `line 1, column 18: a second for`,
		"0s rate 1mbit rate 2mbit":            `line 1, column 20: a second rate`,
		"0s speed 1mbit":                      `line 1, column 4: "speed": want rate, delay, loss, outage or for`,
		"repeat 1us":                          `line 1, column 8: repeat "1us": want 1ms to 1000h0m0s`,
		"repeat 1s\nrepeat 2s":                `line 2, column 1: a second repeat`,
		"repeat 1s please":                    `line 1, column 11: "please" after the repeat: want the end of the line`,
		"0s outage\n2s rate 1mbit\nrepeat 1s": `line 2, column 1: time 2s: want less than 1s, after which the schedule repeats`,
		strings.Repeat("0s outage\n", MaxSteps+1): fmt.Sprintf("line %d, column", MaxSteps+1),
	} {
		_, err := ParseSchedule(text)
		var mistake *ScheduleError
		if !errors.As(err, &mistake) || !strings.HasPrefix(err.Error(), "schedule, "+want) {
			t.Errorf("%.40q: error %v, want %q", text, err, want)
		}
	}
}

func TestSchedulesThatAreNotTextAreCheckedToo(t *testing.T) {
	for want, s := range map[string]Schedule{
		"step 1 of the schedule: nothing is set": {Steps: []Step{{}}},
		"step 1 of the schedule: time -1ns":      {Steps: []Step{{At: -1, Sets: SetsOutage}}},
		"step 1 of the schedule: for -1ns":       {Steps: []Step{{For: -1, Sets: SetsOutage}}},
		"step 1 of the schedule: delay 2m0s":     {Steps: []Step{{Sets: SetsDelay, Delay: 2 * time.Minute}}},
		"step 1 of the schedule: loss 2":         {Steps: []Step{{Sets: SetsLoss, Loss: 2}}},
		"schedule that repeats after 1ns":        {Repeat: 1},
		"schedule of 1001 steps":                 {Steps: make([]Step, 1001)},
	} {
		if err := s.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// FuzzParseSchedule checks that what parses is valid, and prints as text that parses to the same.
func FuzzParseSchedule(f *testing.F) {
	f.Add("0s rate 100mbit\n0s rate 250mbit for 10s # a boost\n15s rate unlimited delay 30ms\n20s outage for 300ms\n25s loss 1.5% for 2s\nrepeat 30s")
	f.Add("")
	f.Add("1e3s outage\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchedule(text)
		if err != nil {
			var mistake *ScheduleError
			if !errors.As(err, &mistake) || mistake.Line < 1 || mistake.Column < 1 || mistake.Line > strings.Count(text, "\n")+1 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if err := s.Check(); err != nil {
			t.Fatalf("%q parses, and is not valid: %v", text, err)
		}
		printed := s.String()
		back, err := ParseSchedule(printed)
		if err != nil {
			t.Fatalf("%q prints as %q: %v", text, printed, err)
		}
		if again := back.String(); again != printed {
			t.Fatalf("%q prints as %q, and that as %q", text, printed, again)
		}
	})
}
