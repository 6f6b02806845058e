package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) manCommand() *cobra.Command {
	date := ""
	cmd := &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages",
		Long: `Writes the manual pages of the program and of each of its commands to DIRECTORY, which it makes where it is not there. They are made from what --help
prints. The same program and date give the same bytes.`,
		Example: `  bloat man ~/.local/share/man/man1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{errors.New("want one DIRECTORY for the pages")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			day := a.now()
			if date != "" {
				var err error
				if day, err = time.Parse(time.DateOnly, date); err != nil {
					return &usageError{fmt.Errorf("--date %q: want YYYY-MM-DD", date)}
				}
			}
			return a.writeManual(cmd.Root(), day, args[0])
		},
	}
	cmd.Flags().StringVar(&date, "date", "", "date that the pages bear, YYYY-MM-DD (default: today)")
	return cmd
}

// writeManual writes the pages of a tree of commands to files of a directory.
func (a *app) writeManual(root *cobra.Command, day time.Time, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the manual: %w", err)
	}
	for _, cmd := range documented(root) {
		page := manPage(cmd, a.version, day)
		if err := os.WriteFile(filepath.Join(dir, pageName(cmd)+".1"), page, 0o644); err != nil {
			return fmt.Errorf("write a page of the manual: %w", err)
		}
	}
	return nil
}

// documented returns the command and those below it that have pages: all but hidden ones, and help, which is no topic.
func documented(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() && below.Name() != "help" {
			list = append(list, documented(below)...)
		}
	}
	return list
}

// pageName is the command's path as the name of a page: bloat-completion-bash.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the page of one command, in the language of man(7).
func manPage(cmd *cobra.Command, version string, day time.Time) []byte {
	p := &manText{}
	// Readers of the page take the date apart, and want its hyphens as they are.
	fmt.Fprintf(p, ".TH \"%s\" \"1\" \"%s\" \"%s\" \"User Commands\"\n", roff(strings.ToUpper(pageName(cmd))), day.Format(time.DateOnly), roff("bloat "+version))
	p.macro("SH", "NAME")
	p.text(pageName(cmd) + ` \- ` + roff(strings.ToLower(cmd.Short[:1])+cmd.Short[1:]))
	p.macro("SH", "SYNOPSIS")
	synopsis := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	if cmd.HasAvailableFlags() {
		synopsis += " [flags]"
	}
	p.text(`\fB` + roff(cmd.CommandPath()) + `\fR` + roff(strings.TrimPrefix(synopsis, cmd.CommandPath())))
	p.macro("SH", "DESCRIPTION")
	if cmd.Long == "" {
		p.prose(cmd.Short + ".")
	}
	p.prose(cmd.Long)
	p.commands(cmd)
	p.options(cmd)
	if cmd.Example != "" {
		p.macro("SH", "EXAMPLES")
		p.verbatim(strings.Split(cmd.Example, "\n"))
	}
	if !cmd.HasParent() {
		p.whole()
	}
	p.seeAlso(cmd)
	return []byte(p.String())
}

// manText collects a page.
type manText struct{ strings.Builder }

// macro writes a request and its arguments.
func (p *manText) macro(name string, args ...string) {
	p.WriteString("." + name)
	for _, arg := range args {
		p.WriteString(` "` + roff(arg) + `"`)
	}
	p.WriteByte('\n')
}

// text writes words that are escaped already, in lines of some 78 columns.
func (p *manText) text(escaped string) {
	width := 0
	for _, word := range strings.Fields(escaped) {
		switch {
		case width > 0 && width+1+len(word) > 78:
			p.WriteByte('\n')
			width = 0
		case width > 0:
			p.WriteByte(' ')
			width++
		}
		// At the beginning of a line these would be a request.
		if width == 0 && strings.ContainsRune(".'", rune(word[0])) {
			p.WriteString(`\&`)
		}
		p.WriteString(word)
		width += len(word)
	}
	p.WriteByte('\n')
}

// prose writes paragraphs; a line that is indented stays a line of its own.
func (p *manText) prose(s string) {
	var words, lines []string
	first := true
	flush := func() {
		if len(words) > 0 {
			if !first {
				p.macro("PP")
			}
			p.text(roff(strings.Join(words, " ")))
			first = false
		}
		if len(lines) > 0 {
			if !first {
				p.macro("PP")
			}
			p.verbatim(lines)
			first = false
		}
		words, lines = nil, nil
	}
	for line := range strings.SplitSeq(strings.TrimSpace(s), "\n") {
		switch indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"); {
		case strings.TrimSpace(line) == "":
			flush()
		case indented && len(words) > 0, !indented && len(lines) > 0:
			flush()
			fallthrough
		default:
			if indented {
				lines = append(lines, line)
			} else {
				words = append(words, line)
			}
		}
	}
	flush()
}

// verbatim writes lines as they are, without the indentation that all have.
func (p *manText) verbatim(lines []string) {
	p.WriteString(".nf\n.RS\n")
	for _, line := range lines {
		line = roff(strings.TrimPrefix(strings.TrimPrefix(line, "\t"), "  "))
		if line != "" && strings.ContainsRune(".'", rune(line[0])) {
			line = `\&` + line
		}
		p.WriteString(line + "\n")
	}
	p.WriteString(".RE\n.fi\n")
}

// commands writes the list of the commands below cmd.
func (p *manText) commands(cmd *cobra.Command) {
	for i, below := range documented(cmd)[1:] {
		if i == 0 {
			p.macro("SH", "COMMANDS")
		}
		if below.Parent() == cmd {
			p.WriteString(".TP\n" + `\fB` + roff(below.CommandPath()) + "\\fR\n")
			p.text(roff(below.Short) + ". See " + pageReference(below) + ".")
		}
	}
}

// options writes the list of the flags of cmd.
func (p *manText) options(cmd *cobra.Command) {
	if !cmd.HasAvailableFlags() {
		return
	}
	p.macro("SH", "OPTIONS")
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		names := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			names = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + names
		}
		switch {
		case f.Value.Type() == "bool":
		case f.NoOptDefVal != "":
			names += `[=\fI` + roff(value) + `\fR]`
			usage += "; without a value: " + f.NoOptDefVal
		default:
			names += ` \fI` + roff(value) + `\fR`
		}
		if !slices.Contains([]string{"", "0", "0s", "false", "[]", "0bit"}, f.DefValue) && !strings.HasSuffix(usage, ")") {
			usage += " (default " + f.DefValue + ")"
		}
		p.WriteString(".TP\n" + names + "\n")
		p.text(roff(usage))
	})
}

// whole writes what is of the program and of none of its commands.
func (p *manText) whole() {
	p.macro("SH", "EXIT STATUS")
	for _, s := range [][2]string{
		{"0", "measured"},
		{"1", "could not measure: the message says why"},
		{"2", "usage"},
		{"3", "measured, and a threshold was missed or a regression found (bloat compare)"},
		{"4", "measured, but void or partial: the reason is in the result"},
		{"5", "a comparison that decides nothing (bloat compare)"},
		{"128+n", "ended by signal n, with the partial result"},
	} {
		p.WriteString(".TP\n" + `\fB` + roff(s[0]) + "\\fR\n")
		p.text(roff(s[1]))
	}
	p.macro("SH", "ENVIRONMENT")
	for _, s := range [][2]string{
		{"NO_COLOR", "where it is set, nothing is coloured"},
		{"XDG_STATE_HOME", "the directory in whose bloat/uses.json the uses of public servers are counted (default ~/.local/state)"},
		{"GOGC", "how much memory may be in use before it is collected, as the Go runtime takes it, in place of the program's own choice"},
	} {
		p.WriteString(".TP\n" + `\fB` + roff(s[0]) + "\\fR\n")
		p.text(roff(s[1]))
	}
}

// seeAlso writes references to the pages above and below.
func (p *manText) seeAlso(cmd *cobra.Command) {
	var names []string
	if cmd.HasParent() {
		names = append(names, pageReference(cmd.Parent()))
	}
	for _, below := range documented(cmd)[1:] {
		if below.Parent() == cmd {
			names = append(names, pageReference(below))
		}
	}
	if len(names) == 0 {
		return
	}
	p.macro("SH", "SEE ALSO")
	p.text(strings.Join(names, ", "))
}

func pageReference(cmd *cobra.Command) string { return `\fB` + roff(pageName(cmd)) + `\fR(1)` }

// roff escapes what man(7) would read as its own, so that every character can be copied from the page.
func roff(s string) string {
	return strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`, `"`, `\(dq`).Replace(s)
}
