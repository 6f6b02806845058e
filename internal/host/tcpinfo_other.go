//go:build !linux

package host

import (
	"errors"
	"fmt"
)

func tcpInfo(uintptr, bool) (TCPInfo, error) {
	return TCPInfo{}, fmt.Errorf("no TCP state is read on this system: %w", errors.ErrUnsupported)
}
