package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/host"
	"bufferbloat/servers/netperf"
)

// serveFlags are the flags of bloat serve as parsed.
type serveFlags struct {
	bind       []string
	four, six  bool
	passphrase string
	netperf    uint16
	irtt       irttFlags
	data       string
	tests      int
	length     seconds
	iperf3     iperf3Flags
	limits     netperfLimits
	apps       appFlags
}

func (a *app) serveCommand() *cobra.Command {
	f := &serveFlags{length: seconds(time.Hour)}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the lab server: netperf, irtt and iperf3, for bloat and for stock clients",
		Long: `Answers netperf clients on TCP port 12865, irtt clients on UDP port 2112 and iperf3 clients on port 5201 of both, over IPv4 and IPv6, until it is
interrupted. netperf's data connections come to ports of the system's choice, unless --data-ports names a range that a firewall lets
through. Several iperf3 clients are served at once, which stock servers do not do. A resolver and a web server for probes of look-ups, connections and pages
run where a port is given for them (docs/probes.md).`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&f.bind, "bind", nil, "addresses to listen on (default: all)")
	flags.BoolVarP(&f.four, "ipv4", "4", false, "IPv4 only")
	flags.BoolVarP(&f.six, "ipv6", "6", false, "IPv6 only")
	flags.StringVarP(&f.passphrase, "passphrase", "Z", "", "passphrase that netperf clients must send")
	flags.Uint16Var(&f.netperf, "port", 12865, "netperf control port")
	f.irtt.register(flags)
	flags.StringVar(&f.data, "data-ports", "", "range of ports for netperf data, as in 30000-30100")
	flags.IntVar(&f.tests, "max-tests", 64, "netperf tests at the same time, and as many of iperf3")
	flags.Var(&f.length, "max-time", "longest test")
	f.limits.register(flags)
	f.iperf3.register(flags)
	f.apps.register(flags)
	return cmd
}

// serve runs the servers until ctx is done.
func (a *app) serve(ctx context.Context, f *serveFlags) error {
	var first, last uint16
	var err error
	if f.data != "" {
		if first, last, err = program.ParsePorts(f.data); err != nil {
			return &usageError{fmt.Errorf("--data-ports %q: %w", f.data, err)}
		}
	}
	if f.tests < 1 || f.length <= 0 {
		return &usageError{errors.New("--max-tests and --max-time want 1 or more")}
	}
	if f.netperf == 0 {
		return &usageError{errors.New("--port wants 1 to 65535")}
	}
	h := host.NewKernel()
	addrs, err := program.Addresses(ctx, h, f.bind, f.four, f.six, a.complain)
	if err != nil {
		return &usageError{err}
	}
	at := func(port uint16) []netip.AddrPort { return program.At(addrs, port) }
	log := program.Log(a.stderr, h)
	ready := func(what string) func([]netip.AddrPort) { return program.Listening(log, what) }
	ip, err := f.iperf3.server(f.tests, time.Duration(f.length), log, ready("iperf3"))
	if err != nil {
		return &usageError{err}
	}
	ir, err := f.irtt.server(time.Duration(f.length), log, ready("irtt"))
	if err != nil {
		return &usageError{err}
	}
	np := netperf.Server{Options: netperf.Options{Passphrase: f.passphrase, DataPorts: netperf.PortRange{First: first, Last: last}, MaxTests: f.tests,
		MaxLength: time.Duration(f.length), Version: a.version, Log: log, Ready: ready("netperf")}}
	if err := f.limits.apply(&np.Options); err != nil {
		return &usageError{err}
	}
	ip.Options.MaxTestsPerAddress, ip.Options.MaxTestsPerHour, ip.Options.MaxBytesPerHour = np.Options.MaxTestsPerAddress, np.Options.MaxTestsPerHour,
		np.Options.MaxBytesPerHour
	group, ctx := errgroup.WithContext(ctx)
	if err := f.apps.serve(ctx, group, h, at, time.Duration(f.length), ready); err != nil {
		return &usageError{err}
	}
	if f.iperf3.port != 0 {
		group.Go(func() error { return ip.Serve(ctx, h, at(f.iperf3.port)...) })
	}
	group.Go(func() error { return np.Serve(ctx, h, at(f.netperf)...) })
	group.Go(func() error { return ir.Serve(ctx, h, at(f.irtt.port)...) })
	err = group.Wait()
	if err == nil {
		log("stopped")
	}
	return err
}
