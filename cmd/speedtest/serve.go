package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/report"
	"bufferbloat/servers/irtt"
	"bufferbloat/servers/netperf"
	"bufferbloat/watch"
)

// serve runs the servers until ctx is done.
func (a *app) serve(ctx context.Context, words []string) error {
	bind, passphrase := "", ""
	length := time.Hour
	tests, perAddress, perHour := 64, 0, 0
	var rate bitrate.Bitrate
	var port, irttPort, first, last uint16 = 12865, 2112, 0, 0
	four, six := false, false
	options := []option{
		{0, "bind", "ADDRESSES", false, "addresses to listen on, with commas between (default: all)", text(&bind)},
		{'4', "ipv4", "", false, "IPv4 only", flag(&four)},
		{'6', "ipv6", "", false, "IPv6 only", flag(&six)},
		{'Z', "passphrase", "TEXT", false, "passphrase that netperf clients must send", text(&passphrase)},
		{0, "port", "PORT", false, "netperf control port (12865)", number(&port, 1, 65535)},
		{0, "irtt-port", "PORT", false, "irtt port (2112)", number(&irttPort, 1, 65535)},
		{0, "data-ports", "FIRST-LAST", false, "range of ports for netperf data, as in 30000-30100", func(value string) error {
			from, to, _ := strings.Cut(value, "-")
			if to == "" {
				to = from
			}
			if err := errors.Join(number(&first, 1, 65535)(from), number(&last, 1, 65535)(to)); err != nil || last < first {
				return errors.New("want FIRST-LAST, as in 30000-30100")
			}
			return nil
		}},
		{0, "max-tests", "N", false, "netperf tests at the same time (64)", number(&tests, 1, 1<<20)},
		{0, "max-time", "SECONDS", false, "longest test (3600)", seconds(&length)},
		{0, "max-tests-per-address", "N", false, "netperf tests of one address at the same time (as many as in all)", number(&perAddress, 1, 1<<20)},
		{0, "max-tests-per-hour", "N", false, "netperf tests that one address may begin in an hour (any number)", number(&perHour, 1, 1<<20)},
		{0, "max-rate", "RATE", false, "netperf payload of all tests together, each way, as in 50Mbit (what the link carries)", rate.Set},
	}
	if err := parse(words, options); err != nil {
		if errors.Is(err, errHelp) {
			usage(a.stdout, "speedtest serve [flags]", options)
			return err
		}
		return &usageError{err}
	}
	if perAddress == 0 {
		perAddress = tests
	}
	h := host.NewKernel()
	addrs, err := a.addresses(ctx, h, bind, four, six)
	if err != nil {
		return &usageError{err}
	}
	at := func(port uint16) (list []netip.AddrPort) {
		for _, addr := range addrs {
			list = append(list, netip.AddrPortFrom(addr, port))
		}
		return list
	}
	log := a.logger(h)
	ready := func(what string) func([]netip.AddrPort) {
		return func(at []netip.AddrPort) { log(fmt.Sprintf("%s: listening at %v", what, at)) }
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s := netperf.Server{Options: netperf.Options{Passphrase: passphrase, DataPorts: netperf.PortRange{First: first, Last: last}, MaxTests: tests, MaxLength: length,
			MaxTestsPerAddress: perAddress, MaxTestsPerHour: perHour, MaxRate: rate, Version: version, Log: log, Ready: ready("netperf"),
			CPU: func() (busy, total []time.Duration, err error) {
				t, err := watch.CPU()
				return t.Busy, t.Total, err
			}}}
		return s.Serve(ctx, h, at(port)...)
	})
	group.Go(func() error {
		s := irtt.Server{Options: irtt.Options{MaxDuration: length, Log: log, Ready: ready("irtt")}}
		return s.Serve(ctx, h, at(irttPort)...)
	})
	if err = group.Wait(); err == nil {
		log("stopped")
	}
	return err
}

// addresses returns the addresses to listen on. Without bind they are those of all families that this host has.
func (a *app) addresses(ctx context.Context, h host.Host, bind string, four, six bool) ([]netip.Addr, error) {
	if four && six {
		return nil, errors.New("-4 and -6 exclude each other")
	}
	names := strings.Split(bind, ",")
	if bind == "" {
		names = []string{"0.0.0.0", "::"}
	}
	var addrs []netip.Addr
	for _, name := range names {
		addr, err := netip.ParseAddr(name)
		if err != nil {
			return nil, fmt.Errorf("--bind %q: want an address of this host", name)
		}
		is4 := host.FamilyOf(addr) == host.IPv4
		if four && !is4 || six && is4 {
			continue
		}
		if bind == "" {
			l, err := h.ListenTCP(ctx, netip.AddrPortFrom(addr, 0), host.Options{})
			if err != nil {
				a.complain(fmt.Errorf("no %v here: %w", host.FamilyOf(addr), err))
				continue
			}
			l.Close()
		}
		addrs = append(addrs, addr)
	}
	if len(addrs) == 0 {
		return nil, errors.New("no address is left to listen on")
	}
	return addrs, nil
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
