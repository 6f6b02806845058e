package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/bitrate"
	"bufferbloat/watch/rtnl"
)

func readLink(index int) (Link, error) {
	body := make([]byte, infoSize)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	var found *Link
	err := rtnl.Ask(unix.RTM_GETLINK, false, body, func(m rtnl.Message) error {
		if m.Type != unix.RTM_NEWLINK {
			return nil
		}
		l, err := ParseLink(m.Body)
		if err == nil && l.Index == index {
			found = &l
		}
		return err
	})
	if err != nil {
		return Link{}, err
	}
	if found == nil {
		return Link{}, fmt.Errorf("the kernel does not tell of device %d", index)
	}
	return *found, nil
}

func egress(to, from netip.Addr) (int, error) {
	family, value := byte(unix.AF_INET), to.AsSlice()
	if to.Is6() {
		family = unix.AF_INET6
	}
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[1] = family, byte(8*len(value))
	body = rtnl.AppendAttr(body, unix.RTA_DST, value)
	if from.IsValid() {
		source := from.AsSlice()
		body[2] = byte(8 * len(source))
		body = rtnl.AppendAttr(body, unix.RTA_SRC, source)
	}
	index := 0
	err := rtnl.Ask(unix.RTM_GETROUTE, false, body, func(m rtnl.Message) error {
		if m.Type != unix.RTM_NEWROUTE || len(m.Body) < unix.SizeofRtMsg {
			return nil
		}
		return rtnl.Attrs(m.Body[unix.SizeofRtMsg:], func(kind uint16, value []byte) error {
			if n, ok := rtnl.Uint32(value); ok && kind == unix.RTA_OIF {
				index = int(n)
			}
			return nil
		})
	})
	if err == nil && index == 0 {
		err = errors.New("it names no device")
	}
	return index, err
}

// readFacts asks the driver and sysfs.
func readFacts(l Link, f *Facts) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Missing["all"] = err.Error()
		return
	}
	defer unix.Close(fd)
	f.Virtual = l.Kind != ""
	if d, err := unix.IoctlGetEthtoolDrvinfo(fd, l.Name); err == nil {
		f.Driver = unix.ByteSliceToString(d.Driver[:])
	} else {
		f.Missing["driver"] = err.Error()
	}
	f.offloads(fd, l.Name)
	var pause struct{ command, autoneg, rx, tx uint32 }
	pause.command = unix.ETHTOOL_GPAUSEPARAM
	if err := ethtool(fd, l.Name, unsafe.Pointer(&pause)); err == nil {
		f.PauseRx, f.PauseTx = pause.rx != 0, pause.tx != 0
	} else {
		f.Missing["pause frames"] = err.Error()
	}
	var coalesce [23]uint32 // struct ethtool_coalesce
	coalesce[0] = unix.ETHTOOL_GCOALESCE
	if err := ethtool(fd, l.Name, unsafe.Pointer(&coalesce)); err == nil {
		f.Coalesce = int(min(coalesce[1], 1<<31-1))
	} else {
		f.Missing["interrupts"] = err.Error()
	}
	f.fromSysfs(l)
}

// offloads asks for each by itself, as one does since Linux 2.6.
func (f *Facts) offloads(fd int, name string) {
	const lro = 1 << 15 // ETH_FLAG_LRO
	for _, o := range []struct {
		name    string
		command uint32
		bit     uint32
	}{{"tso", unix.ETHTOOL_GTSO, ^uint32(0)}, {"gso", unix.ETHTOOL_GGSO, ^uint32(0)}, {"gro", unix.ETHTOOL_GGRO, ^uint32(0)}, {"lro", unix.ETHTOOL_GFLAGS, lro}} {
		value := [2]uint32{o.command}
		if err := ethtool(fd, name, unsafe.Pointer(&value)); err != nil {
			f.Missing["offloads"] = err.Error()
		} else if value[1]&o.bit != 0 {
			f.Offloads = append(f.Offloads, o.name)
		}
	}
}

// ethtool is SIOCETHTOOL with a structure that begins with its command.
func ethtool(fd int, name string, data unsafe.Pointer) error {
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	request.data = data
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

// sysfs returns the device's directory there, or why it has none: a process in another network namespace than the one that mounted
// sysfs sees the devices of that one, and one of them may have the same name.
func sysfs(l Link) (string, error) {
	dir := filepath.Join("/sys/class/net", l.Name)
	index, err := number(filepath.Join(dir, "ifindex"))
	if err != nil {
		return "", err
	}
	address, err := os.ReadFile(filepath.Join(dir, "address"))
	switch {
	case err != nil:
		return "", err
	case index != l.Index || strings.TrimSpace(string(address)) != l.Address:
		return "", errors.New("/sys shows the devices of another network namespace")
	}
	return dir, nil
}

func number(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (f *Facts) fromSysfs(l Link) {
	dir, err := sysfs(l)
	if err != nil {
		for _, what := range []string{"speed", "byte queue limits"} {
			f.Missing[what] = err.Error()
		}
		return
	}
	if _, err := os.Stat(filepath.Join(dir, "device")); err != nil {
		f.Virtual = true
	}
	switch speed, err := number(filepath.Join(dir, "speed")); {
	case err != nil:
		f.Missing["speed"] = err.Error()
	case speed <= 0:
		f.Missing["speed"] = "the driver does not tell"
	default:
		f.Speed = bitrate.Bitrate(speed) * bitrate.Mbit
	}
	if f.BQL, err = readBQL(l); err != nil {
		f.Missing["byte queue limits"] = err.Error()
	}
}

// mostQueues bounds how many transmit queues are read.
const mostQueues = 16

func readBQL(l Link) (all []BQL, err error) {
	dir, err := sysfs(l)
	if err != nil {
		return nil, err
	}
	for i := range mostQueues {
		queue := filepath.Join(dir, "queues", "tx-"+strconv.Itoa(i))
		if _, err := os.Stat(queue); err != nil {
			break
		}
		var b BQL
		for name, into := range map[string]*int{"limit": &b.Limit, "limit_max": &b.Highest, "inflight": &b.InFlight} {
			if *into, err = number(filepath.Join(queue, "byte_queue_limits", name)); err != nil {
				return nil, fmt.Errorf("the kernel has none: %w", err)
			}
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, errors.New("the device has no transmit queue")
	}
	return all, nil
}

func readWireless(name string) (Wireless, bool) {
	b, err := os.ReadFile("/proc/thread-self/net/wireless")
	if err != nil || len(b) > 1<<20 {
		return Wireless{}, false
	}
	return parseWireless(string(b), name)
}
