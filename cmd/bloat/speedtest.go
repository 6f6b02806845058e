package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// speedtestFlags are the flags of bloat speedtest as parsed.
type speedtestFlags struct {
	measureFlags
	host, ping           string
	length, idle         seconds
	streams              int
	counted              bool // the user said how many streams
	sequential, together bool
	dscp                 dscp.CodePoint
	interval             seconds
	probe                string
	protocol             string
	url, uploadURL       string
}

func (a *app) speedtestCommand() *cobra.Command {
	f := &speedtestFlags{length: seconds(30 * time.Second), idle: seconds(5 * time.Second), interval: seconds(100 * time.Millisecond)}
	cmd := &cobra.Command{
		Use:   "speedtest -H HOST | --lab",
		Short: "Download, upload, and the latency meanwhile, as speedtest.sh prints them",
		Long: `Measures the idle latency, then fills the link with TCP flows, first from and then to a netperf or iperf3 server, while probes
sample the latency; and prints the table of speedtest.sh. Exit status: 0 measured, 1 could not measure, 2 usage,
4 measured but void or partial (the reason is in the result), 128+n ended by signal n with the partial result.`,
		Example: `  bloat speedtest -H netperf.example.net
  bloat speedtest -H 192.0.2.1 -c -t 60 --json
  bloat speedtest --protocol iperf3 -H iperf.example.net
  bloat speedtest --protocol http --url https://example.net/large --upload-url https://example.net/up
  bloat speedtest --lab fq_codel`,
		Args: func(_ *cobra.Command, args []string) error {
			if f.lab.on() && len(args) == 1 && f.lab.queue == defaultQueue {
				f.lab.queue = args[0] // "--lab fq_codel", which the flag parser takes for --lab and an argument
				return nil
			}
			return noArguments(nil, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.counted = cmd.Flags().Changed("number")
			return a.speedtest(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.host, "host", "H", "", "server to load; \"best\" is the nearest one of the directory that may be used (bloat servers)")
	flags.StringVarP(&f.ping, "ping", "p", "", "host to ping meanwhile (default: the server)")
	flags.VarP(&f.length, "time", "t", "length of the load in each direction")
	flags.IntVarP(&f.streams, "number", "n", 5, "TCP streams in each direction; without -n a line below 4 Mbit/s may have 2 of them")
	flags.VarP(&f.idle, "idle", "i", "length of the idle baseline before the load; 0 for none")
	flags.BoolVarP(&f.sequential, "sequential", "s", false, "download, then upload (default)")
	flags.BoolVarP(&f.together, "concurrent", "c", false, "download and upload at once")
	flags.StringVar(&f.protocol, "protocol", string(bufferbloat.Netperf), "what the flows speak: netperf, iperf3, http or http2")
	flags.StringVar(&f.url, "url", "", "http: what to fetch, a large object; the server's own /bytes/N where this is not given, and it is ours")
	flags.StringVar(&f.uploadURL, "upload-url", "", "http: where uploads go (default: --url, or the server's own)")
	f.registerServer(flags)
	f.registerIPerf3(flags)
	flags.Var(&f.dscp, "dscp", "mark of flows and probes: a name (EF, CS1) or 0 to 63")
	flags.Var(&f.interval, "interval", "time between probes")
	flags.StringVar(&f.probe, "probe", "auto", "auto, icmp, irtt or tcp")
	f.registerOutput(flags, "speedtest")
	return cmd
}

// plan turns the flags into a plan, or says which can't be.
func (f *speedtestFlags) plan(hosts []string) (bufferbloat.Plan, error) {
	if len(hosts) == 0 && f.url != "" && !f.lab.on() {
		if u, err := url.Parse(f.url); err == nil {
			hosts = []string{u.Hostname()}
		}
	}
	servers, err := f.servers(hosts, 1, 0)
	switch {
	case f.sequential && f.together:
		return bufferbloat.Plan{}, errors.New("-s and -c exclude each other")
	case err != nil:
		return bufferbloat.Plan{}, err
	case f.streams < 1 || f.streams > bufferbloat.MaxFlows:
		return bufferbloat.Plan{}, fmt.Errorf("-n %d: want 1 to %d streams", f.streams, bufferbloat.MaxFlows)
	}
	plan := bufferbloat.Speedtest(bufferbloat.SpeedtestOptions{Server: servers[0], PingHost: f.ping, Idle: time.Duration(f.idle),
		Length: time.Duration(f.length), Streams: f.streams, Concurrent: f.together, Interval: time.Duration(f.interval), DSCP: f.dscp,
		Probe: bufferbloat.ProbeKind(f.probe), Spare: !f.counted && (!f.lab.on() || f.lab.slow())})
	protocol := bufferbloat.Protocol(f.protocol)
	switch protocol {
	case bufferbloat.Netperf, bufferbloat.IPerf3:
		if f.url != "" || f.uploadURL != "" {
			return bufferbloat.Plan{}, errors.New("--url and --upload-url go with --protocol http or http2")
		}
	case bufferbloat.HTTP, bufferbloat.HTTP2:
	default:
		return bufferbloat.Plan{}, fmt.Errorf("--protocol %q: want netperf, iperf3, http or http2", f.protocol)
	}
	plan.Speak(protocol)
	for i := range plan.Phases {
		for j := range plan.Phases[i].Flows {
			flow := &plan.Phases[i].Flows[j]
			if flow.URL = f.url; flow.Direction == load.Upload && f.uploadURL != "" {
				flow.URL = f.uploadURL
			}
		}
	}
	return plan, plan.Check()
}

// speedtest runs one speedtest and prints it.
func (a *app) speedtest(ctx context.Context, f *speedtestFlags) error {
	var hosts []string
	if f.host != "" {
		hosts = []string{f.host}
	}
	plan, err := a.planOf(ctx, &f.measureFlags, hosts, func() (bufferbloat.Plan, error) { return f.plan(hosts) })
	if err != nil {
		return err
	}
	return a.measure(ctx, &f.measureFlags, plan, false)
}
