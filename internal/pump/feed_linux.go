package pump

import (
	"sync"

	"golang.org/x/sys/unix"
)

// feed gives a socket pages that hold the payload, in place of a copy of them (tee(2), splice(2)). The kernel holds them until they are
// acknowledged and may send them again; nobody ever writes to them.
type feed struct {
	out, in int // of a pipe
	pending int // bytes in it
}

const (
	// feedSize is the most bytes of one write by a feed. The kernel takes sixteen buffers out of a pipe for a socket at once, and these are no more, also
	// where the first is what was left of one. Taken in two parts each would leave a rest.
	feedSize = 448 << 10
	// feedPipe is the size of a pipe, of which an ordinary user has 64 MiB in all: 32 buffers. One holds a page of the caller's, or up to 32 KiB of
	// the kernel's own, which is an eighth of the work.
	feedPipe = 128 << 10
)

// source is the read end of a pipe with up to feedSize bytes of payload, which all feeds take their pages from. They went through a socket, since the
// kernel keeps in large pieces what it copies there. It is never closed; -1 where that can't be: a limit on descriptors or on the memory of pipes, or a
// filter of system calls.
var source = sync.OnceValue(func() int {
	out, in := newPipe()
	if out < 0 {
		return -1
	}
	defer unix.Close(in)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(out)
		return -1
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const unit = 32 << 10
	at := 0
	for at < feedSize {
		if at%unit == 0 {
			if _, err := unix.Write(pair[0], payload()[at%chunk:][:unit]); err != nil {
				break
			}
		}
		n, err := unix.Splice(pair[1], nil, in, nil, unit-at%unit, unix.SPLICE_F_NONBLOCK)
		if err != nil || n == 0 { // the pipe is full
			break
		}
		at += int(n)
	}
	if at == 0 {
		_ = unix.Close(out)
		return -1
	}
	return out
})

// newPipe returns both ends of a pipe, or -1 twice.
func newPipe() (out, in int) {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return -1, -1
	}
	if size, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, feedPipe); err != nil || size < feedPipe {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return -1, -1
	}
	return fds[0], fds[1]
}

// newFeed opens a feed, or returns nil where that can't be.
func newFeed() *feed {
	if source() < 0 {
		return nil
	}
	out, in := newPipe()
	if out < 0 {
		return nil
	}
	return &feed{out: out, in: in}
}

func (f *feed) close() {
	_ = unix.Close(f.out)
	_ = unix.Close(f.in)
}

// fill has at least limit bytes in the pipe, where so many fit. It reports false where there are none.
func (f *feed) fill(limit int) bool {
	if f.pending < limit {
		n, _, errno := unix.RawSyscall6(unix.SYS_TEE, uintptr(source()), uintptr(f.in), feedSize, unix.SPLICE_F_NONBLOCK, 0, 0)
		if errno == 0 {
			f.pending += int(n)
		}
	}
	return f.pending > 0
}

// openFeed has write give pages from now on, until closeFeed, but for what is to stay apart, and returns the most bytes of one write then; 0 where that
// can't be.
func (s *socket) openFeed() int {
	if s.feed = newFeed(); s.feed == nil {
		return 0
	}
	return feedSize
}

func (s *socket) closeFeed() {
	if s.feed != nil {
		s.feed.close()
		s.feed = nil
	}
}

// spliceOnce is sendOnce by the feed. What can't be done by it is done without.
func (s *socket) spliceOnce(fd uintptr) bool {
	f := s.feed
	for f.fill(s.limit) {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(f.out), 0, fd, 0, uintptr(min(s.limit, f.pending)), unix.SPLICE_F_NONBLOCK)
		s.moved, s.errno = int(n), errno
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return false
		case errno == unix.EINVAL || errno == unix.ENOSYS || errno == unix.EPERM:
			s.closeFeed()
			return s.sendOnce(fd)
		case errno == 0:
			f.pending -= s.moved
		}
		return true
	}
	s.closeFeed()
	return s.sendOnce(fd)
}
