package testnet

import (
	"testing"

	"bufferbloat/internal/facility"
)

// Inside calls f on a thread of its own in the namespace and waits for it. A socket that f opens there belongs to the namespace for good,
// whoever uses it later; goroutines that f starts are outside. f reports by t.Error or by variables, never by t.Fatal.
func (s *Space) Inside(t testing.TB, f func()) {
	t.Helper()
	if err := s.inside(f); err != nil {
		facility.Missing(t, "netns", err.Error())
	}
}
