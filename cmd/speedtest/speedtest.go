package main

import (
	"context"
	"errors"
	"time"

	"bufferbloat"
	"bufferbloat/internal/dscp"
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
	idling               bool          // openWRT's -i
	idleFor              time.Duration // what its -i and -t set
	counted              bool          // the user said how many streams
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
		{'n', "number", "N", false, "TCP streams in each direction; without -n a line below 4 Mbit/s may have 2 of them", t.streamCount},
		{'Z', "passphrase", "TEXT", false, "passphrase of the server", text(&t.passphrase)},
	}
	switch t.flags {
	case better:
		list = append(list, option{'i', "idle", "", false, "ping alone, without a load", flag(&t.idleOnly)})
	case openWRT:
		list[3].set = func(value string) error { return errors.Join(seconds(&t.idleFor)(value), seconds(&t.length)(value)) }
		list[3].help = "length of the idle test and of the load"
		list = append(list,
			option{'i', "idle", "SECONDS", true, "ping without a load", t.how(&t.idleFor, func() { t.idling = true })},
			option{'s', "sequential", "SECONDS", true, "download, then upload", t.how(&t.length, func() { t.sequential, t.together = true, false })},
			option{'c', "concurrent", "SECONDS", true, "download and upload at once", t.how(&t.length, func() { t.sequential, t.together = false, true })})
	case ours:
		list = append(list,
			option{'i', "idle", "SECONDS", false, "length of the idle baseline before the load; 0 for none", seconds(&t.idle)},
			option{'s', "sequential", "", false, "download, then upload (default)", flag(&t.sequential)},
			option{'c', "concurrent", "", false, "download and upload at once", flag(&t.together)},
			option{0, "no-cpu", "", false, "leave out the CPU block", func(string) error { t.cpu = false; return nil }})
	}
	list = append(list,
		option{0, "interval", "TIME", false, "time between probes (100ms)", seconds(&t.interval)},
		option{0, "probe", "KIND", false, "auto, icmp, irtt or tcp", text(&t.probe)},
		option{0, "dscp", "MARK", false, "mark of flows and probes: a name (EF, CS1) or 0 to 63", t.dscp.Set})
	return append(list, t.measure.options()...)
}

// how returns what does as it is asked, and sets a length where one is given. Of several the last one wins, as in the script.
func (t *test) how(length *time.Duration, ask func()) func(string) error {
	return func(value string) error {
		ask()
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
		loaded := t.sequential || t.together
		switch {
		case !loaded && !t.idling:
			return none, errors.New("say what to do: -i, -s or -c")
		case !loaded:
			t.idleOnly, t.length = true, t.idleFor
		case t.idling:
			t.idle = t.idleFor
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
		Concurrent: t.concurrent && !t.sequential || t.together, Interval: t.interval, DSCP: t.dscp, Probe: bufferbloat.ProbeKind(t.probe), Spare: !t.counted}
	if !t.idleOnly {
		plan := bufferbloat.Speedtest(o)
		return plan, plan.Check()
	}
	if o.Idle, o.Streams = t.length, 0; t.ping != "" {
		o.Server.Host, o.PingHost = t.ping, "" // no server is needed, and the default one may not even have an address here
	}
	plan := bufferbloat.Speedtest(o)
	plan.Phases = plan.Phases[:1]
	plan.Probes = plan.Probes[:1] // the second opinion is the server's, which an idle test does not ask
	return plan, plan.Check()
}

// speedtest runs one speedtest and prints it.
func (a *app) speedtest(ctx context.Context, s script, words []string) error {
	t := &test{script: s, idleFor: s.length, measure: newMeasure("speedtest"), interval: 100 * time.Millisecond, probe: string(bufferbloat.Auto)}
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
	t.showCPU = t.cpu
	return a.measure(ctx, &t.measure, plan)
}
