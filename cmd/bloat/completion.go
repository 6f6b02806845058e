package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bufferbloat"
)

// valuesOfFlags are the values that a shell may offer for a flag of some commands.
func valuesOfFlags() []offer {
	results := strings.Split(formatNames, ", ")
	measuring := []string{"speedtest", "run", "rrul"}
	return []offer{
		{measuring, "format", results},
		{[]string{"show"}, "format", slices.Concat(results, []string{"flent"})},
		{[]string{"compare"}, "format", []string{"text", "markdown", "json", "junit", "benchstat"}},
		{measuring, "progress", []string{"live", "plain", "none", autoProgress}},
		{[]string{"speedtest"}, "protocol", []string{"netperf", "iperf3", "http", "http2"}},
		{[]string{"speedtest"}, "probe", []string{"auto", "icmp", "irtt", "tcp"}},
		{slices.Concat(measuring, []string{"lab"}), "preset", presetNames()},
	}
}

// offer is what the values of a flag of these commands may be.
type offer struct {
	commands []string
	flag     string
	values   []string
}

// offerValues tells the shells' completions what may stand behind flags, and the names of plans; where nothing is said they offer files.
func offerValues(root *cobra.Command) {
	offers := valuesOfFlags()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "run" || cmd.Name() == "list" {
			cmd.ValidArgsFunction = plansToComplete
		}
		for _, o := range offers {
			if slices.Contains(o.commands, cmd.Name()) {
				// It fails only where there is no such flag, or where it was told before: then its values are not offered, which a test tells.
				_ = cmd.RegisterFlagCompletionFunc(o.flag, cobra.FixedCompletions(o.values, cobra.ShellCompDirectiveNoFileComp))
			}
		}
	}
}

// plansToComplete offers the catalogue's plans for the first argument, and files, which may be plans.
func plansToComplete(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, d := range bufferbloat.Catalogue() {
		names = append(names, cobra.CompletionWithDesc(d.Name, d.Help))
	}
	return names, cobra.ShellCompDirectiveDefault
}
