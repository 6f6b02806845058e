package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// script is what the program does under one of its names.
type script struct {
	host, ping string        // defaults; "" is none
	length     time.Duration // of the load in each direction
	idle       time.Duration // of the baseline
	streams    int
	concurrent bool
	cpu        bool // show the CPU block
	flags      flavour
}

// flavour says whose flags they are.
type flavour int

const (
	ours          flavour = iota
	better                // betterspeedtest.sh: -i is idle alone
	runner                // netperfrunner.sh: as better, without -i
	openWRT               // speedtest-netperf.sh: -i, -s and -c say what to do, and for how long
	defaultServer = "netperf.bufferbloat.net"
)

// scripts are the names that the program answers to, with the defaults of those who had them before it.
var scripts = map[string]script{
	"speedtest":            {length: 30 * time.Second, idle: 5 * time.Second, streams: 5, cpu: true},
	"speedtest.sh":         {length: 30 * time.Second, idle: 5 * time.Second, streams: 5, cpu: true},
	"betterspeedtest.sh":   {host: defaultServer, ping: "gstatic.com", length: time.Minute, streams: 5, flags: better},
	"netperfrunner.sh":     {host: defaultServer, ping: "gstatic.com", length: time.Minute, streams: 4, concurrent: true, flags: runner},
	"speedtest-netperf.sh": {host: defaultServer, ping: "one.one.one.one", length: 30 * time.Second, streams: 5, cpu: true, flags: openWRT},
}

// test is one speedtest as asked for.
type test struct {
	measure
	script
	interval             time.Duration
	dscp                 dscp.CodePoint
	probe                string
	sequential, together bool
	idleOnly             bool
	four, six            bool
	time                 time.Duration // openWRT's -t; 0 for none
	rate                 bitrate.Bitrate
	counted              bool // the user said how many streams
}

func (t *test) streamCount(value string) error {
	t.counted = true
	return number(&t.streams, 1, bufferbloat.MaxFlows)(value)
}

// options are the flags of the test's flavour.
func (t *test) options() []option {
	list := []option{
		{'H', "host", "HOST", false, "server to load", text(&t.host)},
		{'4', "ipv4", "", false, "use IPv4", flag(&t.four)},
		{'6', "ipv6", "", false, "use IPv6", flag(&t.six)},
		{'t', "time", "SECONDS", false, "length of the load in each direction", seconds(&t.length)},
		{'p', "ping", "HOST", false, "host to ping meanwhile (default: the server)", text(&t.ping)},
		{'n', "number", "N", false, "TCP streams in each direction", t.streamCount},
		{'Z', "passphrase", "TEXT", false, "passphrase of the server", text(&t.passphrase)},
	}
	switch t.flags {
	case better:
		list = append(list, option{'i', "idle", "", false, "ping alone, without a load", flag(&t.idleOnly)})
	case openWRT:
		list[3].set = seconds(&t.time)
		list[3].help = "length of the idle test and of the load"
		list = append(list,
			option{'i', "idle", "SECONDS", true, "ping without a load", t.how(&t.idle, nil, 30*time.Second)},
			option{'s', "sequential", "SECONDS", true, "download, then upload", t.how(&t.length, &t.sequential, 30*time.Second)},
			option{'c', "concurrent", "SECONDS", true, "download and upload at once", t.how(&t.length, &t.together, 30*time.Second)})
	case ours:
		list = append(list,
			option{'i', "idle", "SECONDS", false, "length of the idle baseline before the load; 0 for none", seconds(&t.idle)},
			option{'s', "sequential", "", false, "download, then upload (default)", flag(&t.sequential)},
			option{'c', "concurrent", "", false, "download and upload at once", flag(&t.together)},
			option{0, "no-cpu", "", false, "leave out the CPU block", func(string) error { t.cpu = false; return nil }})
	}
	list = append(list,
		option{0, "rate", "RATE", false, "what the line has, as in 2Mbit: below 4Mbit there are 2 streams and small writes",
			func(value string) (err error) { t.rate, err = bitrate.Parse(value); return err }},
		option{0, "interval", "TIME", false, "time between probes (100ms)", seconds(&t.interval)},
		option{0, "probe", "KIND", false, "auto, icmp, irtt or tcp", text(&t.probe)},
		option{0, "dscp", "MARK", false, "mark of flows and probes: a name (EF, CS1) or 0 to 63", t.dscp.Set})
	return append(list, t.measure.options()...)
}

// how returns what sets a length, and that it was asked for.
func (t *test) how(length *time.Duration, asked *bool, otherwise time.Duration) func(string) error {
	return func(value string) error {
		*length = otherwise
		if asked != nil {
			t.sequential, t.together = false, false // the last one wins
			*asked = true
		}
		if value == "" {
			return nil
		}
		return seconds(length)(value)
	}
}

// plan turns the flags into a plan, or says which can't be.
func (t *test) plan() (bufferbloat.Plan, error) {
	none := bufferbloat.Plan{}
	if t.flags == openWRT {
		switch loaded := t.sequential || t.together; {
		case !loaded && t.idle == 0:
			return none, errors.New("say what to do: -i, -s or -c")
		case !loaded:
			t.idleOnly = true
		}
		if t.time > 0 {
			t.length = t.time
			if t.idle > 0 {
				t.idle = t.time
			}
		}
		if t.idleOnly {
			t.length = t.idle
		}
	}
	switch {
	case t.four && t.six:
		return none, errors.New("-4 and -6 exclude each other")
	case t.sequential && t.together:
		return none, errors.New("-s and -c exclude each other")
	case t.host == "":
		return none, errors.New("name a server: -H HOST")
	}
	family := 0
	switch {
	case t.six:
		family = 6
	case t.four || t.flags != ours: // as the scripts have it
		family = 4
	}
	server := t.server(t.host, family)
	o := bufferbloat.SpeedtestOptions{Server: server, PingHost: t.ping, Idle: t.idle, Length: t.length, Streams: t.streams,
		Concurrent: t.concurrent && !t.sequential || t.together, Interval: t.interval, DSCP: t.dscp, Probe: bufferbloat.ProbeKind(t.probe)}
	if !t.idleOnly {
		plan := bufferbloat.Speedtest(o)
		return plan, plan.Check()
	}
	o.Idle, o.Streams = t.length, 0
	plan := bufferbloat.Speedtest(o)
	plan.Phases = plan.Phases[:1]
	plan.Probes = plan.Probes[:1] // the second opinion is the server's, which an idle test does not ask
	return plan, plan.Check()
}

// speedtest runs one speedtest and prints it.
func (a *app) speedtest(ctx context.Context, s script, words []string) error {
	t := &test{script: s, measure: newMeasure("speedtest"), interval: 100 * time.Millisecond, probe: string(bufferbloat.Auto)}
	options := t.options()
	if err := parse(words, options); err != nil {
		if errors.Is(err, errHelp) {
			usage(a.stdout, "speedtest [rrul|serve|version] [flags]", options)
			return err
		}
		return &usageError{err}
	}
	plan, err := t.plan()
	if err != nil {
		return &usageError{err}
	}
	note := t.spare(&plan)
	t.showCPU = t.cpu
	return a.measure(ctx, &t.measure, plan, note)
}

// What a line below slowRate gets where nobody says how many streams: each stream of many has so little of it that its share comes in lumps, and a write of
// 64 KiB is half a second of it.
const (
	slowRate    = 4 * bitrate.Mbit
	slowStreams = 2
	slowWrite   = 4096
)

// spare has a plan use fewer streams and smaller writes where the user says that the line is slow.
func (t *test) spare(plan *bufferbloat.Plan) (note string) {
	if t.rate == 0 || t.rate >= slowRate {
		return ""
	}
	for i := range plan.Phases {
		ph := &plan.Phases[i]
		seen := map[load.Direction]int{}
		ph.Flows = slices.DeleteFunc(ph.Flows, func(f bufferbloat.FlowPlan) bool {
			seen[f.Direction]++
			return !t.counted && seen[f.Direction] > slowStreams
		})
		for j := range ph.Flows {
			ph.Flows[j].Size = slowWrite
		}
	}
	note = fmt.Sprintf("the line was said to have %v: writes of %d bytes", t.rate, slowWrite)
	if !t.counted {
		note += fmt.Sprintf(", and %d streams in each direction", min(slowStreams, t.streams))
	}
	return note
}
