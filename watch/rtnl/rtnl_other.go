//go:build !linux

package rtnl

import (
	"errors"
	"fmt"
)

// Ask is for Linux.
func Ask(uint16, bool, []byte, func(Message) error) error {
	return fmt.Errorf("rtnetlink: %w", errors.ErrUnsupported)
}
