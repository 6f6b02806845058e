package qdisc

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"bufferbloat/watch/rtnl"
)

// read asks for the disciplines of a device, or for its classes.
func read(device int, class bool) ([]Queue, error) {
	kind, answer := uint16(unix.RTM_GETQDISC), uint16(unix.RTM_NEWQDISC)
	if class {
		kind, answer = unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS
	}
	body := make([]byte, headerSize)
	binary.NativeEndian.PutUint32(body[4:], uint32(device))
	var all []Queue
	err := rtnl.Ask(kind, true, body, func(m rtnl.Message) error {
		if m.Type != answer {
			return nil
		}
		q, err := Parse(m.Body, class)
		if err == nil && q.Device == device { // old kernels dump those of all devices
			all = append(all, q)
		}
		return err
	})
	return all, err
}
