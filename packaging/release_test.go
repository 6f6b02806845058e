package packaging

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// releaseVariable set to anything runs the tests that build releases: make sizes.
const releaseVariable = "BLOAT_RELEASE"

// The room that the program for routers may take, in bytes: routers have 8 to 16 MB of flash, and what they store there is compressed.
const (
	rawBudget = 5_500_000
	xzBudget  = 1_500_000
)

// release builds archives from a source tree, and returns the directory that they are in.
func release(t *testing.T, tree string, archives ...string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(tree, "packaging", "release"), append([]string{out, "1.2.3", "1764000000"}, archives...)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	return out
}

// member returns a file of an archive, by its name without directories.
func member(t *testing.T, archive, name string) []byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", name, archive, err)
		}
		if path.Base(h.Name) == name {
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
}

func TestTheProgramForRoutersFitsItsBudgets(t *testing.T) {
	if os.Getenv(releaseVariable) == "" {
		t.Skip(releaseVariable + " is not set")
	}
	xz := need(t, "xz")
	out := release(t, "..", "speedtest-linux-mipsle")
	program := member(t, filepath.Join(out, "speedtest-linux-mipsle.tar.gz"), "speedtest")
	cmd := exec.CommandContext(t.Context(), xz, "-9e", "-c")
	cmd.Stdin = bytes.NewReader(program)
	packed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("speedtest for mipsle: %d bytes, %d as xz\n", len(program), len(packed))
	if len(program) > rawBudget || len(packed) > xzBudget {
		t.Errorf("got %d bytes, and %d as xz, want at most %d and %d; go tool nm -size -sort size tells what of a build without -s takes most",
			len(program), len(packed), rawBudget, xzBudget)
	}
}

func TestReleasesAreReproducible(t *testing.T) {
	if os.Getenv(releaseVariable) == "" {
		t.Skip(releaseVariable + " is not set")
	}
	other := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.CopyFS(other, os.DirFS("..")); err != nil {
		t.Fatal(err)
	}
	archives := []string{"speedtest-linux-mipsle", "bloat-linux-amd64"}
	first, second := release(t, "..", archives...), release(t, other, archives...)
	sums, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range archives {
		name += ".tar.gz"
		a, err1 := os.ReadFile(filepath.Join(first, name))
		b, err2 := os.ReadFile(filepath.Join(second, name))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is another from another directory: %d and %d bytes, %v %v", name, len(a), len(b), err1, err2)
		}
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(a), name); !strings.Contains(string(sums), line) {
			t.Errorf("SHA256SUMS lacks %q:\n%s", line, sums)
		}
	}
}
