package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
)

// configOf parses the words as bloat lab does.
func configOf(words ...string) (lab.Config, error) {
	var f labFlags
	flags := pflag.NewFlagSet("lab", pflag.ContinueOnError)
	flags.StringVar(&f.queue, "qdisc", defaultQueue, "")
	f.describe(flags)
	if err := flags.Parse(words); err != nil {
		return lab.Config{}, err
	}
	c, err := f.config()
	if err == nil {
		_, err = f.links()
	}
	return c, err
}

func TestLabFlagsDescribeTheLink(t *testing.T) {
	steps := filepath.Join(t.TempDir(), "steps")
	if err := os.WriteFile(steps, []byte("10s rate 5mbit for 2s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	base, err := configOf()
	if err != nil {
		t.Fatal(err)
	}
	cable, ok := lab.PresetOf("cable-2014")
	if !ok {
		t.Fatal("no preset cable-2014")
	}
	for name, tt := range map[string]struct {
		words []string
		want  func(c *lab.Config)
	}{
		"the rates and the delay": {[]string{"--down", "100mbit", "--up", "10mbit", "--rtt", "5ms"}, func(c *lab.Config) {
			c.Down, c.Up, c.RTT = 100*bitrate.Mbit, 10*bitrate.Mbit, 5*time.Millisecond
		}},
		"no delay at all": {[]string{"--rtt", "0s"}, func(c *lab.Config) { c.RTT = -1 }},
		"one queue for both": {[]string{"--qdisc", "pie target 20ms"}, func(c *lab.Config) {
			c.Queue = "pie target 20ms"
		}},
		"one queue each": {[]string{"--qdisc-down", "codel", "--qdisc-up", "sfq"}, func(c *lab.Config) {
			c.QueueDown, c.QueueUp = "codel", "sfq"
		}},
		"a depth in bytes": {[]string{"--buffer", "256k"}, func(c *lab.Config) { c.Buffer, c.BufferDown, c.BufferUp = 0, 262144, 262144 }},
		"a depth in time":  {[]string{"--buffer", "100ms"}, func(c *lab.Config) { c.Buffer = 100 * time.Millisecond }},
		"a depth in packets": {[]string{"--buffer", "1000p"}, func(c *lab.Config) {
			c.Buffer, c.QueueDown, c.QueueUp = 0, "pfifo limit 1000", "pfifo limit 1000"
		}},
		"a framing by name":    {[]string{"--framing", "pppoe-llcsnap"}, func(c *lab.Config) { c.Overhead, c.Cells = 40, link.ATM }},
		"a framing in bytes":   {[]string{"--framing", "18"}, func(c *lab.Config) { c.Overhead = 18 }},
		"a framing of nothing": {[]string{"--framing", "raw"}, func(c *lab.Config) { c.Overhead = -1 }},
		"a device for both":    {[]string{"--device", "4500b"}, func(c *lab.Config) { c.DeviceDown, c.DeviceUp = 4500, 4500 }},
		"a loss for each":      {[]string{"--loss", "1%/0.002"}, func(c *lab.Config) { c.EffectsDown.Loss.Good, c.EffectsUp.Loss.Good = 0.01, 0.002 }},
		"loss in bursts": {[]string{"--loss", "ge 1% 25% 50% 0.1%"}, func(c *lab.Config) {
			c.EffectsDown.Loss = link.Loss{GoodToBad: 0.01, BadToGood: 0.25, Bad: 0.5, Good: 0.001}
			c.EffectsUp.Loss = c.EffectsDown.Loss
		}},
		"everything at random": {[]string{"--jitter", "5ms,normal,reorder", "--reorder", "1%,3", "--duplicate", "0.1%", "--corrupt", "0.01"}, func(c *lab.Config) {
			c.EffectsDown = link.Effects{Jitter: link.Jitter{Spread: 5 * time.Millisecond, Distribution: link.Normal, MayReorder: true},
				Reorder: link.Reorder{Share: 0.01, Distance: 3}, Duplicate: 0.001, Corrupt: 0.01}
			c.EffectsUp = c.EffectsDown
		}},
		"a schedule": {[]string{"--schedule", steps}, func(c *lab.Config) {
			c.ScheduleDown, _ = link.ParseSchedule("10s rate 5mbit for 2s")
			c.ScheduleUp = c.ScheduleDown
		}},
		"a preset": {[]string{"--preset", "cable-2014"}, func(c *lab.Config) { *c = cable.Config; c.Seed = 2 }},
		"a preset with another rate and queue": {[]string{"--preset", "cable-2014", "--up", "8mbit", "--qdisc", "fq_codel"}, func(c *lab.Config) {
			*c = cable.Config
			c.Seed, c.Up, c.Queue = 2, 8*bitrate.Mbit, "fq_codel"
		}},
	} {
		want := base
		tt.want(&want)
		if got, err := configOf(tt.words...); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v gives\n%+v, %v; want\n%+v", name, tt.words, got, err, want)
		}
	}
}

func TestMistakesInLabFlagsAreNamed(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "steps")
	if err := os.WriteFile(bad, []byte("10s rate 5mbit\n20s speed 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		words []string
		want  string
	}{
		{[]string{"--preset", "isdn"}, `--preset "isdn": want one of cable-2014`},
		{[]string{"--buffer", "1b"}, "buffer of 1 bytes: want"},
		{[]string{"--buffer", "0p"}, "want a number above 0"},
		{[]string{"--buffer", "1.5p"}, "want time (250ms), bytes"},
		{[]string{"--buffer", "7"}, "want time (250ms), bytes"},
		{[]string{"--qdisc", "fq_codel", "--buffer", "256k"}, `for this queue write it as in --qdisc "fq_codel limit 262144b"`},
		{[]string{"--framing", "smoke-signals"}, `--framing "smoke-signals": want 0 to 1024 bytes, or one of raw`},
		{[]string{"--device", "fast"}, `--device "fast": want 1 to 16777216 bytes`},
		{[]string{"--loss", "101%"}, `--loss "101%": want a share`},
		{[]string{"--loss", "-1%"}, `--loss "-1%": want a share`},
		{[]string{"--loss", "ge 1%"}, "want ge, the chances"},
		{[]string{"--jitter", "-1ms"}, `--jitter "-1ms": want a time from 0 to 1m0s`},
		{[]string{"--jitter", "5ms,gauss"}, `"gauss": want uniform`},
		{[]string{"--reorder", "1%,0"}, `--reorder "0": want 1 to 100 packets`},
		{[]string{"--reorder", "60%"}, "reordering 0.6: want a share from 0 to 0.5"},
		{[]string{"--schedule", bad}, "line 2, column 5"},
		{[]string{"--schedule", bad + "nowhere"}, "no such file"},
		{[]string{"--down", "0bit"}, "--down 0bit: want 1kbit to 1000Gbit"},
		{[]string{"--rtt", "-1ms"}, "--rtt -1ms: want 0 to 1m0s"},
		{[]string{"--rtt", "2h"}, "--rtt 2h0m0s: want 0 to 1m0s"},
	} {
		_, err := configOf(tt.words...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want %q in it", tt.words, err, tt.want)
		}
	}
}
