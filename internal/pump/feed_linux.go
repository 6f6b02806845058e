package pump

import (
	"math/rand/v2"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// feed is a pipe by which a socket is given the pages of one buffer, in place of a copy of them (vmsplice(2), splice(2)). The kernel holds
// them until they are acknowledged and may send them again, so nobody ever writes to them.
type feed struct {
	out, in int // of the pipe
	pending int // bytes in it
	pieces  [feedSize / pieceSize]unix.Iovec
}

const (
	// feedSize is the most bytes of one write by a feed, and what a pipe may hold that an ordinary user makes.
	feedSize = 1 << 20
	// pieceSize is what the kernel takes out of a pipe for a socket at once: sixteen pages.
	pieceSize = 64 << 10
)

// pages returns feedSize bytes as meaningless as payload's, on whole pages of their own. Where the kernel has large pages they are neighbours, and
// a socket's buffer then takes them for one piece.
var pages = sync.OnceValues(func() ([]byte, error) {
	const large = 2 << 20
	b, err := unix.Mmap(-1, 0, 2*large, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	at := (large - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%large)) % large
	_ = unix.Madvise(b[at:at+large], unix.MADV_HUGEPAGE) // without it they are only dearer
	b = b[at : at+feedSize : at+feedSize]
	_, _ = rand.NewChaCha8([32]byte{'b', 'l', 'o', 'a', 't'}).Read(b)
	return b, nil
})

// newFeed opens a feed of pieces that are a whole buffer each for a connection with such segments, or returns nil where that can't be: a limit on
// descriptors or on the memory of pipes, or a filter of system calls.
func newFeed(segment int) *feed {
	b, err := pages()
	if err != nil {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return nil
	}
	f := &feed{out: fds[0], in: fds[1]}
	for i := range f.pieces {
		f.pieces[i].Base = &b[i*pieceSize]
		f.pieces[i].SetLen(min(buffer(segment), pieceSize))
	}
	if size, err := unix.FcntlInt(uintptr(f.in), unix.F_SETPIPE_SZ, feedSize); err != nil || size < feedSize {
		f.close()
		return nil
	}
	return f
}

func (f *feed) close() {
	_ = unix.Close(f.out)
	_ = unix.Close(f.in)
}

// fill puts pages into an empty pipe. It reports false where the kernel does not take them.
func (f *feed) fill() bool {
	if f.pending > 0 {
		return true
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_VMSPLICE, uintptr(f.in), uintptr(unsafe.Pointer(&f.pieces)), uintptr(len(f.pieces)),
		unix.SPLICE_F_NONBLOCK, 0, 0)
	if errno != 0 || n == 0 {
		return false
	}
	f.pending = int(n)
	return true
}

// openFeed has write give pages from now on, until closeFeed, and returns the most bytes of one write then; 0 where that can't be.
func (s *socket) openFeed(segment int) int {
	if s.feed = newFeed(segment); s.feed == nil {
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
	for f.fill() {
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
