package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bufferbloat/internal/facility"
)

// writtenManual returns the directory of the pages as the command line makes them.
func writtenManual(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "man1")
	a := &app{stdout: io.Discard, stderr: os.Stderr, version: "v1.2-test", now: time.Now}
	if status := a.run(context.Background(), []string{"bloat", "man", "--date", "2026-11-30", dir}); status != 0 {
		t.Fatalf("bloat man ended with status %d", status)
	}
	return dir
}

// commandTree returns the program's commands as a run has them, with those that cobra adds.
func commandTree() *cobra.Command {
	a := &app{stdout: io.Discard, stderr: io.Discard, now: time.Now}
	root := a.command()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// plain is what a reader sees of a text in man(7): without escapes of fonts, and with the characters that escapes stand for.
func plain(page []byte) string {
	s := regexp.MustCompile(`(?m)\\f[BIR]|^\.PP$`).ReplaceAllString(string(page), "")
	s = strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\(dq`, `"`, `\(ga`, "`", `\(ha`, "^", `\(ti`, "~", `\e`, `\`, `\&`, "").Replace(s)
	return strings.Join(strings.Fields(s), " ")
}

func TestTheManualHasEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	dir := writtenManual(t)
	root := commandTree()
	var want []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		want = append(want, name)
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s has no page: %v", cmd.CommandPath(), err)
			return
		}
		page := plain(b)
		if !strings.Contains(page, strings.Join(strings.Fields(cmd.Long), " ")) && !strings.Contains(cmd.Long, "\t") && !strings.Contains(cmd.Long, "\n  ") {
			t.Errorf("the page %s lacks the description that --help prints", name)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			_, usage := pflag.UnquoteUsage(f)
			for _, part := range []string{"--" + f.Name, strings.Join(strings.Fields(usage), " ")} {
				if !strings.Contains(page, part) {
					t.Errorf("the page %s lacks %q of the flag --%s", name, part, f.Name)
				}
			}
			if f.Shorthand != "" && !strings.Contains(page, "-"+f.Shorthand+", --"+f.Name) {
				t.Errorf("the page %s lacks -%s of the flag --%s", name, f.Shorthand, f.Name)
			}
		})
		for _, below := range cmd.Commands() {
			walk(below)
			if !below.Hidden && below.Name() != "help" && !strings.Contains(page, below.CommandPath()+" ") {
				t.Errorf("the page %s does not name the command %s", name, below.CommandPath())
			}
		}
	}
	walk(root)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(want) {
		t.Errorf("the manual has %d pages %v, want the %d of the commands", len(files), files, len(want))
	}
	if !slices.Contains(want, "bloat-serve.1") || !slices.Contains(want, "bloat-completion-bash.1") {
		t.Errorf("the commands %v are not those of the program", want)
	}
}

func TestTheManualHasNothingThatItsReadersComplainOf(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(writtenManual(t), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for tool, args := range map[string][]string{"mandoc": {"-T", "lint", "-W", "style"}, "groff": {"-man", "-Tutf8", "-ww", "-z"}} {
		t.Run(tool, func(t *testing.T) {
			if _, err := exec.LookPath(tool); err != nil {
				facility.Missing(t, tool, err.Error())
			}
			cmd := exec.CommandContext(t.Context(), tool, append(args, files...)...)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s complains (%v):\n%s", tool, err, out)
			}
		})
	}
}

func TestTheSameDateGivesTheSameManual(t *testing.T) {
	t.Parallel()
	one, other := writtenManual(t), writtenManual(t)
	files, err := os.ReadDir(one)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		a, errA := os.ReadFile(filepath.Join(one, f.Name()))
		b, errB := os.ReadFile(filepath.Join(other, f.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is another one the second time (%v, %v)", f.Name(), errA, errB)
		}
		if want := []byte(`"1" "2026-11-30" "bloat v1.2\-test"`); !bytes.Contains(a, want) {
			t.Errorf("%s lacks %s", f.Name(), want)
		}
	}
}

func TestWhatRoffWouldReadAsItsOwnStaysText(t *testing.T) {
	t.Parallel()
	p := &manText{}
	p.prose("A line\n.SH whose words 'begin' \\like requests\n\n  .literal\n  'quoted'")
	want := "A line .SH whose words \\(aqbegin\\(aq \\elike requests\n.PP\n.nf\n.RS\n\\&.literal\n\\(aqquoted\\(aq\n.RE\n.fi\n"
	if got := p.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The shells' own parsers have the last word on what the program generates for them.
func TestShellsReadTheirCompletions(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				facility.Missing(t, shell, err.Error())
			}
			var script bytes.Buffer
			a := &app{stdout: &script, stderr: os.Stderr, version: "v1.2-test", now: time.Now}
			if status := a.run(t.Context(), []string{"bloat", "completion", shell}); status != 0 {
				t.Fatalf("bloat completion %s ended with status %d", shell, status)
			}
			file := filepath.Join(t.TempDir(), "completion")
			if err := os.WriteFile(file, script.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), path, "-n", file).CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v\n%s", shell, err, out)
			}
		})
	}
}

func TestCompletionKnowsCommandsFlagsAndPlans(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		words []string
		want  []string
	}{
		"commands by their beginning":   {[]string{"spee"}, []string{"speedtest"}},
		"flags of a command":            {[]string{"serve", "--max-tests-per-a"}, []string{"--max-tests-per-address"}},
		"plans of the catalogue":        {[]string{"run", "rrul_va"}, []string{"rrul_var"}},
		"plans to list":                 {[]string{"list", "tcp_nu"}, []string{"tcp_nup"}},
		"formats of a result":           {[]string{"speedtest", "--format", "o"}, []string{"openmetrics"}},
		"formats of a shown one":        {[]string{"show", "--format", "f"}, []string{"flent"}},
		"what flows speak":              {[]string{"speedtest", "--protocol", "http"}, []string{"http", "http2"}},
		"presets of the lab":            {[]string{"lab", "--preset", "sat"}, []string{"satellite-600ms"}},
		"presets of a lab of a command": {[]string{"rrul", "--preset", "lt"}, []string{"lte"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			a := &app{stdout: &out, stderr: io.Discard, now: time.Now}
			if status := a.run(t.Context(), append([]string{"bloat", "__complete"}, tt.words...)); status != 0 {
				t.Fatalf("completion ended with status %d", status)
			}
			// The shells leave out what does not begin as the last word does.
			var got []string
			for line := range strings.Lines(out.String()) {
				if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); strings.HasPrefix(word, tt.words[len(tt.words)-1]) {
					got = append(got, word)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("completion of %q is %q, want %q", tt.words, got, tt.want)
			}
		})
	}
}
