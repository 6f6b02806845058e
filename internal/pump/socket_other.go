//go:build !linux

package pump

import (
	"errors"
	"net"

	"bufferbloat/internal/bitrate"
)

// socket is what Linux does better than Read and Write.
type socket struct{}

func newSocket(net.Conn) *socket { return nil }

func (*socket) discard(int) (int, error)     { return 0, errors.ErrUnsupported }
func (*socket) write(int, bool) (int, error) { return 0, errors.ErrUnsupported }
func (*socket) wakeAt(int) error             { return errors.ErrUnsupported }
func (*socket) limitUnsent(int) error        { return errors.ErrUnsupported }
func (*socket) queue() (sending, bool)       { return sending{}, false }
func (*socket) smooth(bitrate.Bitrate)       {}
func (*socket) openFeed() int                { return 0 }
func (*socket) closeFeed()                   {}
func lacksDiscard(error) bool                { return true }
