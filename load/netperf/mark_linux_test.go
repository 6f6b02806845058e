package netperf_test

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/facility"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	server "bufferbloat/servers/netperf"
)

// marks are the DS bytes seen on the loopback device, with how many packets had them.
type marks struct{ toServer, toClient map[byte]int }

// watch counts the DS bytes of IPv4 TCP packets from and to a port until stop is closed.
func watch(t *testing.T, port uint16, stop <-chan struct{}) func() marks {
	t.Helper()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		facility.Missing(t, "packet", err.Error())
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		facility.Missing(t, "packet", err.Error())
	}
	ip := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: lo.Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}); err != nil {
		t.Fatal(err)
	}
	seen := marks{toServer: map[byte]int{}, toClient: map[byte]int{}}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer unix.Close(fd)
		b := make([]byte, 128)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil || n < 40 || b[0] != 0x45 || b[9] != 6 {
				continue
			}
			if binary.BigEndian.Uint16(b[22:]) == port {
				seen.toServer[b[1]]++
			} else if binary.BigEndian.Uint16(b[20:]) == port {
				seen.toClient[b[1]]++
			}
		}
	})
	return func() marks { reader.Wait(); return seen }
}

func TestBothEndsMarkTheirPacketsOfTheDataConnection(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	_ = l.Close()
	client, _ := serve(t, "127.0.0.1:0", server.Options{})
	stop := make(chan struct{})
	seen := watch(t, port, stop)
	got := run(t.Context(), t, client, 1, netperf.FlowOptions{
		Direction: load.Upload, Length: 200 * time.Millisecond, DSCP: 8, ServerDSCP: 46, DataPort: port,
	})[0]
	close(stop)
	m := seen()
	if got.err != nil || !got.result.HasRemoteDS || got.result.RemoteDS != 0xb8 {
		t.Errorf("got %+v, %v", got.result, got.err)
	}
	const ecn = 3
	for name, c := range map[string]struct {
		seen map[byte]int
		want byte
	}{"client": {m.toServer, 8 << 2}, "server": {m.toClient, 46 << 2}} {
		for ds, n := range c.seen {
			if ds&^ecn != c.want {
				t.Errorf("%d packets of the %s carry %#x, want %#x", n, name, ds, c.want)
			}
		}
		if len(c.seen) == 0 {
			t.Errorf("no packet of the %s was seen on port %d", name, port)
		}
	}
}
