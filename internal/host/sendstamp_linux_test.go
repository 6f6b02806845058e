package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"bufferbloat/internal/testnet"
)

// stampedConns opens each kind of socket that has its sends stamped, in the client's namespace.
func stampedConns(t *testing.T, n *testnet.Net, to netip.Addr) map[string]PacketConn {
	t.Helper()
	kernels := echoKernels(t, n.Client)
	o := Options{StampSends: true}
	conns := map[string]PacketConn{"ping": dialEchoIn(t, n.Client, kernels["unprivileged"], to, o), "raw": dialEchoIn(t, n.Client, kernels["raw"], to, o)}
	n.Client.Inside(t, func() {
		c, err := NewKernel().DialUDP(t.Context(), netip.AddrPortFrom(to, 2112), o)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { c.Close() })
		conns["UDP"] = c
	})
	return conns
}

func TestTheKernelStampsWhatIsSent(t *testing.T) {
	n := testnet.New(t)
	for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6, loopback4, loopback6} {
		for name, c := range stampedConns(t, n, to) {
			t.Run(to.String()+" "+name, func(t *testing.T) {
				packet := echoRequest(FamilyOf(to), 1, 1, "")
				last := time.Now()
				for range 20 { // the first ones wait for a neighbour
					before := time.Now()
					at, err := c.Send(packet, netip.AddrPort{})
					after := time.Now()
					if err != nil {
						t.Fatal(err)
					}
					if at.Before(before) || at.After(after) || at.Before(last) {
						t.Errorf("stamped %v after the call began, which took %v", at.Sub(before), after.Sub(before))
					}
					last = at
					_ = c.SetReadDeadline(before.Add(5 * time.Millisecond))
					_, _ = c.Receive(make([]byte, 100)) // of a closed port, a rejection
				}
				if stack, all := c.(SendStamper).SendStamps(); all != 20 || stack < 10 {
					t.Errorf("the kernel stamped %d of %d, want most of 20", stack, all)
				}
			})
		}
	}
}

// The local queue holds a packet for 100 ms, and that is part of its round trip: a stamp behind the queue would hide it.
func TestSendStampsAreFromBeforeTheLocalQueue(t *testing.T) {
	n := testnet.New(t)
	awaitPath(t, n, echoKernels(t, n.Client)["raw"])
	n.ClientDevice.Shape(t, testnet.Queue{Rate: 400_000, Limit: 50_000, Burst: 1600})
	for name, c := range stampedConns(t, n, n.Server.IP) {
		t.Run(name, func(t *testing.T) {
			packet := echoRequest(IPv4, 1, 1, string(make([]byte, 1000)))
			first := time.Now()
			var last time.Time
			for range 8 { // 20 ms each in the queue
				var err error
				if last, err = c.Send(packet, netip.AddrPort{}); err != nil {
					t.Fatal(err)
				}
			}
			if took := last.Sub(first); took > 60*time.Millisecond {
				t.Errorf("the last of eight packets is stamped %v after the first: behind the queue", took)
			}
			if stack, all := c.(SendStamper).SendStamps(); stack != all {
				t.Errorf("the kernel stamped %d of %d", stack, all)
			}
			for end := soon(); ; { // the queue drains
				_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if _, err := c.Receive(make([]byte, 100)); errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
					return
				}
			}
		})
	}
}

// Sends that fail may be numbered by the kernel or not. The stamps after them are still those of the packets that they are taken for.
func TestStampsBelongToTheirPacketsAfterSendsThatFailed(t *testing.T) {
	n := testnet.New(t)
	awaitPath(t, n, echoKernels(t, n.Client)["raw"])
	for name, c := range stampedConns(t, n, n.Server.IP) {
		t.Run(name, func(t *testing.T) {
			n.ClientDevice.Shape(t, testnet.Queue{Rate: 400_000, Limit: 6000, Burst: 1600})
			packet := echoRequest(IPv4, 1, 1, string(make([]byte, 1000)))
			failed := 0
			for i := range 60 {
				before := time.Now()
				size := len(packet)
				if i%7 == 3 {
					size = 70_000 // the kernel refuses it before it is numbered
					packet = append(packet, make([]byte, size)...)
				}
				at, err := c.Send(packet[:size], netip.AddrPort{})
				packet = packet[:1008]
				if err != nil {
					failed++
					_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
					_, _ = c.Receive(make([]byte, 100))
					continue
				}
				if at.Before(before) || at.After(time.Now()) {
					t.Errorf("packet %d is stamped %v after its sending began", i, at.Sub(before))
				}
			}
			if failed < 10 {
				t.Errorf("only %d sends failed: nothing was tested", failed)
			}
			if stack, all := c.(SendStamper).SendStamps(); stack < all*9/10 {
				t.Errorf("the kernel stamped %d of %d", stack, all)
			}
		})
	}
}

// A rejection that the sender takes off the error queue while it looks for its stamp reaches a Receive that waits, within its deadline and without
// changing it.
func TestARejectionThatTheSenderMeetsIsReceived(t *testing.T) {
	k := NewKernel()
	listener := listenUDP(t, k, loopback4, Options{})
	at := listener.LocalAddr()
	listener.Close()
	c := dialUDP(t, k, at, Options{StampSends: true})
	if err := c.SetReadDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	const n = 200
	got := make(chan error, 1)
	go func() {
		b := make([]byte, 100)
		for i := range n {
			if d, err := c.Receive(b); err != nil || d.Rejected == nil || string(b[:d.N]) != fmt.Sprint("probe ", i) {
				got <- fmt.Errorf("rejection %d: %+v, %q, %v", i, d, b[:d.N], err)
				return
			}
			got <- nil
		}
	}()
	for i := range n {
		// A port of this host is refused before the call returns, so the rejection is in the queue together with the stamp.
		if _, err := c.Send([]byte(fmt.Sprint("probe ", i)), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if d, err := c.Receive(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %+v, %v; want the deadline", d, err)
	}
}
