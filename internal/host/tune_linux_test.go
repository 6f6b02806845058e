package host

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
)

func TestAnAcceptedConnectionCanBeTuned(t *testing.T) {
	k := NewKernel()
	l, err := k.ListenTCP(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := k.DialTCP(t.Context(), l.Addr().(*net.TCPAddr).AddrPort(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := k.Tune(theirs, Tuning{DSCP: dscp.EF, CongestionControl: "reno", PacingRate: 8 * bitrate.Mbit}); err != nil {
		t.Fatal(err)
	}
	info, err := k.TCPInfo(theirs)
	if err != nil || info.DS&0xfc != dscp.EF.Byte() || info.CongestionControl != "reno" {
		t.Errorf("got DS byte %#x and %q, %v; want EF and reno", info.DS, info.CongestionControl, err)
	}
	raw, err := theirs.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if rate, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); err != nil || rate != 1_000_000 {
			t.Errorf("paced at %d bytes per second, %v; want 1000000", rate, err)
		}
	})
	if err := k.Tune(theirs, Tuning{CongestionControl: "nosuch"}); err == nil {
		t.Error("an algorithm that nobody has is no error")
	}
	if err := k.Tune(ours, Tuning{}); err != nil {
		t.Errorf("nothing to change is an error: %v", err)
	}
	_ = ours.SetDeadline(time.Now().Add(time.Second))
	if _, err := ours.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}
