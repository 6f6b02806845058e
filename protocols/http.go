package protocols

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/load/http"
)

// endless is the length of the object that our own web server is asked for, and of the body that it takes: more than any flow moves.
const endless int64 = 1 << 40

// httpFlows carries out flows over HTTP and HTTPS.
type httpFlows struct{ Options }

// webURL is where an HTTP flow goes: the plan's URL, or the object of our own web server at its host.
func webURL(f *bufferbloat.FlowPlan, s bufferbloat.Server) (*url.URL, error) {
	if f.URL != "" {
		u, err := url.Parse(f.URL)
		if err != nil {
			return nil, fmt.Errorf("URL %.80q: %w", f.URL, err)
		}
		return u, nil
	}
	name := s.Host
	if strings.Contains(name, ":") {
		name = "[" + name + "]"
	}
	path := "/"
	if f.Direction == load.Download {
		path = fmt.Sprintf("/bytes/%d", endless)
	}
	return &url.URL{Scheme: "http", Host: name, Path: path}, nil
}

// client returns a client for an HTTP flow.
func (h httpFlows) client(f bufferbloat.AskedFlow) (*http.Client, error) {
	u, err := webURL(f.Plan, f.Site.Server)
	if err != nil {
		return nil, err
	}
	o := f.Site.Socket
	o.DSCP = f.Plan.DSCP
	if f.Plan.Direction == load.Upload {
		o.CongestionControl = f.Plan.CongestionControl
	}
	c := &http.Client{Host: f.Site.Host, URL: u, Family: host.Family(f.Site.Family), Socket: o, Roots: h.Roots, AnyCertificate: h.AnyCertificate,
		HTTP2: f.Plan.Protocol == bufferbloat.HTTP2, Agent: strings.TrimSpace("bloat/" + f.Site.Version)}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		c.Addr = a.Unmap()
	} else if strings.EqualFold(u.Hostname(), f.Site.Server.Host) {
		c.Addr = f.Site.Addr
	}
	return c, nil
}

// Loaders implements bufferbloat.FlowKind.
func (h httpFlows) Loaders(flows []bufferbloat.AskedFlow) []bufferbloat.AskedLoader {
	loaders := make([]bufferbloat.AskedLoader, len(flows))
	for i, f := range flows {
		c, err := h.client(f)
		if err != nil {
			loaders[i].Err = err
			continue
		}
		o := http.FlowOptions{Direction: f.Plan.Direction, Length: f.Length, Bytes: f.Plan.Bytes, Rate: f.Plan.Rate}
		if f.Plan.URL == "" {
			o.Body = endless
		}
		loaders[i].Loader = c.NewFlow(o)
	}
	return loaders
}

// CheckFlow implements bufferbloat.FlowChecker.
func (h httpFlows) CheckFlow(ctx context.Context, f bufferbloat.AskedFlow) (setup time.Duration, note *bufferbloat.Finding, err error) {
	c, err := h.client(f)
	if err != nil {
		return 0, nil, err
	}
	info, err := c.Check(ctx, f.Plan.Direction)
	if err == nil && c.URL.Scheme == "https" && c.AnyCertificate {
		note = &bufferbloat.Finding{Code: "certificate_unchecked", Severity: bufferbloat.Note,
			Text: fmt.Sprintf("the certificate of %s was not checked: who answered is not known", quoteOdd(c.URL.Host))}
	}
	return info.Setup, note, err
}

// quoteOdd returns s, quoted where it holds anything that could confuse a terminal.
func quoteOdd(s string) string {
	if q := fmt.Sprintf("%+q", s); q != `"`+s+`"` {
		return q
	}
	return s
}
