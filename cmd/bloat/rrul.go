package main

import (
	"github.com/spf13/cobra"
)

func (a *app) rrulCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "rrul -H HOST | --lab",
		Short: "Real-time response under load: bloat run rrul",
		Long: `Fills the link in both directions at once with flows in four classes, while probes in three classes sample the latency. The
same as bloat run rrul; bloat list names its relatives.`,
		Example: `  bloat rrul -H netperf.example.net
  bloat rrul --lab fq_codel --virtual --length 20
  bloat rrul -H 192.0.2.1 --step 100ms -o rrul.bloat.json.gz`,
		Args: func(_ *cobra.Command, args []string) error { return noArguments(nil, f.labArgument(args, 0)) },
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runPlan(cmd, f, "rrul") },
	}
	f.register(cmd)
	return cmd
}
