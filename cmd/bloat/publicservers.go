package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/report"
	"bufferbloat/servers/directory"
)

// bestServer is the host that stands for the nearest public server.
const bestServer = "best"

// directoryFlags say which list of public servers holds, and whether somebody is there.
type directoryFlags struct {
	file       string
	unattended seconds
	flags      *pflag.FlagSet
}

// registerRun registers the flags of a command that uses servers.
func (f *directoryFlags) registerRun(flags *pflag.FlagSet) {
	f.register(flags)
	f.unattended = seconds(time.Minute)
	flags.Var(&f.unattended, "unattended", "nobody started this by hand but a timetable: wait a random time up to this first, and use no public server that forbids automation")
	flags.Lookup("unattended").NoOptDefVal = f.unattended.String()
	f.flags = flags
}

// automation returns what makes a run one that nobody started by hand: what its command says, or --unattended.
func (f *directoryFlags) automation(command string) string {
	if command == "" && f.flags != nil && f.flags.Changed("unattended") {
		return "--unattended"
	}
	return command
}

// wait lets a random time pass where the run is unattended, so that many hosts with one timetable don't come at once.
func (f *directoryFlags) wait(ctx context.Context) error {
	if f.automation("") == "" || f.unattended == 0 {
		return ctx.Err()
	}
	clock := host.NewKernel()
	return clock.SleepUntil(ctx, clock.Now().Add(time.Duration(rand.Int64N(int64(f.unattended)))))
}

func (f *directoryFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "directory", "", "list of public servers to use in place of the program's own (docs/servers.md)")
}

// lists returns the list to choose from, and the lists whose rules hold, the user's first.
func (f *directoryFlags) lists() (choice *directory.Directory, rules []*directory.Directory, err error) {
	own, err := directory.BuiltIn()
	if err != nil || f.file == "" {
		return own, []*directory.Directory{own}, err
	}
	if err := checkRegular(f.file); err != nil {
		return nil, nil, fmt.Errorf("--directory: %w", err)
	}
	b, err := os.ReadFile(f.file)
	if err != nil {
		return nil, nil, fmt.Errorf("--directory: %w", err)
	}
	users, err := directory.Parse(b)
	if err != nil {
		return nil, nil, fmt.Errorf("--directory: %s: %w", f.file, err)
	}
	return users, []*directory.Directory{users, own}, nil
}

// stateDir is the folder for what the program remembers between runs.
func stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "bloat"), nil
	}
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		dir, err := os.UserConfigDir()
		return filepath.Join(dir, "bloat", "state"), err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the count of runs: %w; set XDG_STATE_HOME", err)
	}
	return filepath.Join(home, ".local", "state", "bloat"), nil
}

func ledger() (*directory.Ledger, error) {
	dir, err := stateDir()
	return &directory.Ledger{Dir: dir, Clock: host.NewKernel()}, err
}

// publicUse is what a run is about to do to public servers.
type publicUse struct {
	servers []*directory.Entry // each once
	pinged  []*directory.Entry // hosts of a list that are only pinged
}

// publicServers returns the public servers that a plan uses, or a *directory.RefusedError where the rules of one forbid it. automation is what makes
// the run more than one that somebody started by hand ("--repeat", "a batch", "a sweep"), or "". Nothing is sent, and nothing counted.
func (f *directoryFlags) publicServers(plan *bufferbloat.Plan, automation string) (publicUse, error) {
	var use publicUse
	_, rules, err := f.lists()
	if err != nil {
		return use, &usageError{err}
	}
	find := func(name string) *directory.Entry {
		for _, d := range rules {
			if e, ok := d.Find(name); ok {
				return e
			}
		}
		return nil
	}
	var load time.Duration
	for _, ph := range plan.Phases {
		if ph.Kind == bufferbloat.Load {
			load += ph.Length
		}
	}
	var errs []error
	for _, name := range loadedHosts(plan) {
		e := find(name)
		if e == nil || slices.Contains(use.servers, e) {
			continue
		}
		use.servers = append(use.servers, e)
		errs = append(errs, e.Permit(directory.Use{Automation: f.automation(automation), Load: load}))
	}
	for _, p := range plan.Probes {
		if e := find(p.Target); e != nil && !slices.Contains(use.servers, e) && !slices.Contains(use.pinged, e) {
			use.pinged = append(use.pinged, e)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return use, &usageError{err}
	}
	return use, nil
}

// loadedHosts are the hosts that a plan sends load to.
func loadedHosts(plan *bufferbloat.Plan) []string {
	hosts := []string{plan.Server.Host}
	for _, s := range plan.Others {
		hosts = append(hosts, s.Host)
	}
	for _, ph := range plan.Phases {
		for _, f := range ph.Flows {
			if u, err := url.Parse(f.URL); err == nil && f.URL != "" {
				hosts = append(hosts, u.Hostname())
			}
		}
	}
	return hosts
}

// usePublicServers counts a run that is about to begin against the public servers of its plan, and tells their policies to who uses them for the first
// time. It returns an error where a rule or a count forbids the run, which then must not begin.
func (a *app) usePublicServers(ctx context.Context, f *directoryFlags, plan *bufferbloat.Plan, automation string) error {
	if automation == "" {
		automation = a.automation
	}
	use, err := f.publicServers(plan, automation)
	if err != nil {
		return err
	}
	if err := f.wait(ctx); err != nil || len(use.servers)+len(use.pinged) == 0 {
		return err
	}
	l, err := ledger()
	if err != nil {
		return err
	}
	for _, e := range append(use.servers, use.pinged...) {
		var count directory.Count
		if slices.Contains(use.servers, e) {
			count, err = l.Begin(ctx, e, a.now())
		} else {
			count, err = l.Tell(ctx, e)
		}
		if err != nil {
			return err
		}
		if count.Untold {
			a.tellPolicy(e)
		}
	}
	return nil
}

// tellPolicy prints a public server's policy.
func (a *app) tellPolicy(e *directory.Entry) {
	operator := "whose operator is not known"
	if e.Operator != nil {
		operator = "operator: " + *e.Operator
	}
	name := strings.TrimPrefix(e.Key(), "id:")
	fmt.Fprintf(a.stderr, "bloat: %s is a public server (%s). Its policy, said once: %s\n", report.Printable(name), report.Printable(operator),
		report.Printable(e.Policy))
	if limit, said := e.RunsPerDay(); !said && e.Protocol != "icmp" {
		fmt.Fprintf(a.stderr, "bloat: no number of runs is named; this program makes at most %d in 24 hours\n", limit)
	}
}

// bestOptions say what the nearest server is wanted for.
type bestOptions struct {
	protocol   string
	family     host.Family
	passphrase bool // there is one
	automation string
	load       time.Duration
	socket     host.Options
}

// chooseBest asks the public servers that may be used for how far they are, and returns the nearest.
func (a *app) chooseBest(ctx context.Context, f *directoryFlags, o bestOptions) (directory.Ranked, error) {
	var none directory.Ranked
	choice, rules, err := f.lists()
	if err != nil {
		return none, &usageError{err}
	}
	l, err := ledger()
	if err != nil {
		return none, err
	}
	var may []*directory.Entry
	var why []string
	for i := range choice.Servers {
		e := &choice.Servers[i]
		if _, ok := e.PortOf(o.protocol); !ok || e.Host == nil {
			continue
		}
		if e, _ := rules[0].Find(*e.Host); e != &choice.Servers[i] {
			continue // another entry has the say for this host
		}
		if reason := a.unfit(ctx, l, e, o); reason != "" {
			why = append(why, e.ID+": "+reason)
			continue
		}
		may = append(may, e)
	}
	if len(may) == 0 {
		return none, fmt.Errorf("-H best: no server of the directory may be used with %s now (%s); see bloat servers", o.protocol, strings.Join(why, "; "))
	}
	ranked := directory.Rank(ctx, host.NewKernel(), may, o.protocol, o.family, o.socket)
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	if len(ranked) == 0 || ranked[0].Err != nil {
		not := ""
		if len(why) > 0 {
			not = ", and others may not be used now (" + strings.Join(why, "; ") + ")"
		}
		return none, fmt.Errorf("-H best: none of %d servers answers%s; see bloat servers --rank", len(may), not)
	}
	fmt.Fprintf(a.stderr, "bloat: the nearest of %d servers is %s, port %d: %v by TCP handshake\n", len(may), report.Printable(ranked[0].Entry.Key()),
		ranked[0].Port, ranked[0].RTT.Round(10*time.Microsecond))
	return ranked[0], nil
}

// unfit says why a server can't be chosen, "" where it can.
func (a *app) unfit(ctx context.Context, l *directory.Ledger, e *directory.Entry, o bestOptions) string {
	if err := e.Permit(directory.Use{Automation: o.automation, Load: o.load}); err != nil {
		if refused := (*directory.RefusedError)(nil); errors.As(err, &refused) {
			return refused.Reason
		}
		return err.Error()
	}
	if o.family != host.AnyFamily && e.Families != nil && !slices.Contains(e.Families, int(o.family)) {
		return "it has no " + o.family.String()
	}
	if e.Auth.Method != nil && *e.Auth.Method == "passphrase" && !o.passphrase {
		where := "its operator"
		if e.Auth.Where != nil {
			where = *e.Auth.Where
		}
		return "it wants a passphrase (-Z): " + where
	}
	count, err := l.Count(ctx, e, a.now())
	if err != nil {
		return err.Error()
	}
	if limit, _ := e.RunsPerDay(); count.Today >= limit {
		return fmt.Sprintf("%d runs in the last 24 hours are enough", count.Today)
	}
	return ""
}
