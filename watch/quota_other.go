//go:build !linux

package watch

import (
	"errors"
	"fmt"
	"runtime"
)

type group struct{}

func findGroup() (Group, error) {
	return Group{}, fmt.Errorf("quota of CPU time on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (group) read() (Quota, error) { return Quota{}, errors.ErrUnsupported }
