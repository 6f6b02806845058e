package protocols

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"bufferbloat"
	"bufferbloat/probe"
	"bufferbloat/probe/dns"
	"bufferbloat/probe/http"
	"bufferbloat/probe/page"
	"bufferbloat/probe/tls"
)

func dnsProbe(ctx context.Context, p bufferbloat.AskedProbe, o probe.Options) (probe.Transport, error) {
	name := p.Plan.Query
	if name == "" {
		name = p.Site.Server.Host
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return nil, fmt.Errorf("look-ups want a name, and %s is an address: say what to look up", name)
	}
	return eitherFamily(func(ipv6 bool) (probe.Transport, error) {
		return dns.Dial(ctx, p.Site.Host, p.To, o, dns.Options{Name: name, IPv6: ipv6})
	})
}

func (t Options) tlsProbe(ctx context.Context, p bufferbloat.AskedProbe, o probe.Options) (probe.Transport, error) {
	return tls.Dial(ctx, p.Site.Host, p.To, o, tls.Options{Name: p.URL.Hostname(), Roots: t.Roots})
}

func (t Options) fetchProbe(ctx context.Context, p bufferbloat.AskedProbe, o probe.Options) (probe.Transport, error) {
	return http.Dial(ctx, p.Site.Host, p.To, p.URL, o, http.Options{Roots: t.Roots})
}

// pageName is what the lab server is asked for where the plan names it by its address; it answers to any name.
const pageName = "page.lab"

// pageProbe opens a probe of pages. Without a URL they are the lab server's, by the default profile; a page that the user names is one object,
// behind one look-up of its host where the plan says whom to ask.
func (t Options) pageProbe(ctx context.Context, p bufferbloat.AskedProbe, o probe.Options) (probe.Transport, error) {
	profile := page.Default()
	names := []string{p.URL.Hostname()}
	if p.Plan.URL != "" {
		profile = page.Profile{Name: "object", Parallel: 1, Paths: []string{""}}
		if p.Plan.Target != "" {
			profile.LookUps = 1
		}
	}
	if _, err := netip.ParseAddr(names[0]); err == nil {
		if names[0] = pageName; p.Plan.URL != "" {
			profile.LookUps = 0 // an address needs none
		}
	}
	return eitherFamily(func(ipv6 bool) (probe.Transport, error) {
		return page.Dial(ctx, p.Site.Host, p.To, p.URL, o, page.Options{Profile: &profile, Resolver: p.Resolver, Names: names, IPv6: ipv6, Roots: t.Roots})
	})
}

// eitherFamily opens a probe that looks up IPv4 addresses or, where the name has none, IPv6 ones. It makes no difference to what is measured.
func eitherFamily(open func(ipv6 bool) (probe.Transport, error)) (probe.Transport, error) {
	t, err := open(false)
	if errors.Is(err, dns.ErrNoAddress) {
		t, err = open(true)
	}
	return t, err
}
