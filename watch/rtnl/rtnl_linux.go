package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// sequence is that of the one request on each socket.
const sequence = 1

// patience bounds how long the kernel may take, in seconds.
const patience = 2

// tries is how often a dump is asked for again that was changed while it was read.
const tries = 4

// errChanged says that what was dumped changed meanwhile.
var errChanged = errors.New("it changed while it was read")

// Ask sends a request and calls each for all messages of the answer. body is what is behind the header of netlink; a dump has many
// messages. The calling thread's network namespace is the one that is asked.
func Ask(kind uint16, dump bool, body []byte, each func(Message) error) error {
	return askUnchanged(unix.NETLINK_ROUTE, kind, dump, body, each)
}

// AskGeneric is Ask for a family of generic netlink, by its number.
func AskGeneric(kind uint16, dump bool, body []byte, each func(Message) error) error {
	return askUnchanged(unix.NETLINK_GENERIC, kind, dump, body, each)
}

func askUnchanged(protocol int, kind uint16, dump bool, body []byte, each func(Message) error) error {
	for i := 0; ; i++ {
		err := ask(protocol, kind, dump, body, each)
		if !errors.Is(err, errChanged) || i == tries {
			return err
		}
	}
}

func ask(protocol int, kind uint16, dump bool, body []byte, each func(Message) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}); err != nil {
		return fmt.Errorf("bound the wait for netlink: %w", err)
	}
	// A kernel that knows it (4.20) then keeps to the filter of a dump; others answer with all there is, which the caller has to expect.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	flags := uint16(unix.NLM_F_REQUEST)
	if dump {
		flags |= unix.NLM_F_DUMP
	} else {
		flags |= unix.NLM_F_ACK
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(headerSize+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0)
	if err := unix.Sendto(fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask netlink: %w", err)
	}
	return receive(fd, each)
}

// receive reads the answer to its end.
func receive(fd int, each func(Message) error) error {
	buf := make([]byte, 16<<10) // the kernel fits the parts of a dump to it
	changed := false
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return errors.New("netlink does not answer")
		case err != nil:
			return fmt.Errorf("netlink's answer: %w", err)
		case n > len(buf):
			return fmt.Errorf("netlink's answer has a part of %d bytes", n)
		}
		over, err := messages(buf[:n], sequence, func(m Message, flags uint16) (bool, error) {
			changed = changed || flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Type {
			case unix.NLMSG_DONE:
				return true, nil
			case unix.NLMSG_ERROR:
				code, ok := Uint32(m.Body)
				if !ok {
					return true, &MalformedError{0, "half an error"}
				}
				if errno := -int32(code); errno != 0 {
					return true, fmt.Errorf("netlink: %w", unix.Errno(errno))
				}
				return true, nil
			}
			return false, each(m)
		})
		switch {
		case err != nil:
			return err
		case over && changed:
			return errChanged
		case over:
			return nil
		}
	}
}
