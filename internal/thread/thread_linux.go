// Package thread runs what changes the thread that it runs on, such as its namespaces.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread of its own, waits for it, and returns its error. The thread ends with f, so that nothing else finds itself where f went. It is
// never the process's main thread, which can't end, and whose namespaces are what others take for the process's: /proc/self/net, /proc/PID/ns,
// nsenter -t PID. Do may be called from any goroutine.
func Do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- Do(f) // which finds another, as this one is held meanwhile
			return
		}
		// Never unlocked, by which the thread ends with the goroutine.
		done <- f()
	}()
	return <-done
}
