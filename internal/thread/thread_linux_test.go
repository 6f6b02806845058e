package thread

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTheMainThreadStaysWhereItIs asks for many threads: who enters a lab by the number of its process (nsenter -t) goes where its main thread is.
func TestTheMainThreadStaysWhereItIs(t *testing.T) {
	want := errors.New("f's own")
	for range 300 {
		err := Do(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("the main thread is taken away")
			}
			return want
		})
		if err != want || t.Failed() {
			t.Fatal(err)
		}
	}
}
