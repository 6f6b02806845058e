package host

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/bitrate"
)

// tcpInfo reads the state of the TCP socket fd. Its buffers are as the kernel counts them: twice what was asked for,
// because its own bookkeeping is part of them. dialed tells that this end opened the connection.
func tcpInfo(fd uintptr, dialed bool) (TCPInfo, error) {
	raw := new(unix.TCPInfo)
	size := new(uint32)
	*size = uint32(unsafe.Sizeof(*raw))
	if errno := getsockopt(fd, unix.IPPROTO_TCP, unix.TCP_INFO, unsafe.Pointer(raw), size); errno != 0 {
		return TCPInfo{}, errno
	}
	info := fromKernel(raw, uintptr(*size), dialed)
	s := int(fd)
	if name, err := unix.GetsockoptString(s, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
		info.CongestionControl = name
	}
	info.SendBuffer, _ = unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF) // 0 is "unknown"
	info.ReceiveBuffer, _ = unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF)
	info.DS, info.HasDS = dsByte(s)
	return info, nil
}

// fromKernel converts the first size bytes of raw; older kernels know fewer fields, and what they did not write is not known.
func fromKernel(raw *unix.TCPInfo, size uintptr, dialed bool) TCPInfo {
	known := func(offset, width uintptr) bool { return offset+width <= size }
	info := TCPInfo{
		RTT:              time.Duration(raw.Rtt) * time.Microsecond,
		SendMSS:          int(raw.Snd_mss),
		CongestionWindow: int(raw.Snd_cwnd),
	}
	const optionECN = 8 // TCPI_OPT_ECN, linux/tcp.h
	info.ECN = raw.Options&optionECN != 0
	if raw.Backoff > 0 {
		info.Backoff, info.NextRetry = int(raw.Backoff), time.Duration(raw.Rto)*time.Microsecond
	}
	info.RTTVariance, info.ReceiveRTT = time.Duration(raw.Rttvar)*time.Microsecond, time.Duration(raw.Rcv_rtt)*time.Microsecond
	if known(unsafe.Offsetof(raw.Pacing_rate), 8) {
		info.PacingRate = bitsPerSecond(raw.Pacing_rate)
	}
	if known(unsafe.Offsetof(raw.Delivery_rate), 8) {
		info.DeliveryRate = bitsPerSecond(raw.Delivery_rate)
	}
	if known(unsafe.Offsetof(raw.Sndbuf_limited), 8) {
		micros := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
		info.Busy, info.HasBusy = micros(raw.Busy_time), true
		info.ReceiveWindowLimited, info.SendBufferLimited = micros(raw.Rwnd_limited), micros(raw.Sndbuf_limited)
	}
	if known(unsafe.Offsetof(raw.Delivered_ce), 4) {
		info.DeliveredCE, info.HasDeliveredCE = uint64(raw.Delivered_ce), true
	}
	if known(unsafe.Offsetof(raw.Total_retrans), 4) {
		info.Retransmits, info.HasRetransmits = uint64(raw.Total_retrans), true
	}
	if known(unsafe.Offsetof(raw.Bytes_acked), 8) {
		info.BytesAcked, info.HasBytesAcked = payloadAcked(raw, dialed), true
	}
	if known(unsafe.Offsetof(raw.Notsent_bytes), 4) {
		info.Unsent, info.HasUnsent = int(raw.Notsent_bytes), true
	}
	if known(unsafe.Offsetof(raw.Min_rtt), 4) && raw.Min_rtt != math.MaxUint32 { // all ones: no sample yet
		info.MinRTT = time.Duration(raw.Min_rtt) * time.Microsecond
	}
	return info
}

// bitsPerSecond converts bytes per second; all ones mean that there is no limit.
func bitsPerSecond(bytes uint64) bitrate.Bitrate {
	if bytes > math.MaxInt64/8 {
		return 0
	}
	return bitrate.Bitrate(8 * bytes)
}

// payloadAcked takes out of the kernel's count of acknowledged sequence numbers those that are no payload: the SYN of the end
// that opened the connection (that of the other end is not counted), and a FIN. A closed connection does not tell whether its
// FIN was acknowledged or a reset ended it; there the count of what was sent decides, where the kernel has it.
func payloadAcked(raw *unix.TCPInfo, dialed bool) uint64 {
	n := raw.Bytes_acked
	if dialed && n > 0 {
		n--
	}
	finAcked := raw.State == unix.BPF_TCP_FIN_WAIT2 ||
		raw.State == unix.BPF_TCP_CLOSE && raw.Bytes_sent > 0 && n > raw.Bytes_sent-raw.Bytes_retrans
	if finAcked && n > 0 {
		n--
	}
	return n
}

func dsByte(s int) (uint8, bool) {
	domain, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return 0, false
	}
	level, option := unix.IPPROTO_IP, unix.IP_TOS
	if domain == unix.AF_INET6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	ds, err := unix.GetsockoptInt(s, level, option)
	return uint8(ds), err == nil
}
