package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/report"
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

// addresses returns the addresses to listen on.
func (f *serveFlags) addresses() ([]netip.Addr, error) {
	if f.four && f.six {
		return nil, errors.New("-4 and -6 exclude each other")
	}
	names := f.bind
	if len(names) == 0 {
		names = []string{"0.0.0.0", "::"}
	}
	var addrs []netip.Addr
	for _, name := range names {
		addr, err := netip.ParseAddr(name)
		if err != nil {
			return nil, fmt.Errorf("--bind %q: want an address of this host", name)
		}
		is4 := host.FamilyOf(addr) == host.IPv4
		if f.four && !is4 || f.six && is4 {
			continue
		}
		addrs = append(addrs, addr)
	}
	if len(addrs) == 0 {
		return nil, errors.New("no address is left to listen on")
	}
	return addrs, nil
}

// ports returns the first and last port of the range for data, 0 and 0 for none.
func (f *serveFlags) ports() (first, last uint16, err error) {
	if f.data == "" {
		return 0, 0, nil
	}
	from, to, ok := strings.Cut(f.data, "-")
	if !ok {
		to = from
	}
	a, err := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	if err = errors.Join(err, err2); err != nil || a == 0 || b < a {
		return 0, 0, fmt.Errorf("--data-ports %q: want FIRST-LAST, as in 30000-30100", f.data)
	}
	return uint16(a), uint16(b), nil
}

// serve runs the servers until ctx is done.
func (a *app) serve(ctx context.Context, f *serveFlags) error {
	addrs, err := f.addresses()
	if err != nil {
		return &usageError{err}
	}
	first, last, err := f.ports()
	if err != nil {
		return &usageError{err}
	}
	if f.tests < 1 || f.length <= 0 {
		return &usageError{errors.New("--max-tests and --max-time want 1 or more")}
	}
	if f.netperf == 0 {
		return &usageError{errors.New("--port wants 1 to 65535")}
	}
	h := host.NewKernel()
	if len(f.bind) == 0 {
		addrs = a.usable(ctx, h, addrs)
	}
	at := func(port uint16) (list []netip.AddrPort) {
		for _, addr := range addrs {
			list = append(list, netip.AddrPortFrom(addr, port))
		}
		return list
	}
	log := a.logger(h)
	ready := func(what string) func([]netip.AddrPort) {
		return func(at []netip.AddrPort) { log(fmt.Sprintf("%s: listening at %s", what, joinPorts(at))) }
	}
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

// usable returns the addresses whose family this host has; it says once what it leaves out. With none left it returns them all, and listening says why
// not.
func (a *app) usable(ctx context.Context, h host.Host, addrs []netip.Addr) []netip.Addr {
	var good []netip.Addr
	for _, addr := range addrs {
		l, err := h.ListenTCP(ctx, netip.AddrPortFrom(addr, 0), host.Options{})
		if err != nil {
			a.complain(fmt.Errorf("no %v here: %w", host.FamilyOf(addr), err))
			continue
		}
		l.Close()
		good = append(good, addr)
	}
	if len(good) == 0 {
		return addrs
	}
	return good
}

// logger returns what prints one line of log with its time. What a client sent and stands in it can't steer a terminal or begin a line.
func (a *app) logger(clock host.Clock) func(string) {
	var mu sync.Mutex
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(a.stderr, "%s %s\n", clock.Now().Format(time.DateTime), report.Printable(line))
	}
}

func joinPorts(at []netip.AddrPort) string {
	texts := make([]string, len(at))
	for i, a := range at {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}
