package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/servers/dns"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/web"
)

// appServers are what application probes ask: a resolver and a web server with and without TLS.
const appServers = 3

// serveApps runs them in group on the lab's server, at both families, until ctx is done. Each calls ready. It returns the roots by which a client knows the web server.
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
	plain, tls := &web.Server{Options: web.Options{Ready: ready}}, &web.Server{Options: web.Options{Ready: ready, TLS: secure}}
	group.Go(func() error { return d.Serve(ctx, h, both(dns.Port)...) })
	group.Go(func() error { return plain.Serve(ctx, h, both(web.Port)...) })
	group.Go(func() error { return tls.Serve(ctx, h, both(web.TLSPort)...) })
	return roots, nil
}
