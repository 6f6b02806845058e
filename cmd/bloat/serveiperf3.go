package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat/internal/bitrate"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/servers/iperf3"
	"bufferbloat/watch"
)

// iperf3Flags are those flags of bloat serve that concern iperf3.
type iperf3Flags struct {
	port       uint16
	users, key string
	pkcs1      bool
	rate       bitrate.Bitrate
	udpRate    bitrate.Bitrate
	streams    int
}

func (f *iperf3Flags) register(flags *pflag.FlagSet) {
	flags.Uint16Var(&f.port, "iperf3-port", wire.Port, "iperf3 port, TCP and UDP; 0 serves no iperf3")
	flags.Var(&f.rate, "iperf3-max-rate", "most that the streams of an iperf3 test may ask for together; clients must then name a rate")
	flags.Var(&f.udpRate, "iperf3-max-udp-rate", "most that the streams of an iperf3 test of datagrams may have together; then who sends must name a rate (default: 1Gbit)")
	flags.IntVar(&f.streams, "iperf3-max-streams", 128, "streams of an iperf3 test in each direction")
	flags.StringVar(&f.users, "iperf3-users", "", "file of the iperf3 users that are let in: lines NAME,SHA256 as iperf3 has them")
	flags.StringVar(&f.key, "iperf3-private-key", "", "file of the RSA private key for their logins, in PEM")
	flags.BoolVar(&f.pkcs1, "iperf3-pkcs1", false, "take logins as iperf3 before 3.17 encrypts them, and no others")
}

// server returns the server, or says what is wrong with the flags.
func (f *iperf3Flags) server(tests int, length time.Duration, log func(string), ready func([]netip.AddrPort)) (*iperf3.Server, error) {
	if f.rate < 0 || f.udpRate < 0 {
		return nil, errors.New("--iperf3-max-rate and --iperf3-max-udp-rate want more than 0")
	}
	if f.streams < 1 || f.streams > 128 {
		return nil, fmt.Errorf("--iperf3-max-streams %d: want 1 to 128", f.streams)
	}
	o := iperf3.Options{MaxTests: tests, MaxTestsPerAddress: tests, MaxIdle: maxIdle(descriptors()), MaxStreams: f.streams, MaxLength: length, MaxRate: f.rate, MaxUDPRate: f.udpRate,
		CPU: watch.Own, Log: log, Ready: ready}
	if (f.users == "") != (f.key == "") {
		return nil, errors.New("--iperf3-users and --iperf3-private-key go together")
	}
	if f.users == "" {
		return &iperf3.Server{Options: o}, nil
	}
	o.Login = &iperf3.Login{Now: time.Now}
	if f.pkcs1 {
		o.Login.Padding = wire.PKCS1
	}
	text, err := os.ReadFile(f.users)
	if err == nil {
		o.Login.Users, err = wire.ParseUsers(text)
	}
	if err != nil {
		return nil, fmt.Errorf("--iperf3-users: %w", err)
	}
	if len(o.Login.Users) == 0 {
		return nil, fmt.Errorf("--iperf3-users: %s names nobody", f.users)
	}
	text, err = os.ReadFile(f.key)
	if err == nil {
		o.Login.Key, err = wire.ParsePrivateKey(text)
	}
	if err != nil {
		return nil, fmt.Errorf("--iperf3-private-key: %w", err)
	}
	return &iperf3.Server{Options: o}, nil
}
