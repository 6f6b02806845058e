package bufferbloat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/resolvconf"
	"bufferbloat/load/netperf"
	"bufferbloat/probe"
	"bufferbloat/probe/path"
	"bufferbloat/probe/tcp"
	"bufferbloat/probe/timestamp"
)

// SystemResolver as the target of a DNS probe, or of a page's look-ups, is the first resolver of this host's own settings. A plan must say so,
// because its packets leave the path to the server.
const SystemResolver = "system"

const (
	resolverFile = "/etc/resolv.conf"
	// firstTry is how long the first transaction of an application probe may take, which shows whether there can be a series.
	firstTry = 5 * time.Second
	// pageDeadline is after what time a page is given up.
	pageDeadline = probe.Patience
)

// The ports of the lab server, and of others as a rule.
const (
	httpPort  = 80
	httpsPort = 443
)

// isVoice reports whether a probe's packets are like those of a G.711 call: as many bytes, each 10 or 20 ms.
func (p *ProbePlan) isVoice() bool {
	return p.Size == voiceSize && p.Interval <= voiceInterval
}

// takesURL reports whether the URL of a probe says where it goes, in place of its target.
func (k ProbeKind) takesURL() bool { return k == Connect || k == TLS || k == Fetch || k == Page }

// object returns the URL of a probe and its port: the plan's, or else the root of the probe's own host.
func (a *askedProbe) object() (*url.URL, uint16, error) {
	if a.plan.URL == "" {
		port, scheme, host := uint16(httpPort), "http", a.target
		if a.kind == TLS {
			port, scheme = httpsPort, "https"
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return &url.URL{Scheme: scheme, Host: host, Path: "/"}, port, nil
	}
	u, err := url.Parse(a.plan.URL)
	if err != nil {
		return nil, 0, fmt.Errorf("URL %.80q: %w", a.plan.URL, err)
	}
	port := uint16(httpPort)
	if u.Scheme == "https" {
		port = httpsPort
	}
	if text := u.Port(); text != "" {
		at, err := netip.ParseAddrPort("0.0.0.0:" + text)
		if err != nil || at.Port() == 0 {
			return nil, 0, fmt.Errorf("URL %.80q: port %s: want 1 to 65535", a.plan.URL, text)
		}
		port = at.Port()
	}
	return u, port, nil
}

// kindProbe opens a probe of a kind that Run has not itself.
func (r *run) kindProbe(ctx context.Context, a askedProbe, o probe.Options) (probe.Transport, error) {
	prober, ok := r.o.Kinds.Probes[a.kind]
	if !ok { // Plan.beyond refuses such a plan
		return nil, fmt.Errorf("kind %q can't be carried out", a.kind)
	}
	limited, cancel := host.WithTimeout(ctx, r.h, max(firstTry, a.peer.patience()))
	defer cancel()
	to, u, err := a.place()
	if err != nil {
		return nil, err
	}
	asked := AskedProbe{Plan: a.plan, Kind: a.kind, Site: r.site(a.peer, a.server()), To: to, URL: u}
	_, port := resolverOf(a.plan.Target)
	switch {
	case a.kind == DNS:
		asked.To = netip.AddrPortFrom(a.addr, port)
	case a.kind == Page:
		resolver := a.peer.addr
		if a.plan.Target != "" {
			if resolver, err = r.resolver(ctx, a.plan, a.peer); err != nil {
				return nil, err
			}
		}
		asked.Resolver = netip.AddrPortFrom(resolver, port)
	}
	return prober(limited, asked, o)
}

// place is where a probe goes that has a URL, or could have one.
func (a *askedProbe) place() (netip.AddrPort, *url.URL, error) {
	u, port, err := a.object()
	return netip.AddrPortFrom(a.addr, port), u, err
}

// connectProbe opens a probe that is a TCP connection.
func (r *run) connectProbe(a askedProbe, o probe.Options) (probe.Transport, error) {
	to, _, err := a.place()
	if err != nil {
		return nil, err
	}
	if a.plan.URL == "" {
		to = netip.AddrPortFrom(a.addr, a.peer.tcpPort())
	}
	return tcp.Dial(r.h, to, o)
}

// resolverOf returns the host and the port that a target which is a resolver names: HOST, or HOST:PORT.
func resolverOf(target string) (name string, port uint16) {
	if name, text, err := net.SplitHostPort(target); err == nil {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
			return name, uint16(n)
		}
	}
	return target, resolvconf.Port
}

// resolver returns the address of the resolver that a plan names as a probe's target.
func (r *run) resolver(ctx context.Context, pp *ProbePlan, p *peer) (netip.Addr, error) {
	if pp.Target != SystemResolver {
		there := *pp
		there.Target, _ = resolverOf(pp.Target)
		return r.target(ctx, &there, p)
	}
	text, err := os.ReadFile(resolverFile)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("this host's resolver: %w; name one", err)
	}
	found := resolvconf.Nameservers(text)
	if len(found) == 0 {
		return netip.Addr{}, fmt.Errorf("this host's resolver: %s names none; name one", resolverFile)
	}
	return found[0].Addr(), nil
}

// timestampProbe opens a probe with ICMP timestamps, if the host answers them.
func (r *run) timestampProbe(ctx context.Context, a askedProbe, o probe.Options) (probe.Transport, error) {
	try, err := timestamp.Dial(ctx, r.h, a.addr, o)
	if err != nil {
		return nil, err
	}
	if !r.answered(ctx, openProbe{options: o, transport: try}, a.peer) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%v does not answer ICMP timestamp requests", a.addr)
	}
	return timestamp.Dial(ctx, r.h, a.addr, o) // the try's transport is spent
}

// exchange is a probe of requests and responses on netperf's terms.
type exchange struct{ *netperf.Exchange }

func (e exchange) Receive() (probe.Reply, error) {
	a, err := e.Exchange.Receive()
	r := probe.Reply{Seq: a.Seq, At: a.At, Stamp: a.Stamp, DS: a.DS, HasDS: a.HasDS}
	if a.Err != nil {
		r.Kind, r.Err = probe.Rejected, a.Err
		var by *host.RejectedError
		if errors.As(a.Err, &by) {
			r.By = by.By
		}
	}
	return r, err
}

// exchangeProbe opens a probe of requests and responses with a netperf server.
func (r *run) exchangeProbe(ctx context.Context, a askedProbe, o probe.Options) (probe.Transport, error) {
	c, t := r.transactions(a, o)
	t.Length = a.plan.Start + a.length + sessionSlack
	x, err := c.OpenExchange(ctx, t)
	if err != nil {
		return nil, err
	}
	return exchange{x}, nil
}

// transactions describe what a probe asks of a netperf server, but for how long.
func (r *run) transactions(a askedProbe, o probe.Options) (*netperf.Client, netperf.TransactionOptions) {
	c := r.client(a.server(), a.addr)
	c.Socket.ECN = o.Socket.ECN
	t := netperf.TransactionOptions{Kind: netperf.UDPRR, RequestSize: a.plan.Size, ResponseSize: a.plan.Size, Timeout: probe.DefaultDeadline,
		DSCP: a.plan.DSCP, ServerDSCP: a.plan.DSCP, DataPort: a.peer.server.DataPort, Server: a.peer.info}
	if a.kind == TCPRR || a.kind == ClosedTCPRR {
		t.Kind = netperf.TCPRR
	}
	return c, t
}

// routerLimit is why what a router does not answer is no loss.
const routerLimit = "routers limit how often they say that a packet's time ran out"

// openHops makes a series ready for each router that answers on the way to a probe's target.
func (r *run) openHops(ctx context.Context, pp *ProbePlan) (open []openProbe, err error) {
	defer func() {
		if err != nil {
			closeProbes(open)
		}
	}()
	a, err := r.asked(ctx, pp, Route)
	if err != nil {
		return nil, err
	}
	o := a.options()
	hops, err := path.Discover(ctx, r.h, a.addr, o, path.Options{Patience: a.peer.patience()})
	if err != nil {
		return nil, err
	}
	if len(hops) == 0 {
		return nil, fmt.Errorf("no router on the way to %v answers", a.addr)
	}
	for _, hop := range hops {
		t, err := path.Dial(ctx, r.h, a.addr, hop, o)
		if err != nil {
			return open, err
		}
		p := openProbe{options: o, transport: t, series: a.series()}
		p.series.Name = fmt.Sprintf("%s %d", pp.Name, hop.TTL)
		p.series.Address, p.series.Hop, p.series.NoLoss = hop.Addr.String(), int(hop.TTL), routerLimit
		if hop.UDP {
			p.series.Reason = "by UDP, since no router answers for ICMP echo requests"
		}
		open = append(open, p)
	}
	return open, nil
}
