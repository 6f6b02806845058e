//go:build !linux && !windows && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package host

import (
	"errors"
	"fmt"
	"syscall"
)

const (
	echoPermissionHint = "run the program with the privilege to open raw sockets"
	noBufferErrno      = syscall.ENOBUFS
	truncatedFlag      = 0
	canMark            = false
)

// setOptions refuses every option.
func setOptions(_ uintptr, _ socketKind, o Options) error {
	if source := o.Source; o != (Options{Source: source}) {
		return fmt.Errorf("socket options %+v: %w on this system", o, errors.ErrUnsupported)
	}
	return nil
}
