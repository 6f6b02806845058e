package testnet

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func (s *Space) inside(f func()) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no other goroutine can find itself in the namespace.
		runtime.LockOSThread()
		done <- s.enter(f)
	}()
	return <-done
}

func (s *Space) enter(f func()) error {
	file, err := os.Open("/run/netns/" + s.Name)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", s.Name, err)
	}
	f()
	return nil
}
