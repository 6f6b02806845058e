package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// top is the module's directory as the tests of this package see it.
const top = "../.."

// A ban names what the files of some rooms may not use of a package, and why.
type ban struct {
	rooms []string
	of    string         // import path
	names *regexp.Regexp // the exported names; the zero value is the import itself
	why   string
}

// measuring are the rooms that an emulated link runs in virtual time and on a stack of its own.
var measuring = []string{".", "probe", "load", "servers", "watch"}

// libraries are the rooms that programs of other people may import.
var libraries = append([]string{"report"}, measuring...)

var bans = []ban{
	{measuring, "time", regexp.MustCompile(`^(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTimer|NewTicker)$`),
		"all time comes from internal/host.Clock"},
	{measuring, "context", regexp.MustCompile(`^With(Timeout|Deadline)(Cause)?$`), "use host.WithTimeout or host.WithDeadline"},
	{measuring, "net", regexp.MustCompile(`^(Dial.*|Listen(|TCP|UDP|IP|Unix|Unixgram|MulticastUDP|Packet|Config)|Resolve.*|Lookup.*|Default.*|File.*)$`),
		"all sockets and look-ups come from internal/host.Network"},
	{measuring, "net/http", nil, "it opens sockets of its own"},
	{measuring, "os/exec", nil, "a measurement runs no other program"},
	{[]string{"report"}, "time", regexp.MustCompile(`^(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTimer|NewTicker)$`), "report reads no clock"},
	{[]string{"report"}, "net", nil, "report opens no socket"},
	{[]string{"report"}, "net/http", nil, "report opens no socket"},
	{[]string{"report"}, "os/exec", nil, "report runs no program"},
	{libraries, "os", regexp.MustCompile(`^(Getenv|LookupEnv|Environ|ExpandEnv|Exit)$`),
		"the environment and the exit status are cmd's"},
	{libraries, "flag", nil, "flags exist only in cmd"},
	{libraries, "log", nil, "libraries return errors and do not log"},
	{libraries, "github.com/spf13/pflag", nil, "flags exist only in cmd"},
	{[]string{"internal"}, "os", regexp.MustCompile(`^(Getenv|LookupEnv|Environ|ExpandEnv|Exit)$`), "the environment and the exit status are cmd's"},
	{[]string{"internal"}, "flag", nil, "flags exist only in cmd"},
}

// A leave lets one file do what a ban forbids, for a reason.
type leave struct {
	file string // path below the module's directory
	of   string // the banned import path
	why  string
}

var leaves = []leave{
	{"internal/facility/facility.go", "os", "it asks for the one variable that says what a test machine must have"},
	{"servers/lab/kernel/forward_linux.go", "time", "the forwarder of the kernel's packets lives in real time"},
	{"servers/lab/clock.go", "time", "in real time the lab is its host's clock"},
	{"servers/lab/lab.go", "time", "in real time the lab is its host's clock"},
	{"servers/lab/sleeper.go", "time", "in real time the lab's driver sleeps until packets are due"},
	{"servers/lab/virtual.go", "time", "virtual time stands still while the operating system answers in real time"},
}

// file is a parsed file of the module.
type file struct {
	path string // below the module's directory, with slashes
	set  *token.FileSet
	ast  *ast.File
}

func (f file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// room is the file's room; files of the module's root are in ".".
func (f file) room() string {
	if !strings.Contains(f.path, "/") {
		return "."
	}
	return room(f.path)
}

func (f file) at(p token.Pos) string { return fmt.Sprintf("%s:%d", f.path, f.set.Position(p).Line) }

// banned returns a complaint for each use of something that is banned in the file's room, and the leaves that it took.
func banned(f file) (complaints []string, taken []leave) {
	if f.test() {
		return nil, nil
	}
	names := map[string]string{} // what this file calls a package -> its import path
	complain := func(b ban, pos token.Pos, what string) {
		i := slices.IndexFunc(leaves, func(l leave) bool { return l.file == f.path && l.of == b.of })
		if i >= 0 {
			taken = append(taken, leaves[i])
			return
		}
		complaints = append(complaints, fmt.Sprintf("%s uses %s: %s", f.at(pos), what, b.why))
	}
	for _, spec := range f.ast.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		name := importPath[strings.LastIndexByte(importPath, '/')+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = importPath
		for _, b := range bans {
			if b.names == nil && b.of == importPath && slices.Contains(b.rooms, f.room()) {
				complain(b, spec.Pos(), importPath)
			}
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := selector.X.(*ast.Ident)
		if !ok || x.Obj != nil { // a variable that is named like the package
			return true
		}
		for _, b := range bans {
			if b.names != nil && b.of == names[x.Name] && slices.Contains(b.rooms, f.room()) && b.names.MatchString(selector.Sel.Name) {
				complain(b, selector.Pos(), x.Name+"."+selector.Sel.Name)
			}
		}
		return true
	})
	return complaints, taken
}

func TestRoomsKeepToTheHostsClockAndSockets(t *testing.T) {
	t.Parallel()
	var taken []leave
	for _, f := range files(t) {
		complaints, took := banned(f)
		for _, c := range complaints {
			t.Error(c)
		}
		taken = append(taken, took...)
	}
	for _, l := range leaves {
		if !slices.Contains(taken, l) {
			t.Errorf("nobody needs the leave %+v: remove it", l)
		}
	}
}

// unfinished finds the marks of work that was put off.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

// sloppy returns a complaint for each mark of unfinished work and each init function, in tests too.
func sloppy(f file) []string {
	var complaints []string
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if mark := unfinished.FindString(c.Text); mark != "" {
				complaints = append(complaints, fmt.Sprintf("%s: %s: finish it, or say in the issue what is missing", f.at(c.Pos()), mark))
			}
		}
	}
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			complaints = append(complaints, f.at(fn.Pos())+": init: nothing happens before main")
		}
	}
	return complaints
}

func TestNothingIsLeftUnfinished(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		for _, c := range sloppy(f) {
			t.Error(c)
		}
	}
}

// changing returns a complaint for each assignment to a package-level variable in the files of one package.
func changing(pkgFiles []file) []string {
	globals := map[string]*ast.ValueSpec{}
	for _, f := range pkgFiles {
		for _, d := range f.ast.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					globals[name.Name] = spec.(*ast.ValueSpec)
				}
			}
		}
	}
	var complaints []string
	for _, f := range pkgFiles {
		check := func(e ast.Expr) {
			id := base(e)
			// Obj is the declaration in the same file; a variable of another file has none.
			if id == nil || id.Name == "_" || globals[id.Name] == nil || id.Obj != nil && id.Obj.Decl != globals[id.Name] {
				return
			}
			complaints = append(complaints, fmt.Sprintf("%s changes %s, a variable of the package: two runs in one process must not meet", f.at(e.Pos()), id.Name))
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, e := range n.Lhs {
						check(e)
					}
				}
			case *ast.IncDecStmt:
				check(n.X)
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (fn.Name == "delete" || fn.Name == "clear") {
					check(n.Args[0])
				}
			}
			return true
		})
	}
	return complaints
}

// base is the variable that an expression on the left of an assignment belongs to.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

func TestNoPackageVariableChanges(t *testing.T) {
	t.Parallel()
	packages := map[string][]file{}
	for _, f := range files(t) {
		if !f.test() {
			dir := filepath.Dir(f.path)
			packages[dir] = append(packages[dir], f)
		}
	}
	for _, pkgFiles := range packages {
		for _, c := range changing(pkgFiles) {
			t.Error(c)
		}
	}
}

func TestBadMannersAreFound(t *testing.T) {
	t.Parallel()
	all := func(f file) []string {
		complaints, _ := banned(f)
		return slices.Concat(complaints, sloppy(f), changing([]file{f}))
	}
	for name, tt := range map[string]struct {
		path, source string
		complaints   int
	}{
		"a clock in probe":                       {"probe/a.go", `import "time"; func f() { _ = time.Now() }`, 1},
		"a clock in the root":                    {"a.go", `import "time"; func f() { _ = time.Now() }`, 1},
		"a clock under another name":             {"load/netperf/a.go", `import clock "time"; func f() { clock.Sleep(1) }`, 1},
		"a clock as a value":                     {"servers/a.go", `import "time"; var now = time.Now`, 1},
		"a clock in a test":                      {"probe/a_test.go", `import "time"; func f() { _ = time.Now() }`, 0},
		"a clock in cmd":                         {"cmd/bloat/a.go", `import "time"; func f() { _ = time.Now() }`, 0},
		"a clock in report":                      {"report/a.go", `import "time"; func f() { _ = time.Now() }`, 1},
		"durations":                              {"probe/a.go", `import "time"; const d = time.Second`, 0},
		"a variable named like a package":        {"probe/a.go", `import _ "time"; func f(time interface{ Now() int }) { _ = time.Now() }`, 0},
		"a context with the kernel's timer":      {"load/a.go", `import "context"; func f() { context.WithTimeout(nil, 1) }`, 1},
		"a socket in servers":                    {"servers/irtt/a.go", `import "net"; func f() { net.ListenPacket("udp", "") }`, 1},
		"a resolver in the root":                 {"a.go", `import "net"; var r = net.DefaultResolver`, 1},
		"a listener's type":                      {"load/a.go", `import "net"; var c net.Listener`, 0},
		"a connection's type":                    {"load/a.go", `import "net"; var c net.Conn`, 0},
		"a socket package in report":             {"report/a.go", `import "net"; var c net.Conn`, 1},
		"the environment in probe":               {"probe/a.go", `import "os"; func f() { _ = os.Getenv("X") }`, 1},
		"the environment in internal":            {"internal/a/a.go", `import "os"; func f() { _ = os.Getenv("X") }`, 1},
		"the environment where there is a leave": {"internal/facility/facility.go", `import "os"; func f() { _ = os.Getenv("X") }`, 0},
		"a mark of unfinished work":              {"cmd/bloat/a.go", "// TO" + "DO: more\nvar x = 1", 1},
		"an init function":                       {"cmd/bloat/a.go", `func init() {}`, 1},
		"a method named init":                    {"cmd/bloat/a.go", `type x int; func (x) init() {}`, 0},
		"a counter of the package":               {"probe/a.go", `var n int; func f() { n++ }`, 1},
		"a map of the package":                   {"probe/a.go", `var m = map[int]int{}; func f() { m[1] = 2; delete(m, 1) }`, 2},
		"a table that is only read":              {"probe/a.go", `var m = map[int]int{}; func f() int { return m[1] }`, 0},
		"a check that an interface is met":       {"probe/a.go", `var _ error = x; func f() { _ = g() }`, 0},
		"a local of the same name":               {"probe/a.go", `var n int; func f() { n := 1; n++ }`, 0},
	} {
		got := all(parse(t, tt.path, "package a; "+tt.source))
		if len(got) != tt.complaints {
			t.Errorf("%s: complaints %q, want %d", name, got, tt.complaints)
		}
	}
}

func parse(t *testing.T, path, source string) file {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file{path, set, parsed}
}

// files are all Go files of the module, for every operating system.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		source, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		all = append(all, parse(t, filepath.ToSlash(below), string(source)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("%d files in %s: this is not the module", len(all), top)
	}
	return all
}
