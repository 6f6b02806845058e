//go:build !linux

package watch

import (
	"errors"
	"fmt"
	"runtime"
)

func readCPU() (Times, error) {
	return Times{}, fmt.Errorf("CPU use on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func readKernel() string { return "" }

func readCongestionControl() string { return "" }
