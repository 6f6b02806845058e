package nonce

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// fill asks the kernel itself: crypto/rand adds nothing to it but a standard's ceremony, which takes 0.2 MB of a router's program.
func fill(b []byte) {
	for len(b) > 0 {
		n, err := unix.Getrandom(b, 0)
		switch {
		case err == nil:
			b = b[n:]
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSYS): // before Linux 3.17, and in some emulators
			if err := readDevice(b); err != nil {
				panic(fmt.Sprintf("no random numbers: %v", err))
			}
			return
		default:
			panic(fmt.Sprintf("no random numbers: %v", err))
		}
	}
}

func readDevice(b []byte) error {
	f, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.ReadFull(f, b)
	return err
}
