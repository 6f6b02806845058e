package kernel

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bufferbloat/servers/lab/link"
)

const (
	readBatch  = 32
	writeBatch = 64

	packetBuffer = 64 << 20 // bytes of a socket's queue, where the kernel grants it: some 100 ms at 5 Gbit/s
	controlSpace = 64
)

// message is the kernel's struct mmsghdr.
type message struct {
	header unix.Msghdr
	n      uint32
}

// port is a packet socket at the far end of one of the two devices. It is used by the forwarder's thread alone.
type port struct {
	fd   int
	pool *pool

	in struct {
		messages [readBatch]message
		vectors  [readBatch][3]unix.Iovec
		vnets    [readBatch][vnetHeader]byte
		controls [readBatch][controlSpace]byte
		small    [readBatch][]byte
		big      [readBatch][]byte
	}
	out struct {
		n        int
		messages [writeBatch]message
		vectors  [writeBatch][3]unix.Iovec
		vnets    [writeBatch][vnetHeader]byte
		headers  [writeBatch][maxHeaders]byte
		runs     [writeBatch]run
	}
	unsent   uint64         // packets that the kernel did not take
	lateness *link.Lateness // of what this port sends
}

// run is a number of neighbouring segments of one frame that leave together.
type run struct {
	first  *segment // it holds the frame for all of them
	count  int
	marked bool
}

// openPort opens a packet socket on a device of the calling thread's namespace. It is not blocking.
func openPort(index int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := setUpPort(fd, index); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func setUpPort(fd, index int) error {
	for _, o := range []struct {
		level, name int
		what        string
	}{
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, "headers for offloads (PACKET_VNET_HDR)"},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, "to leave out what it sends itself (PACKET_IGNORE_OUTGOING, Linux 4.20)"},
		{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, "time stamps (SO_TIMESTAMPNS)"},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, 1); err != nil {
			return fmt.Errorf("ask a packet socket for %s: %w", o.what, err)
		}
	}
	// Beyond the sysctl net.core.rmem_max it takes privilege outside of user namespaces; without it the kernel cuts the size silently.
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], packetBuffer) != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], packetBuffer); err != nil {
				return fmt.Errorf("size the buffers of a packet socket: %w", err)
			}
		}
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return fmt.Errorf("bind a packet socket: %w", err)
	}
	return nil
}

func newPort(fd int, p *pool, l *link.Lateness) *port {
	o := &port{fd: fd, pool: p, lateness: l}
	for i := range o.in.messages {
		o.in.small[i], o.in.big[i] = p.buffer(smallBuffer), p.buffer(bigBuffer)
		v := &o.in.vectors[i]
		v[0] = vector(o.in.vnets[i][:])
		h := &o.in.messages[i].header
		h.Iov = &v[0]
		h.SetIovlen(len(v))
		h.Control = &o.in.controls[i][0]
	}
	for i := range o.out.messages {
		v := &o.out.vectors[i]
		v[0] = vector(o.out.vnets[i][:])
		o.out.messages[i].header.Iov = &v[0]
	}
	return o
}

func vector(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// read reads what is there, up to a batch, and hands each frame on with the time by the wall clock at which the kernel took it, 0 where that
// is unknown. It returns how many frames it read. A frame that take wants is take's.
func (p *port) read(take func(f *frame, wall int64)) (int, error) {
	// A frame goes to its small buffer, and what does not fit there to the big one, behind a place for the small one's bytes.
	for i := range p.in.messages {
		v := &p.in.vectors[i]
		v[1], v[2] = vector(p.in.small[i]), vector(p.in.big[i][smallBuffer:])
		p.in.messages[i].header.SetControllen(controlSpace)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&p.in.messages[0])), readBatch, unix.MSG_DONTWAIT, 0, 0)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR || errno == unix.ENOBUFS:
		return 0, nil
	case errno != 0:
		return 0, fmt.Errorf("read from a packet socket: %w", errno)
	}
	for i := range int(n) {
		length := int(p.in.messages[i].n) - vnetHeader
		if length < etherHeader || length > maxFrame {
			continue // no frame at all
		}
		control := p.in.controls[i][:p.in.messages[i].header.Controllen]
		take(p.claim(i, length), wallStamp(control))
	}
	return int(n), nil
}

// claim makes a frame of what was read into the buffers with index i, and puts new ones in their place.
func (p *port) claim(i, n int) *frame {
	v := parseVnet(&p.in.vnets[i])
	switch small := p.in.small[i]; {
	case n <= tinyBuffer:
		b := p.pool.buffer(tinyBuffer)
		copy(b, small[:n])
		return p.pool.frame(b, n, v)
	case n <= smallBuffer:
		p.in.small[i] = p.pool.buffer(smallBuffer)
		return p.pool.frame(small, n, v)
	default:
		b := p.in.big[i]
		copy(b, small)
		p.in.big[i] = p.pool.buffer(bigBuffer)
		return p.pool.frame(b, n, v)
	}
}

// wallStamp returns the time stamp of a control message in nanoseconds since 1970, 0 where there is none.
func wallStamp(control []byte) int64 {
	for len(control) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		size := int(h.Len)
		if size < unix.SizeofCmsghdr || size > len(control) {
			return 0
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SO_TIMESTAMPNS && size >= unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) {
			return (*unix.Timespec)(unsafe.Pointer(&control[unix.CmsgLen(0)])).Nano()
		}
		next := unix.CmsgSpace(size - unix.CmsgLen(0))
		if next > len(control) {
			return 0
		}
		control = control[next:]
	}
	return 0
}

// send hands over a segment whose time has come, late by so much. It may hold it back until flush.
func (p *port) send(s *segment, marked bool, late time.Duration) {
	f := s.frame
	p.lateness.Add(late)
	// Only the latest run of the frame may grow, or segments would overtake each other. Datagrams stay apart.
	if f.payload > 0 && f.proto == protoTCP && f.run < p.out.n {
		r := &p.out.runs[f.run]
		if r.first.frame == f && r.marked == marked && r.first.index+r.count == s.index {
			r.count++
			p.pool.release(s)
			return
		}
	}
	if p.out.n == writeBatch {
		p.flush()
	}
	f.run = p.out.n
	p.out.runs[p.out.n] = run{first: s, count: 1, marked: marked}
	p.out.n++
}

// flush sends what was held back.
func (p *port) flush() {
	o := &p.out
	for i := range o.n {
		p.compose(i)
	}
	for done := 0; done < o.n; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&o.messages[done])), uintptr(o.n-done), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			p.unsent += uint64(o.runs[done].count)
			done++
			continue
		}
		done += int(n)
	}
	for i := range o.n {
		p.pool.release(o.runs[i].first)
		o.runs[i] = run{}
	}
	o.n = 0
}

// compose fills in the message of run i.
func (p *port) compose(i int) {
	r := &p.out.runs[i]
	f := r.first.frame
	from, to := r.first.bounds()
	if r.count > 1 {
		to = min(from+r.count*int(f.v.segment), len(f.buf))
	}
	headers, rest, v := f.appendHeaders(p.out.headers[i][:0], r.first.index, from, to, r.marked)
	v.put(&p.out.vnets[i])
	vectors, n := &p.out.vectors[i], 1
	if len(headers) > 0 {
		vectors[n] = vector(headers)
		n++
	}
	if len(rest) > 0 {
		vectors[n] = vector(rest)
		n++
	}
	p.out.messages[i].header.SetIovlen(n)
}

// unread returns how many packets the socket had no room for since it was asked last.
func (p *port) unread() (uint64, error) {
	s, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("read the drops of a packet socket: %w", err)
	}
	return uint64(s.Drops), nil
}
