package wifi

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"bufferbloat/watch/rtnl"
)

// header is that of generic netlink.
func header(command byte) []byte { return []byte{command, 1, 0, 0} }

func read(index int) (all []Station, err error) {
	ask := rtnl.AppendAttr(header(unix.CTRL_CMD_GETFAMILY), unix.CTRL_ATTR_FAMILY_NAME, []byte("nl80211\x00"))
	var id uint16
	err = rtnl.AskGeneric(unix.GENL_ID_CTRL, false, ask, func(m rtnl.Message) (err error) {
		if m.Type == unix.GENL_ID_CTRL {
			id, err = family(m.Body)
		}
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPROTONOSUPPORT), err == nil && id == 0:
		return nil, fmt.Errorf("this kernel has no nl80211 now: %w", errors.ErrUnsupported)
	case err != nil:
		return nil, fmt.Errorf("look for nl80211: %w", err)
	}
	ask = rtnl.AppendAttr(header(getStation), attrIndex, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	err = rtnl.AskGeneric(id, true, ask, func(m rtnl.Message) error {
		if m.Type != id || len(all) == maxStations {
			return nil
		}
		s, err := Parse(m.Body)
		if err == nil {
			all = append(all, s)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the stations of device %d: %w", index, err)
	}
	return all, nil
}
