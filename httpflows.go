package bufferbloat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/load/http"
)

// endless is the length of the object that our own web server is asked for, and of the body that it takes: more than any flow moves.
const endless = 1 << 40

// isWeb reports whether flows of a protocol go to web servers.
func (p Protocol) isWeb() bool { return p == HTTP || p == HTTP2 }

// isOwn reports whether a flow goes to our own web server, whose objects are known.
func (f *FlowPlan) isOwn() bool { return f.URL == "" }

// webURL is where an HTTP flow goes: the plan's URL, or the object of our own web server at its host.
func (f *FlowPlan) webURL(s Server) (*url.URL, error) {
	if !f.isOwn() {
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

// httpClient returns a client for an HTTP flow.
func (r *run) httpClient(f *FlowPlan, p *peer) (*http.Client, error) {
	u, err := f.webURL(p.server)
	if err != nil {
		return nil, err
	}
	o := socket(p.server)
	o.DSCP = f.DSCP
	if f.Direction == load.Upload {
		o.CongestionControl = f.CongestionControl
	}
	c := &http.Client{Host: r.h, URL: u, Family: host.Family(p.family), Socket: o, Roots: r.o.Roots, AnyCertificate: r.o.AnyCertificate, HTTP2: f.Protocol == HTTP2,
		Agent: strings.TrimSpace("bloat/" + r.o.Version)}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		c.Addr = a.Unmap()
	} else if strings.EqualFold(u.Hostname(), p.server.Host) {
		c.Addr = p.addr
	}
	return c, nil
}

func (r *run) httpFlow(f flowSpec) (loader, error) {
	c, err := r.httpClient(f.plan, f.peer)
	if err != nil {
		return nil, err
	}
	o := http.FlowOptions{Direction: f.plan.Direction, Length: f.length, Bytes: f.plan.Bytes, Rate: f.plan.Rate}
	if f.plan.isOwn() {
		o.Body = endless
	}
	return c.NewFlow(o), nil
}

// checkWeb asks the web servers of a plan once for each URL and direction. Where the plan has HTTP flows alone and none of them can run, that is an error, before
// anything is measured; otherwise those that can't say so when they are to begin.
func (r *run) checkWeb(ctx context.Context) error {
	type place struct {
		url, server string
		family      int
		direction   load.Direction
		protocol    Protocol
	}
	seen := map[place]bool{}
	var errs []error
	good, others := 0, 0
	for i := range r.plan.Phases {
		for j := range r.plan.Phases[i].Flows {
			f := &r.plan.Phases[i].Flows[j]
			if !f.Protocol.isWeb() {
				others++
				continue
			}
			p, at := r.peer(f.Server, f.Family), place{f.URL, f.Server, f.Family, f.Direction, f.Protocol}
			if seen[at] || p.err != nil {
				continue
			}
			seen[at] = true
			c, err := r.httpClient(f, p)
			if err == nil {
				var info http.ServerInfo
				if info, err = c.Check(ctx, f.Direction); err == nil {
					p.info.Setup = max(p.info.Setup, info.Setup)
				}
			}
			if err == nil {
				good++
				r.noteUnchecked(c)
			} else {
				errs = append(errs, err)
			}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if good+others > 0 || len(errs) == 0 {
		return nil
	}
	texts := []string{}
	for _, err := range errs {
		if text := err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return errors.New(strings.Join(texts, "; "))
}

// noteUnchecked says that a server was believed whoever it is.
func (r *run) noteUnchecked(c *http.Client) {
	if c.URL.Scheme != "https" || !c.AnyCertificate {
		return
	}
	f := Finding{Code: "certificate_unchecked", Severity: Note, Text: fmt.Sprintf("the certificate of %s was not checked: who answered is not known", quoteOdd(c.URL.Host))}
	if !slices.Contains(r.notes, f) {
		r.notes = append(r.notes, f)
	}
}

// mostBusy is the share of a CPU above which TLS, and not the path, may be what a flow shows.
const mostBusy = 0.8

// judgeTLS says what encryption took, for each phase with flows over TLS.
func (r *Recording) judgeTLS() (found []Finding) {
	for _, ph := range r.Phases {
		var shortest, longest, busy, took time.Duration
		flows, worst, agreed := 0, 0.0, ""
		for i := range r.Flows {
			f := &r.Flows[i]
			t := f.Result.TLS
			if f.Phase != ph.Name || t == nil {
				continue
			}
			if flows++; flows == 1 || t.Handshake < shortest {
				shortest = t.Handshake
			}
			longest, busy, agreed = max(longest, t.Handshake), busy+t.Busy, t.Version+", "+t.Cipher
			if span := f.Result.Last - f.Result.First; span > 0 {
				took = max(took, span)
				worst = max(worst, t.Busy.Seconds()/span.Seconds())
			}
		}
		if flows == 0 {
			continue
		}
		text := fmt.Sprintf("%d streams over TLS (%s): handshakes of %.1f to %.1f ms", flows, quoteOdd(agreed), milliseconds(shortest), milliseconds(longest))
		if took > 0 && busy > 0 {
			text += fmt.Sprintf("; encryption took %.1f %% of one CPU", 100*busy.Seconds()/took.Seconds())
		}
		found = append(found, Finding{"tls_cost", Note, ph.Name, text})
		if worst > mostBusy {
			found = append(found, Finding{"tls_bound", Weakens, ph.Name,
				fmt.Sprintf("TLS kept a stream busy %.0f %% of its time: its rate may be that of this host's encryption and not of the path", 100*worst)})
		}
	}
	return found
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
