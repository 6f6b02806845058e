// Package facility lets a test ask the machine for what it needs, and skip with the reason where the machine has it not.
package facility

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Variable is the environment variable that names the facilities which must be there, separated by commas; "all" names every one. A
// test that lacks a facility named in it fails instead of being skipped.
const Variable = "BLOAT_REQUIRE"

// Missing ends the test, because the facility name is not to be had for this reason: skipped, or failed where Variable names it.
func Missing(t testing.TB, name, reason string) {
	t.Helper()
	required := strings.Split(os.Getenv(Variable), ",")
	if slices.Contains(required, name) || slices.Contains(required, "all") {
		t.Fatalf("%s names %s, and this machine has it not: %s", Variable, name, reason)
	}
	t.Skipf("no %s here: %s", name, reason)
}
