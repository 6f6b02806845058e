package testnet

import (
	"testing"

	"bufferbloat/internal/facility"
)

// Inside calls f on a thread of its own in the namespace and waits for it. A socket that f opens there belongs to the namespace for good,
// whoever uses it later; goroutines that f starts are outside. f reports by t.Error or by variables, never by t.Fatal.
func (s *Space) Inside(t testing.TB, f func()) {
	t.Helper()
	insideOf(t, "/run/netns/"+s.Name, f)
}

// InsideOf is Space.Inside for the network namespace of a process.
func InsideOf(t testing.TB, pid string, f func()) {
	t.Helper()
	insideOf(t, "/proc/"+pid+"/ns/net", f)
}

func insideOf(t testing.TB, file string, f func()) {
	t.Helper()
	if err := inside(file, f); err != nil {
		facility.Missing(t, "netns", err.Error())
	}
}
