package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat/internal/wire/irtt/hmacmd5"
	"bufferbloat/servers/irtt"
)

// irttFlags are the flags of bloat serve for irtt. What a client asks for beyond the first three it is told of; the others refuse.
type irttFlags struct {
	port     uint16
	interval time.Duration
	length   int
	noDSCP   bool
	burst    int
	sessions int
	address  int
	opens    int
	timeout  time.Duration
	key      string
}

func (f *irttFlags) register(flags *pflag.FlagSet) {
	flags.Uint16Var(&f.port, "irtt-port", irtt.DefaultPort, "irtt port")
	flags.DurationVar(&f.interval, "irtt-min-interval", 10*time.Millisecond, "least time between the packets of an irtt client")
	flags.IntVar(&f.length, "irtt-max-length", 1472, "longest irtt packet, in bytes of UDP payload")
	flags.BoolVar(&f.noDSCP, "irtt-no-dscp", false, "mark no irtt reply, whatever clients ask for")
	flags.IntVar(&f.burst, "irtt-burst", 100, "packets of an irtt client that may come at once")
	flags.IntVar(&f.sessions, "irtt-max-sessions", 1024, "irtt clients at the same time")
	flags.IntVar(&f.address, "irtt-max-sessions-per-address", 128, "of them by one address")
	flags.IntVar(&f.opens, "irtt-max-opens", 50, "irtt sessions that may be asked for in a second, by all clients together")
	flags.DurationVar(&f.timeout, "irtt-timeout", time.Minute, "silence after which an irtt session is forgotten")
	flags.StringVar(&f.key, "irtt-hmac", "", "key that irtt clients must sign with; 0x begins hexadecimal digits, as for irtt")
}

// server returns the server, or says what is wrong with the flags.
func (f *irttFlags) server(length time.Duration, log func(string), ready func([]netip.AddrPort)) (*irtt.Server, error) {
	if f.port == 0 {
		return nil, errors.New("--irtt-port wants 1 to 65535")
	}
	if f.interval <= 0 || f.length <= 0 || f.burst <= 0 || f.sessions <= 0 || f.address <= 0 || f.opens <= 0 || f.timeout <= 0 {
		return nil, errors.New("--irtt-min-interval, --irtt-max-length, --irtt-burst, --irtt-max-sessions, --irtt-max-sessions-per-address, --irtt-max-opens and --irtt-timeout want more than 0")
	}
	key, err := hmacmd5.Parse(f.key)
	if err != nil {
		return nil, fmt.Errorf("--irtt-hmac: %w", err)
	}
	s := &irtt.Server{Options: irtt.Options{HMAC: key, MaxDuration: length, MinInterval: f.interval, Burst: f.burst, MaxLength: f.length, MaxSessions: f.sessions,
		MaxSessionsPerAddress: f.address, OpensPerSecond: f.opens, Timeout: f.timeout, NoDSCP: f.noDSCP, Log: log, Ready: ready}}
	return s, s.Options.Check()
}
