package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheTestsNamedInDocsFaultsExist reads docs/faults.md, whose last column names tests as `directory: TestName`.
func TestTheTestsNamedInDocsFaultsExist(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([./a-z0-9]+): (Test[A-Za-z0-9]+)`")
	rows := 0
	for line := range strings.Lines(string(page)) {
		tests := named.FindAllStringSubmatch(line, -1)
		if regexp.MustCompile(`^\| [0-9]+ \|`).MatchString(line) {
			rows++
			if len(tests) == 0 {
				t.Errorf("no test is named in %q", line)
			}
		}
		for _, m := range tests {
			if !isTest(t, filepath.Join(root, m[1]), m[2]) {
				t.Errorf("%s has no test %s", m[1], m[2])
			}
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were read: has the table changed its form?", rows)
	}
}

// TestTheTestsNamedInDocsExist is the same for the tables of what is held of a protocol.
func TestTheTestsNamedInDocsExist(t *testing.T) {
	const root = "../.."
	for _, name := range []string{"irtt", "netperf", "iperf3", "probes"} {
		page, err := os.ReadFile(filepath.Join(root, "docs", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		tests := regexp.MustCompile("`([./a-z0-9]+): (Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
		for _, m := range tests {
			if !isTest(t, filepath.Join(root, m[1]), m[2]) {
				t.Errorf("docs/%s.md: %s has no test %s", name, m[1], m[2])
			}
		}
		if len(tests) < 20 {
			t.Errorf("docs/%s.md: only %d tests are named", name, len(tests))
		}
	}
}

// isTest reports whether a test file in dir defines the test function name.
func isTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
