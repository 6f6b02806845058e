package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/servers/irtt"
	"bufferbloat/servers/netperf"
	"bufferbloat/watch"
)

// serve runs the servers until ctx is done.
func (a *app) serve(ctx context.Context, words []string) error {
	var bind []string
	passphrase := ""
	length := time.Hour
	tests, perAddress, perHour := 64, 0, 0
	var rate bitrate.Bitrate
	var port, irttPort, first, last uint16 = 12865, 2112, 0, 0
	four, six := false, false
	options := []option{
		{0, "bind", "ADDRESSES", false, "addresses to listen on, with commas between (default: all)", func(value string) error {
			bind = strings.Split(value, ",")
			return nil
		}},
		{'4', "ipv4", "", false, "IPv4 only", flag(&four)},
		{'6', "ipv6", "", false, "IPv6 only", flag(&six)},
		{'Z', "passphrase", "TEXT", false, "passphrase that netperf clients must send", text(&passphrase)},
		{0, "port", "PORT", false, "netperf control port (12865)", number(&port, 1, 65535)},
		{0, "irtt-port", "PORT", false, "irtt port (2112)", number(&irttPort, 1, 65535)},
		{0, "data-ports", "FIRST-LAST", false, "range of ports for netperf data, as in 30000-30100", func(value string) error {
			var err error
			first, last, err = program.ParsePorts(value)
			return err
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
	addrs, err := program.Addresses(ctx, h, bind, four, six, a.complain)
	if err != nil {
		return &usageError{err}
	}
	log := program.Log(a.stderr, h)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s := netperf.Server{Options: netperf.Options{Passphrase: passphrase, DataPorts: netperf.PortRange{First: first, Last: last}, MaxTests: tests, MaxLength: length,
			MaxTestsPerAddress: perAddress, MaxTestsPerHour: perHour, MaxRate: rate, Version: version, Log: log, Ready: program.Listening(log, "netperf"),
			CPU: func() (busy, total []time.Duration, err error) {
				t, err := watch.CPU()
				return t.Busy, t.Total, err
			}}}
		return s.Serve(ctx, h, program.At(addrs, port)...)
	})
	group.Go(func() error {
		s := irtt.Server{Options: irtt.Options{MaxDuration: length, Log: log, Ready: program.Listening(log, "irtt")}}
		return s.Serve(ctx, h, program.At(addrs, irttPort)...)
	})
	if err = group.Wait(); err == nil {
		log("stopped")
	}
	return err
}
