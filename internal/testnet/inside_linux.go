package testnet

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/thread"
)

func inside(path string, f func()) error {
	return thread.Do(func() error {
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
	})
}
