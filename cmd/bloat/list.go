package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"bufferbloat"
	"bufferbloat/planfile"
)

// listFlags are the flags of bloat list as parsed.
type listFlags struct {
	yaml, schema bool
	servers      int
	hosts, set   []string
}

func (a *app) listCommand() *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "list [NAME|FILE]",
		Short: "List the plans of the catalogue, or what one of them takes",
		Long: `Lists the plans that bloat run carries out by their names; of one, its parameters with their types and defaults. What it sends with them is
what bloat run NAME --dry-run prints. With --yaml it prints the plan as a file, to change and to run.`,
		Example: `  bloat list
  bloat list rrul_var
  bloat list rrul --yaml --set length=30s > mine.yaml && bloat run mine.yaml -H 192.0.2.1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArguments(nil, args[1:])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.list(f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.yaml, "yaml", false, "print the plan as a file (docs/plans.md)")
	flags.StringArrayVarP(&f.hosts, "host", "H", nil, "with --yaml: server to name in the file; again for each further one")
	flags.IntVar(&f.servers, "servers", 0, "with --yaml: for how many servers, of a plan for any number; -H of bloat run names them")
	flags.StringArrayVar(&f.set, "set", nil, "with --yaml: KEY=VALUE, a parameter of the plan")
	flags.BoolVar(&f.schema, "schema", false, "print the JSON Schema of plan files")
	return cmd
}

func (a *app) list(f *listFlags, args []string) error {
	switch {
	case f.schema && (len(args) > 0 || f.yaml):
		return &usageError{errors.New("--schema stands alone")}
	case !f.yaml && (len(f.hosts)+len(f.set) > 0 || f.servers != 0):
		return &usageError{errors.New("-H, --servers and --set go with --yaml")}
	case f.servers < 0 || f.servers > bufferbloat.MaxServers:
		return &usageError{fmt.Errorf("--servers %d: want 1 to %d", f.servers, bufferbloat.MaxServers)}
	case f.schema:
		_, err := a.stdout.Write(planfile.JSONSchema())
		return err
	case len(args) == 0 && f.yaml:
		return &usageError{errors.New("--yaml wants the name of a plan")}
	case len(args) == 0:
		return a.listAll()
	}
	d, err := definition(args[0], os.Stdin)
	if err != nil {
		return &usageError{err}
	}
	if !f.yaml {
		return a.listOne(&d)
	}
	given, err := settings(f.set)
	if err != nil {
		return &usageError{err}
	}
	var servers []bufferbloat.Server
	for i := range max(d.Servers, len(d.Own), len(f.hosts), f.servers, 1) {
		s := bufferbloat.Server{Host: planfile.Host(i + 1)}
		if i < len(f.hosts) {
			s.Host = f.hosts[i]
		} else if i < len(d.Own) && d.Own[i].Host != "" {
			s.Host = d.Own[i].Host
		}
		servers = append(servers, s)
	}
	plan, err := d.Plan(servers, given)
	if err != nil {
		return &usageError{err}
	}
	return planfile.Write(a.stdout, &plan, d.Help)
}

// listAll prints the names and helps of the catalogue.
func (a *app) listAll() error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, d := range bufferbloat.Catalogue() {
		fmt.Fprintf(w, "%s\t%s\n", d.Name, d.Help)
	}
	return w.Flush()
}

// listOne prints the parameters of a definition.
func (a *app) listOne(d *bufferbloat.Definition) error {
	least := max(d.Servers, 1)
	servers := ""
	switch most := max(d.MostServers, least); {
	case most > least:
		servers = fmt.Sprintf("%d or more servers: -H for each", least)
	case most > 1:
		servers = fmt.Sprintf("%d servers: -H for each", most)
	}
	fmt.Fprintf(a.stdout, "%s: %s\n", d.Name, d.Help)
	if servers != "" {
		fmt.Fprintln(a.stdout, servers)
	}
	fmt.Fprintln(a.stdout)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "Parameter\tType\tDefault\tWhat it is")
	for _, p := range d.Parameters {
		kind := string(p.Type)
		if len(p.Choices) > 0 {
			kind = strings.Join(p.Choices, "|")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, kind, cmp.Or(p.Default, "-"), p.Help)
	}
	return w.Flush()
}
