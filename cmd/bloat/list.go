package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"bufferbloat"
)

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [NAME|FILE]",
		Short: "List the plans of the catalogue, or what one of them takes",
		Long: `Lists the plans that bloat run carries out by their names; of one, its parameters with their types and defaults. What it sends with them is
what bloat run NAME --dry-run prints.`,
		Example: `  bloat list
  bloat list rrul_var`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArguments(nil, args[1:])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listAll()
			}
			d, err := definition(args[0])
			if err != nil {
				return &usageError{err}
			}
			return a.listOne(&d)
		},
	}
	return cmd
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
