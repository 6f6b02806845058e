package main

import (
	"context"
	"errors"
	"time"

	"bufferbloat"
)

// rrul runs the RRUL plan and prints it.
func (a *app) rrul(ctx context.Context, words []string) error {
	m, set := newMeasure("table"), map[string]string{}
	host, four, six := "", false, false
	parameter := func(name string) func(string) error {
		return func(value string) error {
			var d time.Duration
			if err := seconds(&d)(value); err != nil {
				return err
			}
			set[name] = d.String()
			return nil
		}
	}
	options := append([]option{
		{'H', "host", "HOST", false, "server to load", text(&host)},
		{'4', "ipv4", "", false, "use IPv4", flag(&four)},
		{'6', "ipv6", "", false, "use IPv6", flag(&six)},
		{'l', "length", "SECONDS", false, "how long the load lasts", parameter("length")},
		{0, "lead", "SECONDS", false, "idle time before the load, and after it", parameter("lead")},
		{0, "step", "TIME", false, "time between probes", parameter("step")},
		{'Z', "passphrase", "TEXT", false, "passphrase of the server", text(&m.passphrase)},
	}, m.options()...)
	if err := parse(words, options); err != nil {
		if errors.Is(err, errHelp) {
			usage(a.stdout, "speedtest rrul -H HOST [flags]", options)
			return err
		}
		return &usageError{err}
	}
	family := 0
	switch {
	case four && six:
		return &usageError{errors.New("-4 and -6 exclude each other")}
	case host == "":
		return &usageError{errors.New("name a server: -H HOST")}
	case four:
		family = 4
	case six:
		family = 6
	}
	d := bufferbloat.RRUL()
	plan, err := d.Plan([]bufferbloat.Server{m.server(host, family)}, set)
	if err != nil {
		return &usageError{err}
	}
	return a.measure(ctx, &m, plan)
}
