//go:build !linux

package qdisc

import (
	"errors"
	"fmt"
	"runtime"
)

func read(int, bool) ([]Queue, error) {
	return nil, fmt.Errorf("on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
