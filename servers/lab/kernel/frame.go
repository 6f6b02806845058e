package kernel

import (
	"encoding/binary"
	"net/netip"

	"bufferbloat/servers/lab/link"
)

// Sizes and offsets of the headers that the forwarder reads (IEEE 802.3, RFC 791, 8200, 9293, 768, 4443).
const (
	etherHeader = 14
	ipv4Header  = 20
	ipv6Header  = 40
	tcpHeader   = 20
	udpHeader   = 8

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58

	flagFIN = 0x01
	flagPSH = 0x08
	flagACK = 0x10
	flagCWR = 0x80

	optionSACK = 5

	maxHeaders = etherHeader + 60 + 60 // of a frame that can be taken apart: IPv4 and TCP with all their options
	maxFrame   = etherHeader + 1<<16 - 1
)

// The header that the kernel puts before each frame of a packet socket with PACKET_VNET_HDR (struct virtio_net_hdr), in the byte order of
// the machine.
const (
	vnetHeader    = 10
	vnetNeedsCsum = 1

	gsoNone  = 0
	gsoTCPv4 = 1
	gsoTCPv6 = 4
	gsoUDP   = 5    // datagrams of equal size behind each other (UDP_SEGMENT)
	gsoECN   = 0x80 // a flag: the first segment has CWR
)

// vnet is that header as parsed.
type vnet struct {
	flags, gso                               uint8
	headers, segment, csumStart, csumAddress uint16 // segment is the payload of each segment; csumAddress is relative to csumStart
}

func parseVnet(b *[vnetHeader]byte) vnet {
	word := func(i int) uint16 { return binary.NativeEndian.Uint16(b[i:]) }
	return vnet{flags: b[0], gso: b[1], headers: word(2), segment: word(4), csumStart: word(6), csumAddress: word(8)}
}

func (v vnet) put(b *[vnetHeader]byte) {
	b[0], b[1] = v.flags, v.gso
	for i, w := range [...]uint16{v.headers, v.segment, v.csumStart, v.csumAddress} {
		binary.NativeEndian.PutUint16(b[2+2*i:], w)
	}
}

// frame is one frame as it was read, a super-packet or not. Its segments share it.
type frame struct {
	buf  []byte // Ethernet header first
	pool *pool
	kept []byte // buf with its whole capacity, for the pool
	refs int    // segments that still want it
	run  int    // of the port that sends it: the latest run with segments of this frame, as far as it is one

	v       vnet
	ipv6    bool
	ip      bool  // it is an IP packet whose header is whole
	proto   uint8 // of IP
	l4      int   // offset of the transport header, 0 where there is none
	payload int   // offset of what is behind all headers of a super-packet, otherwise 0
	flow    uint64
	from    uint32
	to      uint32
	ds      uint8
	pureACK bool
	ack     uint32
}

// parse reads what a queue wants to know of the frame. It returns false for a super-packet that cannot be taken apart; any other frame can
// cross the link, if need be as a packet of which nothing is known.
func (f *frame) parse() bool {
	b := f.buf
	f.ipv6, f.ip, f.proto, f.l4, f.payload, f.flow, f.from, f.to, f.ds, f.pureACK, f.ack = false, false, 0, 0, 0, 0, 0, 0, 0, false, 0
	f.parseIP(b)
	switch {
	case f.v.gso&^gsoECN == gsoNone:
		return true
	case f.l4 == 0 || f.v.segment == 0:
		return false
	}
	kind := f.v.gso &^ gsoECN
	switch {
	case kind == gsoTCPv4 && !f.ipv6 && f.proto == protoTCP, kind == gsoTCPv6 && f.ipv6 && f.proto == protoTCP:
		f.payload = f.l4 + int(b[f.l4+12]>>4)*4
	case kind == gsoUDP && f.proto == protoUDP:
		f.payload = f.l4 + udpHeader
	default:
		return false
	}
	return f.payload < len(b) && f.payload <= maxHeaders && f.payload >= f.l4+udpHeader && (f.proto != protoTCP || f.payload >= f.l4+tcpHeader)
}

func (f *frame) parseIP(b []byte) {
	var flow link.Flow
	fragment := false
	l4 := 0
	switch {
	case len(b) >= etherHeader+ipv4Header && b[12] == 0x08 && b[13] == 0x00 && b[14]>>4 == 4:
		ip := b[etherHeader:]
		l4 = etherHeader + int(ip[0]&15)*4
		if l4 < etherHeader+ipv4Header || l4 > len(b) {
			return
		}
		f.ds, flow.Protocol = ip[1], ip[9]
		fragment = binary.BigEndian.Uint16(ip[6:])&0x3fff != 0
		flow.From, flow.To = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case len(b) >= etherHeader+ipv6Header && b[12] == 0x86 && b[13] == 0xdd && b[14]>>4 == 6:
		ip := b[etherHeader:]
		l4 = etherHeader + ipv6Header
		f.ipv6 = true
		f.ds, flow.Protocol = ip[0]<<4|ip[1]>>4, ip[6]
		flow.From, flow.To = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return
	}
	f.ip, f.proto = true, flow.Protocol
	long := udpHeader
	if f.proto == protoTCP {
		long = tcpHeader
	}
	if (f.proto == protoTCP || f.proto == protoUDP) && !fragment && len(b) >= l4+long {
		f.l4 = l4
		flow.FromPort, flow.ToPort = binary.BigEndian.Uint16(b[l4:]), binary.BigEndian.Uint16(b[l4+2:])
	}
	f.flow = flow.Hash()
	f.from, f.to = flow.Hosts()
	if f.l4 > 0 && f.proto == protoTCP {
		f.parseACK(b)
	}
}

// parseACK finds out whether a segment is nothing but an acknowledgement.
func (f *frame) parseACK(b []byte) {
	tcp := b[f.l4:]
	header := int(tcp[12]>>4) * 4
	if header < tcpHeader || f.l4+header != len(b) || tcp[13] != flagACK || tcp[12]&1 != 0 {
		return
	}
	for o := tcp[tcpHeader:header]; len(o) > 0; {
		switch {
		case o[0] == 0:
			o = nil
		case o[0] == 1:
			o = o[1:]
		case o[0] == optionSACK || len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
			return
		default:
			o = o[o[1]:]
		}
	}
	f.pureACK, f.ack = true, binary.BigEndian.Uint32(tcp[8:])
}

// segments is how many packets the frame is on a wire.
func (f *frame) segments() int {
	if f.payload == 0 {
		return 1
	}
	size := int(f.v.segment)
	return (len(f.buf) - f.payload + size - 1) / size
}

// segment is one packet of a frame: the handle of a link.Packet.
type segment struct {
	frame *frame
	index int
}

// bounds returns the part of the payload that is the segment's, as offsets into the frame.
func (s *segment) bounds() (from, to int) {
	f := s.frame
	from = f.payload + s.index*int(f.v.segment)
	return from, min(from+int(f.v.segment), len(f.buf))
}

// packet describes the segment to a link.
func (s *segment) packet() link.Packet {
	f := s.frame
	p := link.Packet{Handle: s, Flow: f.flow, From: f.from, To: f.to, Size: len(f.buf) - etherHeader, DS: f.ds, PureACK: f.pureACK, ACK: f.ack}
	if f.payload > 0 {
		from, to := s.bounds()
		p.Size = f.payload - etherHeader + to - from
	}
	return p
}

// appendHeaders writes to dst the headers of a packet that holds the payload from and to (offsets into the frame) of a super-packet, or of
// the whole frame where it is none, and returns them with what stays to be sent behind them, and the vnet header.
func (f *frame) appendHeaders(dst []byte, index, from, to int, marked bool) (headers, rest []byte, v vnet) {
	if f.payload == 0 {
		if !marked || !f.ip {
			return dst, f.buf, f.v
		}
		end := etherHeader + ipv6Header
		if !f.ipv6 {
			end = etherHeader + int(f.buf[etherHeader]&15)*4
		}
		dst = append(dst, f.buf[:end]...)
		f.mark(dst)
		return dst, f.buf[end:], f.v
	}
	dst = append(dst, f.buf[:f.payload]...)
	length := f.payload - etherHeader + to - from // of the IP packet
	if marked {
		setCE(dst[etherHeader:], f.ipv6)
	}
	f.setLength(dst[etherHeader:f.l4], length, index)
	l4 := dst[f.l4:]
	l4length := length - (f.l4 - etherHeader)
	v = vnet{flags: vnetNeedsCsum, headers: uint16(f.payload), csumStart: uint16(f.l4), csumAddress: 16}
	if f.proto == protoUDP {
		v.csumAddress = 6
		binary.BigEndian.PutUint16(l4[4:], uint16(l4length))
	} else {
		binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(from-f.payload))
		if from > f.payload {
			l4[13] &^= flagCWR
		}
		if to < len(f.buf) {
			l4[13] &^= flagFIN | flagPSH
		}
	}
	// What the stack left to the device is the sum over the payload: the field holds that of the pseudo header.
	binary.BigEndian.PutUint16(l4[v.csumAddress:], f.pseudoSum(uint32(l4length)))
	if to-from > int(f.v.segment) {
		v.gso, v.segment = f.v.gso, f.v.segment
		if l4[13]&flagCWR == 0 {
			v.gso &^= gsoECN
		}
	}
	return dst, f.buf[from:to], v
}

// mark writes CE into a whole frame's own header.
func (f *frame) mark(headers []byte) {
	setCE(headers[etherHeader:], f.ipv6)
	if !f.ipv6 {
		setIPv4Sum(headers[etherHeader:])
	}
}

// setLength writes the length of the IP packet, and makes the header that of the segment with this index.
func (f *frame) setLength(ip []byte, length, index int) {
	if f.ipv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(length-ipv6Header))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(length))
	binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(index))
	setIPv4Sum(ip)
}

// setCE writes CE into the DS byte of an IP header (RFC 3168), and leaves the header's checksum alone.
func setCE(ip []byte, ipv6 bool) {
	if ipv6 {
		ip[1] |= 3 << 4
	} else {
		ip[1] |= 3
	}
}

func setIPv4Sum(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
}

// pseudoSum is the sum over the pseudo header (RFC 9293, 8200), not complemented.
func (f *frame) pseudoSum(length uint32) uint16 {
	ip := f.buf[etherHeader:]
	total := uint32(f.proto) + length>>16 + length&0xffff
	if f.ipv6 {
		return fold(sum(total, ip[8:40]))
	}
	return fold(sum(total, ip[12:20]))
}

// sum adds the 16-bit words of b, whose length is even.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	return s
}

func fold(s uint32) uint16 {
	s = s&0xffff + s>>16
	return uint16(s + s>>16)
}
