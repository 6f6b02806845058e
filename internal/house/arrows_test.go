package house

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "bufferbloat"

// A rule is what the packages of one room may import of this module, besides packages of the same room.
type rule struct {
	room string   // first part of the path below the module; "." is the module's root
	may  []string // a package, or with "/..." a package and all below it
}

// rules are the arrows. What is not here is forbidden; nobody may import cmd.
var rules = []rule{
	{".", []string{"internal/...", "load/...", "probe/...", "watch/..."}},
	{"probe", []string{"internal/..."}},
	{"load", []string{"internal/..."}},
	{"watch", []string{"internal/..."}},
	{"servers", []string{"internal/..."}},
	// A Recording is made of the words of load and probe; those who speak the protocols are none of report's business.
	{"report", []string{".", "load", "probe", "internal/..."}},
	// A batch is told what a run is, and knows none of those who make one.
	{"batch", []string{"internal/..."}},
	// These carry out what not every program needs, for a run that is given them.
	{"protocols", []string{".", "load/...", "probe/...", "watch", "watch/wifi", "internal/..."}},
	// A plan's file is made of the words of a plan.
	{"planfile", []string{".", "load", "internal/..."}},
	{"internal", nil},
	{"packaging", nil},
	{"cmd", []string{".", "load/...", "probe/...", "report/...", "servers/...", "watch/...", "batch", "planfile", "protocols", "internal/..."}},
}

// testOnly are the packages that only tests, and each other, may import.
var testOnly = []string{"internal/facility", "internal/testnet", "internal/house", "internal/acceptance"}

// pkg is what "go list" says of a package.
type pkg struct {
	ImportPath, Name, Doc string
	Imports               []string
}

// path is the package's path below the module, "." for the root, or "" for a package of another module.
func path(importPath string) string {
	if importPath == module {
		return "."
	}
	below, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return below
}

func room(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// matches reports whether a pattern of a rule takes the package.
func matches(pattern, path string) bool {
	base, tree := strings.CutSuffix(pattern, "/...")
	return path == base || tree && strings.HasPrefix(path, base+"/")
}

// badArrows returns a complaint for each import of p that the rules do not have.
func badArrows(p pkg) []string {
	from := path(p.ImportPath)
	i := slices.IndexFunc(rules, func(r rule) bool { return r.room == room(from) })
	if i < 0 {
		return []string{fmt.Sprintf("%s is in no room: want one of %v", p.ImportPath, rules)}
	}
	var bad []string
	for _, imported := range p.Imports {
		to := path(imported)
		switch {
		case to == "":
		case room(to) == "cmd" && room(from) == "cmd" && strings.HasPrefix(to, "cmd/internal/"): // what commands do alike
		case room(to) == "cmd":
			bad = append(bad, fmt.Sprintf("%s imports %s: a command is imported by nobody", p.ImportPath, imported))
		case slices.Contains(testOnly, to) && !slices.Contains(testOnly, from):
			bad = append(bad, fmt.Sprintf("%s imports %s, which is for tests alone", p.ImportPath, imported))
		case room(to) == room(from):
		case !slices.ContainsFunc(rules[i].may, func(pattern string) bool { return matches(pattern, to) }):
			bad = append(bad, fmt.Sprintf("%s imports %s: %s may import %v", p.ImportPath, imported, room(from), rules[i].may))
		}
	}
	return bad
}

func TestArrowsPointInward(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"linux", "darwin", "windows"} {
		packages := list(t, system)
		for _, p := range packages {
			for _, complaint := range badArrows(p) {
				t.Errorf("%s: %s", system, complaint)
			}
		}
		if _, ok := packages[module+"/internal/host"]; !ok {
			t.Errorf("%s: the list of %d packages lacks internal/host: it is not the list of this module", system, len(packages))
		}
	}
}

// The closure of the arrows, by the toolchain's own account.
func TestLoadAndProbeDoNotKnowEachOther(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ of, never string }{
		{"./load/...", "probe/..."}, {"./load/...", "servers/..."}, {"./load/...", "report/..."}, {"./load/...", "."},
		{"./probe/...", "load/..."}, {"./probe/...", "servers/..."}, {"./probe/...", "report/..."}, {"./probe/...", "."},
		{"./watch/...", "load/..."}, {"./watch/...", "probe/..."}, {"./watch/...", "."},
		{"./servers/...", "load/..."}, {"./servers/...", "probe/..."}, {"./servers/...", "report/..."}, {"./servers/...", "."},
		{"./servers/internal/...", "servers/netperf"}, {"./servers/internal/...", "servers/iperf3"},
		{"./load/internal/...", "load/netperf"}, {"./load/internal/...", "load/iperf3"},
		{".", "servers/..."}, {".", "report/..."}, {".", "protocols"},
	} {
		for _, p := range goList(t, "linux", "-deps", tt.of) {
			if to := path(p.ImportPath); to != "" && matches(tt.never, to) {
				t.Errorf("%s depends on %s", tt.of, p.ImportPath)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsInASentence(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "linux") {
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + p.ImportPath[strings.LastIndexByte(p.ImportPath, '/')+1:] + " "
		}
		if !strings.HasPrefix(p.Doc, want) || !strings.HasSuffix(p.Doc, ".") {
			t.Errorf("the doc of %s begins with %q, want a sentence that begins with %q and ends with a full stop", p.ImportPath, p.Doc, want)
		}
	}
}

func TestABadArrowIsFound(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		from, to string
		bad      bool
	}{
		"probe may know the wire":                    {"bufferbloat/probe/irtt", "bufferbloat/internal/wire/irtt", false},
		"probe may know probe":                       {"bufferbloat/probe/irtt", "bufferbloat/probe", false},
		"probe may know the standard library":        {"bufferbloat/probe/irtt", "net/netip", false},
		"probe may not know load":                    {"bufferbloat/probe", "bufferbloat/load", true},
		"load may not know a kind of probe":          {"bufferbloat/load/netperf", "bufferbloat/probe/icmp", true},
		"servers may not know load":                  {"bufferbloat/servers/netperf", "bufferbloat/load/netperf", true},
		"servers may know what servers share":        {"bufferbloat/servers/netperf", "bufferbloat/servers/internal/bounds", false},
		"the root may not know what servers share":   {"bufferbloat", "bufferbloat/servers/internal/bounds", true},
		"report may know the recording":              {"bufferbloat/report", "bufferbloat", false},
		"report may know the words of load":          {"bufferbloat/report", "bufferbloat/load", false},
		"report may not know a protocol":             {"bufferbloat/report", "bufferbloat/load/netperf", true},
		"the root may not know report":               {"bufferbloat", "bufferbloat/report", true},
		"the root may not know servers":              {"bufferbloat", "bufferbloat/servers/lab", true},
		"internal may not know a room":               {"bufferbloat/internal/wire/irtt", "bufferbloat/probe", true},
		"cmd may know report":                        {"bufferbloat/cmd/bloat", "bufferbloat/report", false},
		"cmd may not know another command":           {"bufferbloat/cmd/bloat", "bufferbloat/cmd/speedtest", true},
		"a command is imported by nobody":            {"bufferbloat/report", "bufferbloat/cmd/bloat", true},
		"test support is for tests":                  {"bufferbloat/cmd/bloat", "bufferbloat/internal/testnet", true},
		"test support may know test support":         {"bufferbloat/internal/testnet", "bufferbloat/internal/facility", false},
		"a new room needs a rule":                    {"bufferbloat/util", "fmt", true},
		"another module whose name begins like this": {"bufferbloat/probe", "bufferbloat2/load", false},
	} {
		got := badArrows(pkg{ImportPath: tt.from, Imports: []string{tt.to}})
		if (len(got) > 0) != tt.bad {
			t.Errorf("%s: complaints %q, want some: %v", name, got, tt.bad)
		}
	}
}

// list returns the module's packages with what their non-test files import on one operating system.
func list(t *testing.T, system string) map[string]pkg {
	t.Helper()
	packages := map[string]pkg{}
	for _, p := range goList(t, system, "./...") {
		packages[p.ImportPath] = p
	}
	return packages
}

func goList(t *testing.T, system string, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Name,Doc,Imports"}, args...)...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, stderr.String())
	}
	var packages []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
