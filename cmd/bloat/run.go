package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bufferbloat"
	"bufferbloat/planfile"
)

// runFlags are the flags of bloat run and bloat rrul as parsed.
type runFlags struct {
	measureFlags
	hosts              []string
	length, lead, step seconds
	set                []string
	given              map[string]string // the parameters of the plan
	batch              batchFlags
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run NAME|FILE -H HOST ... | --lab",
		Short: "Carry out a plan: one of the catalogue, or a file",
		Long: `Carries out a plan: one that bloat list names, or a YAML file (docs/plans.md; - is stdin). A file with a batch in it is many
runs (docs/batch.md). Before anything is sent, the plan is printed
to stderr: its flows and probes with their marks, start and end. Exit status: 0 measured, 1 could not measure, 2 usage, 4 measured but void or
partial (the reason is in the result), 128+n ended by signal n with the partial result.`,
		Example: `  bloat run rrul -H netperf.example.net --length 30
  bloat run tcp_nup -H 192.0.2.1 --set upload_streams=8 --set stream_delays=0,5,10 --dry-run
  bloat run rtt_fair_var -H near.example.net -H far.example.net -o fair.bloat.json.gz
  bloat run plan.yaml --lab=fq_codel --virtual`,
		Args: func(_ *cobra.Command, args []string) error {
			args = f.labArgument(args, 1)
			if len(args) == 0 {
				return &usageError{errors.New("name a plan (see bloat list) or a file")}
			}
			return noArguments(nil, args[1:])
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runFile(cmd, f, args[0]) },
	}
	f.register(cmd)
	f.batch.register(cmd.Flags())
	return cmd
}

// register registers the flags of the command.
func (f *runFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVarP(&f.hosts, "host", "H", nil, "server to load; again for each further one. \"best\" is the nearest one of the directory that may be used (bloat servers)")
	flags.VarP(&f.length, "length", "l", "parameter length: how long the load lasts")
	flags.Var(&f.lead, "lead", "parameter lead: idle time before the load, and after it")
	flags.Var(&f.step, "step", "parameter step: time between probes")
	for _, name := range []string{"length", "lead", "step"} {
		flags.Lookup(name).DefValue = "" // the plan's own
	}
	flags.StringArrayVar(&f.set, "set", nil, "KEY=VALUE: another parameter of the plan; bloat list NAME names them")
	f.registerServer(flags)
	f.registerIPerf3(flags)
	f.registerOutput(flags, "table")
}

// labArgument takes the queue of "--lab fq_codel", which the flag parser takes for --lab and an argument after n others, and returns the
// arguments without it.
func (f *runFlags) labArgument(args []string, n int) []string {
	if f.lab.on() && f.lab.queue == defaultQueue && len(args) == n+1 {
		f.lab.queue = args[n]
		return args[:n]
	}
	return args
}

// parameters collects what the flags say of the plan's parameters.
func (f *runFlags) parameters(cmd *cobra.Command) error {
	var err error
	if f.given, err = settings(f.set); err != nil {
		return err
	}
	if !f.lab.on() { // what is left open is the plan's own
		for name, port := range map[string]*uint16{"port": &f.port, "irtt-port": &f.irttPort, "iperf3-port": &f.iperf3Port} {
			if !cmd.Flags().Changed(name) {
				*port = 0
			}
		}
	}
	for name, value := range map[string]*seconds{"length": &f.length, "lead": &f.lead, "step": &f.step} {
		if !cmd.Flags().Changed(name) {
			continue
		}
		if _, again := f.given[name]; again {
			return fmt.Errorf("--%s and --set %s=... say the same: leave out one", name, name)
		}
		f.given[name] = value.String()
	}
	return nil
}

// runFile carries out the batch of a file, or the plan of a name or file.
func (a *app) runFile(cmd *cobra.Command, f *runFlags, name string) error {
	b, err := batchFile(name)
	switch {
	case err != nil:
		return &usageError{err}
	case b != nil:
		return a.runBatch(cmd, f, b, name)
	case f.batch != batchFlags{}:
		return &usageError{fmt.Errorf("--resume and --retry-failed go with a batch, and %s is none", name)}
	}
	return a.runPlan(cmd, f, name)
}

// settings reads what --set says.
func settings(texts []string) (map[string]string, error) {
	given := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if _, again := given[key]; !ok || key == "" || again {
			return nil, fmt.Errorf("--set %q: want KEY=VALUE, and each key once", text)
		}
		given[key] = value
	}
	return given, nil
}

// runPlan carries out the plan of a name or file.
func (a *app) runPlan(cmd *cobra.Command, f *runFlags, name string) error {
	if err := f.parameters(cmd); err != nil {
		return &usageError{err}
	}
	if name == "-" && f.lab.on() && f.lab.carrier != processCarrier {
		return &usageError{errors.New("a lab of the kernel's TCP is several processes, which all read the plan: name a file in the place of -")}
	}
	d, err := definition(name, os.Stdin)
	if err != nil {
		return &usageError{err}
	}
	return a.runDefinition(cmd.Context(), f, d)
}

func (a *app) runDefinition(ctx context.Context, f *runFlags, d bufferbloat.Definition) error {
	plan, err := a.planOf(ctx, &f.measureFlags, f.hosts, func() (bufferbloat.Plan, error) {
		known := 0
		if len(d.Own) > 0 && d.Own[0].Host != "" {
			known = len(d.Own)
		}
		servers, err := f.servers(f.hosts, max(d.Servers, len(d.Own), 1), known)
		if err != nil {
			return bufferbloat.Plan{}, err
		}
		return d.Plan(servers, f.given)
	})
	if err != nil {
		return err
	}
	return a.measure(ctx, &f.measureFlags, plan, true)
}

// isPlanFile reports whether a plan's name is that of a file.
func isPlanFile(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".yaml" || ext == ".yml" || name == "-" || strings.ContainsRune(name, os.PathSeparator)
}

// definition returns the definition of a name: of the catalogue, or of a file, where "-" is stdin.
func definition(name string, stdin io.Reader) (bufferbloat.Definition, error) {
	if !isPlanFile(name) {
		d, ok := bufferbloat.Find(name)
		if !ok {
			return d, fmt.Errorf("no plan %q; bloat list names them all, and a file ends in .yaml", name)
		}
		return d, nil
	}
	in := stdin
	if name != "-" {
		if err := checkRegular(name); err != nil {
			return bufferbloat.Definition{}, err
		}
		file, err := os.Open(name)
		if err != nil {
			return bufferbloat.Definition{}, err
		}
		defer file.Close()
		in = file
	}
	b, err := io.ReadAll(io.LimitReader(in, planfile.MaxBytes+1))
	if err != nil {
		return bufferbloat.Definition{}, err
	}
	return planfile.Read(name, b)
}
