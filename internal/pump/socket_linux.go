package pump

import (
	"errors"
	"math/bits"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/bitrate"
)

// socket moves bytes by system calls of its own on a TCP connection of the kernel: it discards what comes without copying it, and sends large
// pieces. Calls never block, the runtime's poller waits, so a waiting flow holds no thread. They go round the scheduler's bookkeeping of system
// calls as well: it takes each that lasts longer than some 20 us for one that blocks and starts a thread in its place, with many busy
// flows one after the other.
type socket struct {
	conn net.Conn
	raw  syscall.RawConn
	// What the two functions below are called with and return. They are made once, so that a turn allocates nothing.
	limit      int
	apart      uintptr // flag of a write that later ones must not be joined to
	moved      int
	errno      syscall.Errno
	recv, send func(fd uintptr) bool
	feed       *feed // nil while all that is sent is copied
}

// newSocket returns nil where c is no TCP connection of the kernel itself.
func newSocket(c net.Conn) *socket {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	tcp := false
	err = raw.Control(func(fd uintptr) {
		protocol, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
		kind, kerr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
		tcp = err == nil && kerr == nil && protocol == unix.IPPROTO_TCP && kind == unix.SOCK_STREAM
	})
	if err != nil || !tcp {
		return nil
	}
	k := &socket{conn: c, raw: raw}
	k.recv, k.send = k.discardOnce, k.sendOnce
	return k
}

// discardOnce throws away what is there (tcp(7), MSG_TRUNC). The kernel writes to no buffer: one that did not know the flag would
// fail with EFAULT, and harm nothing.
func (s *socket) discardOnce(fd uintptr) bool {
	return s.once(fd, unix.SYS_RECVFROM, nil, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
}

func (s *socket) sendOnce(fd uintptr) bool {
	if s.feed != nil && s.apart == 0 { // pages can't be kept apart
		return s.spliceOnce(fd)
	}
	s.limit = min(s.limit, chunk)
	return s.once(fd, unix.SYS_SENDTO, unsafe.SliceData(payload()), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT|s.apart)
}

// once reports whether the call is done; if not, it would have had to wait.
func (s *socket) once(fd uintptr, call uintptr, buf *byte, flags uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall6(call, fd, uintptr(unsafe.Pointer(buf)), uintptr(s.limit), flags, 0, 0)
		s.moved, s.errno = int(n), errno
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		return true
	}
}

// discard waits until there is something and throws away at most limit bytes of it. At the end of the stream it returns 0 and no error.
func (s *socket) discard(limit int) (int, error) {
	s.limit = limit
	if err := s.raw.Read(s.recv); err != nil {
		return 0, err
	}
	return s.outcome("read", "recvfrom")
}

// write waits until there is room and sends at most limit bytes. With apart they get a buffer of their own in the kernel, which looks at
// the limit of unsent bytes only where one begins.
func (s *socket) write(limit int, apart bool) (int, error) {
	s.limit, s.apart = limit, 0
	if apart {
		s.apart = unix.MSG_EOR
	}
	if err := s.raw.Write(s.send); err != nil {
		return 0, err
	}
	return s.outcome("write", "sendto")
}

func (s *socket) outcome(op, call string) (int, error) {
	if s.errno != 0 {
		return 0, &net.OpError{Op: op, Net: s.conn.RemoteAddr().Network(), Source: s.conn.LocalAddr(), Addr: s.conn.RemoteAddr(),
			Err: os.NewSyscallError(call, s.errno)}
	}
	return s.moved, nil
}

// lacksDiscard reports whether err says that this kernel can't discard, or that a filter of system calls does not let it. Nothing was read
// then.
func lacksDiscard(err error) bool {
	for _, errno := range []syscall.Errno{unix.EFAULT, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// wakeAt has the kernel wake a reader no sooner than so many bytes wait, or the stream has ended, or the window is about to close
// (socket(7), SO_RCVLOWAT).
func (s *socket) wakeAt(bytes int) error {
	return s.set(unix.SOL_SOCKET, unix.SO_RCVLOWAT, max(1, bytes))
}

// limitUnsent has a writer wait once so many bytes were taken and not sent for the first time; what is under way does not count (tcp(7),
// TCP_NOTSENT_LOWAT). The kernel wakes a writer once half of the limit is free.
func (s *socket) limitUnsent(bytes int) error {
	return s.set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
}

func (s *socket) set(level, option, value int) error {
	var serr error
	if err := s.raw.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), level, option, value) }); err != nil {
		return err
	}
	return serr
}

// queue returns what the kernel knows of the bytes that were written, or false where it does not tell.
func (s *socket) queue() (sending, bool) {
	var info *unix.TCPInfo
	var serr error
	err := s.raw.Control(func(fd uintptr) { info, serr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || serr != nil || info.Snd_mss == 0 {
		return sending{}, false
	}
	// A kernel that knows nothing of the others has left them zero, and then nothing follows from them.
	return sending{acked: info.Bytes_acked, unsent: int(info.Notsent_bytes), segment: int(info.Snd_mss)}, true
}

// smooth has TCP leave gaps within what is written at a rate, at a little more than it, so that the writer's own schedule is what counts
// (socket(7), SO_MAX_PACING_RATE). It is no loss where the kernel can't. The zero rate is no bound.
func (s *socket) smooth(rate bitrate.Bitrate) {
	perSecond := ^uint64(0)
	if rate > 0 {
		perSecond = uint64(rate/8 + rate/64) // an eighth for headers and what is sent again
	}
	_ = s.raw.Control(func(fd uintptr) {
		// The option is as wide as a long, and where that is 32 bits all ones are no bound either.
		if bits.UintSize == 64 {
			_ = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, perSecond)
		} else {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, int(int32(min(perSecond, 1<<32-1))))
		}
	})
}
