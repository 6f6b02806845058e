// Package page probes with web pages: each probe looks up names, opens connections and fetches objects as a browser does that loads a page.
package page

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/internal/fetch"
	"bufferbloat/probe/internal/lookup"
	"bufferbloat/probe/internal/transact"
)

// MaxInFlight bounds the pages that are being loaded: on a path that takes longer for one than the interval, more would be a load of their
// own. A probe beyond it is not sent.
const MaxInFlight = 4

// Profile says what a page consists of. A page's time means something only beside its profile.
type Profile struct {
	Name     string   // with its version: "bloat/1"
	LookUps  int      // names that are looked up; the objects are spread over them
	Parallel int      // connections at the same time
	Paths    []string // of the objects; the first is the document, which names all others
}

// Default is the page of the lab server: 24 look-ups, and 37 objects of 196 kB together over new connections, 12 at a time. That is small for
// a page of today, so that a page each few seconds is no load of its own on a slow line.
func Default() Profile {
	p := Profile{Name: "bloat/1", LookUps: 24, Parallel: 12, Paths: []string{"/bytes/16000"}}
	for range 12 {
		p.Paths = append(p.Paths, "/bytes/1000", "/bytes/4000", "/bytes/10000")
	}
	return p
}

// check returns an error where p is no page.
func (p *Profile) check() error {
	const most = 1000
	if len(p.Paths) == 0 || len(p.Paths) > most || p.LookUps < 0 || p.LookUps > most || p.Parallel < 1 || p.Parallel > most {
		return fmt.Errorf("page profile %q of %d objects and %d look-ups, %d at a time: want 1 to %d of each, and 0 for no look-ups",
			p.Name, len(p.Paths), p.LookUps, p.Parallel, most)
	}
	return nil
}

// Options are what a page has beyond probe.Options.
type Options struct {
	Profile  *Profile       // nil is Default
	Resolver netip.AddrPort // whom to ask for names; needed where the profile has look-ups
	Names    []string       // that are looked up, again from the first where the profile wants more; needed where it has look-ups
	IPv6     bool           // look up IPv6 addresses instead of IPv4 ones
	Roots    *x509.CertPool // whom to believe behind https; nil is the system's own
}

// Transport is a probe.Transport of pages.
//
// A page begins with the look-up of its first name and then the document. When that is there, all other names are looked up at once, and each
// object is fetched as soon as its name is known and one of Profile.Parallel connections is free. All objects are at one address, whatever the
// look-ups say, so that traffic goes where the user wanted it. The RTT of a page runs from before its first look-up until the last byte of its
// last object, both stamped by this program. A look-up without an answer is repeated after 1, 2 and 4 s, as a browser's would be.
//
// An object or a name that can't be had makes a page Rejected, with the reason; see probe/http and probe/dns. A page that is not there after
// Options.Deadline is lost.
type Transport struct {
	*transact.Transport
	profile Profile
	target  fetch.Target
	base    string
	queries []*lookup.Query
	asker   lookup.Asker
}

// Dial returns a Transport of pages below u, whose host is at target, after one that showed that it can be loaded. The error says why it can't.
func Dial(ctx context.Context, h host.Host, target netip.AddrPort, u *url.URL, po probe.Options, o Options) (*Transport, error) {
	t, err := newTransport(h, target, u, po, o)
	if err != nil {
		return nil, fmt.Errorf("probe with web pages: %w", err)
	}
	if err := t.Check(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("probe with web pages: %v: %w", target, err)
	}
	return t, nil
}

func newTransport(h host.Host, target netip.AddrPort, u *url.URL, po probe.Options, o Options) (*Transport, error) {
	po, err := po.WithDefaults()
	if err != nil {
		return nil, err
	}
	t := &Transport{profile: Default(), base: strings.TrimSuffix(u.EscapedPath(), "/"),
		asker: lookup.Asker{Network: h, Clock: h, Resolver: o.Resolver, Socket: po.Socket}}
	if o.Profile != nil {
		t.profile = *o.Profile
	}
	if err := t.profile.check(); err != nil {
		return nil, err
	}
	if t.target, err = fetch.NewTarget(h, target, u, po.Socket, o.Roots); err != nil {
		return nil, err
	}
	if t.profile.LookUps > 0 && (len(o.Names) == 0 || !o.Resolver.IsValid() || o.Resolver.Port() == 0) {
		return nil, errors.New("the profile has look-ups: want a resolver and names to look up")
	}
	for i := range t.profile.LookUps {
		q, err := lookup.NewQuery(o.Names[i%len(o.Names)], o.IPv6)
		if err != nil {
			return nil, err
		}
		t.queries = append(t.queries, q)
	}
	t.Transport = transact.New(h, transact.Options{What: "web pages", Limit: MaxInFlight, Deadline: po.Deadline}, t.load)
	return t, nil
}

// Profile returns what the pages consist of. The copy shares its Paths.
func (t *Transport) Profile() Profile { return t.profile }

func (t *Transport) load(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
	begun(t.target.Host.Now())
	// The first error ends the page, and is the one that counts: what it ends fails for that reason alone.
	err := t.page(ctx)
	at := t.target.Host.Now()
	if err != nil {
		return fetch.Failed(ctx, err)
	}
	return probe.Reply{At: at}, true
}

func (t *Transport) page(ctx context.Context) error {
	if len(t.queries) > 0 {
		if err := t.lookUp(ctx, t.queries[0]); err != nil {
			return err
		}
	}
	if err := t.get(ctx, t.profile.Paths[0]); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	known := make([]chan struct{}, len(t.queries))
	for i := range known {
		known[i] = make(chan struct{})
		if i == 0 {
			close(known[0])
			continue
		}
		group.Go(func() error {
			defer close(known[i])
			return t.lookUp(ctx, t.queries[i])
		})
	}
	free := make(chan struct{}, t.profile.Parallel)
	for i, path := range t.profile.Paths[1:] {
		group.Go(func() error {
			if len(known) > 0 {
				<-known[i%len(known)] // look-ups end with ctx
			}
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			defer func() { <-free }()
			return t.get(ctx, path)
		})
	}
	return group.Wait()
}

func (t *Transport) get(ctx context.Context, path string) error {
	_, _, err := t.target.Get(ctx, t.base+path)
	return err
}

// patience is how long each try of a look-up is waited for.
var patience = [...]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

func (t *Transport) lookUp(ctx context.Context, q *lookup.Query) (err error) {
	for _, wait := range patience {
		if err = t.try(ctx, q, wait); err == nil || ctx.Err() != nil || !transact.IsSilence(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("look up %v at %v: %w", q, t.asker.Resolver, err)
	}
	return nil
}

func (t *Transport) try(ctx context.Context, q *lookup.Query, wait time.Duration) error {
	ctx, cancel := host.WithTimeout(ctx, t.target.Host, wait)
	defer cancel()
	_, err := t.asker.Ask(ctx, q, func(time.Time) {})
	return err
}
