package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"bufferbloat/internal/host"
	"bufferbloat/report"
	"bufferbloat/servers/directory"
)

// serversFlags are the flags of bloat servers as parsed.
type serversFlags struct {
	directory directoryFlags
	rank      bool
	json      bool
	protocol  string
	four, six bool
}

func (a *app) serversCommand() *cobra.Command {
	f := &serversFlags{}
	cmd := &cobra.Command{
		Use:   "servers [ID...]",
		Short: "List the public servers, with what their operators ask",
		Long: `Lists public servers: where they are, how to get in, and what their operators ask of those who use them. Nothing is sent, but with --rank,
which makes three TCP handshakes with each server listed. With an ID the whole entry is printed, with its policy and the source of what is claimed.
Whether a server is there is not known before somebody asks it.`,
		Example: `  bloat servers
  bloat servers bufferbloat-east
  bloat servers --protocol netperf --rank`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.servers(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.rank, "rank", false, "ask each server how far it is, and list the nearest first")
	flags.StringVar(&f.protocol, "protocol", "", "only servers that speak this: netperf, irtt, iperf3, ndt7, ...")
	flags.BoolVarP(&f.four, "ipv4", "4", false, "rank by IPv4")
	flags.BoolVarP(&f.six, "ipv6", "6", false, "rank by IPv6")
	flags.BoolVar(&f.json, "json", false, "print the list as JSON ("+directory.Schema+"), which --directory reads again")
	f.directory.register(flags)
	return cmd
}

// servers lists the directory.
func (a *app) servers(ctx context.Context, f *serversFlags, ids []string) error {
	if f.four && f.six {
		return &usageError{errors.New("-4 and -6 exclude each other")}
	}
	list, _, err := f.directory.lists()
	if err != nil {
		return &usageError{err}
	}
	entries, err := f.chosen(list, ids)
	if err != nil {
		return &usageError{err}
	}
	out := directory.Listing{Version: a.version}
	out.Schema = directory.Schema
	if out.Uses, err = a.uses(ctx, entries); err != nil {
		return err
	}
	var ranked []directory.Ranked
	if f.rank {
		ranked, entries = f.ranked(ctx, entries)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		out.Ranking = places(ranked)
		if len(ranked) == 0 || ranked[0].Err != nil {
			a.status = statusFailed
		}
	}
	for _, e := range entries {
		out.Servers = append(out.Servers, *e)
	}
	switch {
	case f.json:
		e := json.NewEncoder(a.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(out)
	case len(ids) > 0:
		return a.printEntries(out)
	}
	return a.printServers(out, ranked)
}

// chosen returns the entries with the ids, or all, of the protocol that was asked for.
func (f *serversFlags) chosen(list *directory.Directory, ids []string) ([]*directory.Entry, error) {
	var out []*directory.Entry
	var seen []string
	for i := range list.Servers {
		e := &list.Servers[i]
		if _, ok := e.PortOf(f.protocol); f.protocol != "" && e.Protocol != f.protocol && !ok {
			continue
		}
		if len(ids) > 0 && !slices.Contains(ids, e.ID) {
			continue
		}
		seen = append(seen, e.ID)
		out = append(out, e)
	}
	for _, id := range ids {
		if !slices.Contains(seen, id) {
			return nil, fmt.Errorf("no server %q in the directory; see bloat servers", id)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no server of the directory speaks %q", f.protocol)
	}
	return out, nil
}

// uses says how often the servers were used, and how often they may be.
func (a *app) uses(ctx context.Context, entries []*directory.Entry) ([]directory.Used, error) {
	l, err := ledger()
	if err != nil {
		return nil, err
	}
	var out []directory.Used
	for _, e := range entries {
		count, err := l.Count(ctx, e, a.now())
		if err != nil {
			return nil, err
		}
		u := directory.Used{ID: e.ID, Today: count.Today, Ever: count.Ever}
		u.PerDay, u.SaidByOperator = e.RunsPerDay()
		out = append(out, u)
	}
	return out, nil
}

// ranked asks the servers, and returns all of them in the new order, those that can't be asked last.
func (f *serversFlags) ranked(ctx context.Context, entries []*directory.Entry) ([]directory.Ranked, []*directory.Entry) {
	family := host.AnyFamily
	switch {
	case f.four:
		family = host.IPv4
	case f.six:
		family = host.IPv6
	}
	ranked := directory.Rank(ctx, host.NewKernel(), entries, f.protocol, family, host.Options{})
	var order []*directory.Entry
	for _, r := range ranked {
		order = append(order, r.Entry)
	}
	for _, e := range entries {
		if !slices.Contains(order, e) {
			order = append(order, e)
		}
	}
	return ranked, order
}

func places(ranked []directory.Ranked) []directory.Place {
	out := []directory.Place{}
	for _, r := range ranked {
		p := directory.Place{ID: r.Entry.ID, Port: r.Port}
		if r.Address.IsValid() {
			p.Address = r.Address.String()
		}
		if r.Err != nil {
			text := r.Err.Error()
			p.Error = &text
		} else {
			ns := r.RTT.Nanoseconds()
			p.RTT = &ns
		}
		out = append(out, p)
	}
	return out
}

// printServers prints a line for each server.
func (a *app) printServers(l directory.Listing, ranked []directory.Ranked) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	if ranked != nil {
		fmt.Fprint(w, "RTT\t")
	}
	fmt.Fprintln(w, "ID\tPROTOCOL\tHOST\tPORT\tLOCATION\tACCESS\tAUTOMATION\tRUNS IN 24 H")
	for i := range l.Servers {
		e, u := &l.Servers[i], &directory.Used{}
		for j := range l.Uses {
			if l.Uses[j].ID == e.ID {
				u = &l.Uses[j]
			}
		}
		if ranked != nil {
			rtt := "-"
			switch {
			case i >= len(ranked):
			case ranked[i].Err != nil:
				rtt = "no answer"
			default:
				rtt = fmt.Sprintf("%.1f ms", float64(ranked[i].RTT)/float64(time.Millisecond))
			}
			fmt.Fprintf(w, "%s\t", rtt)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", report.Printable(e.ID), report.Printable(protocolsOf(e)), known(e.Host), port(e.Port), known(e.Location),
			known(e.Auth.Method), allowed(e.AllowsAutomation, "no", "not known: no"), fmt.Sprintf("%d of %d", u.Today, u.PerDay))
	}
	return w.Flush()
}

// printEntries prints all that is known of servers.
func (a *app) printEntries(l directory.Listing) error {
	for i := range l.Servers {
		e, u := &l.Servers[i], l.Uses[slices.IndexFunc(l.Uses, func(u directory.Used) bool { return u.ID == l.Servers[i].ID })]
		limit := fmt.Sprintf("%d (this program's own limit; the operator names none)", u.PerDay)
		if u.SaidByOperator {
			limit = strconv.Itoa(u.PerDay)
		}
		load := "-"
		if e.MaxSeconds != nil {
			load = fmt.Sprintf("%d s", *e.MaxSeconds)
		}
		checked := "nobody did"
		if e.Checked != nil {
			checked = *e.Checked + ", by " + known(e.CheckedBy)
		}
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		for _, row := range [][2]string{
			{"server", report.Printable(e.ID)}, {"operator", known(e.Operator)}, {"protocol", report.Printable(protocolsOf(e))}, {"host", known(e.Host)},
			{"port", port(e.Port)}, {"discovery", known(e.Discovery)}, {"location", known(e.Location)}, {"families", families(e.Families)},
			{"access", known(e.Auth.Method)}, {"to be had at", known(e.Auth.Where)}, {"policy", report.Printable(e.Policy)},
			{"automation", allowed(e.AllowsAutomation, "forbidden", "not known, so this program refuses it")}, {"runs in 24 h", limit},
			{"runs so far", fmt.Sprintf("%d in the last 24 h, %d ever", u.Today, u.Ever)}, {"load in a run", load}, {"capacity", known(e.Capacity)},
			{"last checked", checked}, {"source", report.Printable(e.Source)},
		} {
			fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, p := range l.Ranking {
		if p.RTT != nil {
			fmt.Fprintf(a.stdout, "\n%s: %v by TCP handshake with %s, port %d\n", report.Printable(p.ID), time.Duration(*p.RTT), p.Address, p.Port)
		} else if p.Error != nil {
			fmt.Fprintf(a.stdout, "\n%s: %s\n", report.Printable(p.ID), report.Printable(*p.Error))
		}
	}
	return nil
}

func known(s *string) string {
	if s == nil || *s == "" {
		return "-"
	}
	return report.Printable(*s)
}

func port(p *uint16) string {
	if p == nil {
		return "-"
	}
	return strconv.Itoa(int(*p))
}

func allowed(b *bool, no, unknown string) string {
	switch {
	case b == nil:
		return unknown
	case *b:
		return "allowed"
	}
	return no
}

func families(list []int) string {
	if list == nil {
		return "-"
	}
	var out []string
	for _, f := range list {
		out = append(out, "IPv"+strconv.Itoa(f))
	}
	return strings.Join(out, ", ")
}

// protocolsOf lists what a server speaks.
func protocolsOf(e *directory.Entry) string {
	out := []string{e.Protocol}
	for _, s := range e.Also {
		if !slices.Contains(out, s.Protocol) {
			out = append(out, s.Protocol)
		}
	}
	return strings.Join(out, ",")
}
