//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package statefile

import (
	"errors"
	"os"
)

// tryLock can't keep processes apart here.
func tryLock(*os.File) error { return errors.ErrUnsupported }
