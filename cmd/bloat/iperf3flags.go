package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/pflag"

	"bufferbloat"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/protocols"
	"bufferbloat/servers/iperf3"
)

// iperf3Login are the flags of a login to an iperf3 server. The password is the passphrase.
type iperf3Login struct {
	user, key string
	pkcs1     bool
}

// registerIPerf3 registers the flags that concern iperf3 servers.
func (f *measureFlags) registerIPerf3(flags *pflag.FlagSet) {
	flags.Uint16Var(&f.iperf3Port, "iperf3-port", wire.Port, "port of the iperf3 server")
	flags.StringVar(&f.iperf3.user, "iperf3-user", "", "user name for an iperf3 server that asks; the passphrase (-Z) is the password")
	flags.StringVar(&f.iperf3.key, "iperf3-public-key", "", "file of that server's RSA public key, in PEM")
	flags.BoolVar(&f.iperf3.pkcs1, "iperf3-pkcs1", false, "encrypt the login as iperf3 servers before 3.17 want it")
}

// login returns the login that the flags describe, nil for none.
func (l iperf3Login) login(password string) (*protocols.Login, error) {
	switch {
	case l.user == "" && l.key == "":
		return nil, nil
	case l.user == "" || l.key == "":
		return nil, errors.New("--iperf3-user and --iperf3-public-key go together")
	}
	text, err := os.ReadFile(l.key)
	if err != nil {
		return nil, fmt.Errorf("--iperf3-public-key: %w", err)
	}
	key, err := wire.ParsePublicKey(text)
	if err != nil {
		return nil, fmt.Errorf("--iperf3-public-key: %w", err)
	}
	return &protocols.Login{User: l.user, Password: password, Key: key, PKCS1: l.pkcs1}, nil
}

// labIPerf3 is the iperf3 server of a lab.
func labIPerf3(ready func([]netip.AddrPort)) *iperf3.Server {
	return &iperf3.Server{Options: iperf3.Options{MaxTests: bufferbloat.MaxFlows, MaxTestsPerAddress: bufferbloat.MaxFlows, Ready: ready}}
}

// iperf3Port is a server's iperf3 port, also where no plan needs one.
func iperf3Port(s bufferbloat.Server) uint16 { return cmp.Or(s.IPerf3Port, wire.Port) }
