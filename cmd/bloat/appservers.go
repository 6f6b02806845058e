package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/servers/dns"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/web"
)

// appServers are what application probes ask: a resolver and a web server with and without TLS.
const appServers = 3

// serveApps runs them in group on the lab's server, at both families, until ctx is done. Each calls ready. It returns the roots by which a
// client knows the web server.
func serveApps(ctx context.Context, group *errgroup.Group, h host.Host, both func(port uint16) []netip.AddrPort, ready func([]netip.AddrPort)) (*x509.CertPool, error) {
	names := []string{lab.Name}
	for _, family := range []host.Family{host.IPv4, host.IPv6} {
		addrs, err := h.Resolve(ctx, lab.Name, family)
		if err != nil {
			return nil, fmt.Errorf("the lab's web server: %w", err)
		}
		names = append(names, addrs[0].String())
	}
	secure, roots, err := web.SelfSigned(h, names...)
	if err != nil {
		return nil, fmt.Errorf("the lab's web server: %w", err)
	}
	d := &dns.Server{Options: dns.Options{Ready: ready}}
	plain, private := &web.Server{Options: web.Options{Ready: ready}}, &web.Server{Options: web.Options{Ready: ready, TLS: secure}}
	group.Go(func() error { return d.Serve(ctx, h, both(dns.Port)...) })
	group.Go(func() error { return plain.Serve(ctx, h, both(web.Port)...) })
	group.Go(func() error { return private.Serve(ctx, h, both(web.TLSPort)...) })
	return roots, nil
}

// appFlags are those flags of bloat serve that concern what application probes ask. All are off unless a port is given: these servers answer anybody.
type appFlags struct {
	dns, http, https uint16
	certificate, key string
}

func (f *appFlags) register(flags *pflag.FlagSet) {
	flags.Uint16Var(&f.dns, "dns-port", 0, "UDP port of a resolver that answers every name with its own address, for probes; 0 for none")
	flags.Uint16Var(&f.http, "http-port", 0, "port of a web server of objects /bytes/N, for probes; 0 for none")
	flags.Uint16Var(&f.https, "https-port", 0, "the same over TLS; 0 for none")
	flags.StringVar(&f.certificate, "tls-certificate", "", "file of its certificate, in PEM")
	flags.StringVar(&f.key, "tls-key", "", "file of its private key, in PEM")
}

// serve runs the servers in group until ctx is done, or says what is wrong with the flags. No connection lasts longer than longest.
func (f *appFlags) serve(ctx context.Context, group *errgroup.Group, h host.Host, at func(port uint16) []netip.AddrPort, longest time.Duration,
	ready func(what string) func([]netip.AddrPort)) error {
	var secure *tls.Config
	if f.https != 0 {
		if f.certificate == "" || f.key == "" {
			return errors.New("--https-port needs --tls-certificate and --tls-key")
		}
		pair, err := tls.LoadX509KeyPair(f.certificate, f.key)
		if err != nil {
			return fmt.Errorf("--tls-certificate and --tls-key: %w", err)
		}
		secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if f.dns != 0 {
		s := &dns.Server{Options: dns.Options{Ready: ready("DNS")}}
		group.Go(func() error { return s.Serve(ctx, h, at(f.dns)...) })
	}
	for _, w := range []struct {
		what   string
		port   uint16
		secure *tls.Config
	}{{"HTTP", f.http, nil}, {"HTTPS", f.https, secure}} {
		if w.port == 0 {
			continue
		}
		s := &web.Server{Options: web.Options{TLS: w.secure, MaxTime: longest, MaxConnections: maxIdle(descriptors()), Ready: ready(w.what)}}
		group.Go(func() error { return s.Serve(ctx, h, at(w.port)...) })
	}
	return nil
}

// readRoots returns the certificates in the PEM file that --ca names, nil for "".
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca: %s has no certificate in PEM", file)
	}
	return roots, nil
}
