//go:build !linux

package host

import (
	"errors"
	"fmt"

	"bufferbloat/internal/bitrate"
)

// setPacingRate is Linux's alone.
func setPacingRate(_ uintptr, r bitrate.Bitrate) error {
	return fmt.Errorf("pace at %v: %w on this system", r, errors.ErrUnsupported)
}
