//go:build !linux

package watch

import (
	"errors"
	"fmt"
	"runtime"
)

func readCores() ([]Core, error) {
	return nil, fmt.Errorf("CPU use on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
