package testnet

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func inside(path string, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread can't end, and its namespace is what /proc/self/net shows to the whole process. Held meanwhile, it is not taken again.
			defer runtime.UnlockOSThread()
			done <- inside(path, f)
			return
		}
		// Never unlocked: the thread ends with the goroutine, so that no other goroutine can find itself in the namespace.
		done <- enter(path, f)
	}()
	return <-done
}

func enter(path string, f func()) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	f()
	return nil
}
