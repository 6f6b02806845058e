package kernel

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestTheMainThreadStaysWhereItIs asks for many threads: whoever enters the lab by this process's number (nsenter -t) goes where its main thread is.
func TestTheMainThreadStaysWhereItIs(t *testing.T) {
	for range 1000 {
		err := onThread(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("the main thread is taken away")
			}
			return nil
		})
		if err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
}
