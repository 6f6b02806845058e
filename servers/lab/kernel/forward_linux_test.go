package kernel

import (
	"testing"
	"time"

	"bufferbloat/servers/lab/link"
)

// newTestForwarder returns one between two ports that take nothing.
func newTestForwarder(t testing.TB) *forwarder {
	t.Helper()
	f := &forwarder{origin: time.Now()}
	drop := func(p link.Packet, _ link.Reason) { f.pool.release(p.Handle.(*segment)) }
	var err error
	if f.down, f.up, err = wire(drop); err != nil {
		t.Fatal(err)
	}
	f.client, f.server = newPort(-1, &f.pool, &f.lateness), newPort(-1, &f.pool, &f.lateness)
	f.toClient, f.toServer = f.sender(f.client), f.sender(f.server)
	f.entering, f.leaving = f.up, f.toServer
	f.look()
	return f
}

// pass sends a copy of a frame through the forwarder.
func pass(f *forwarder, like *frame, size int) {
	f.look()
	b := f.pool.buffer(size)
	f.take(f.pool.frame(b, copy(b, like.buf), like.v), 0)
	for at, ok := f.up.NextDelivery(); ok; at, ok = f.up.NextDelivery() {
		f.up.Advance(at, f.toServer)
	}
	f.server.flush()
}

func TestForwardingAllocatesNothing(t *testing.T) {
	f := newTestForwarder(t)
	super := superPacket{proto: protoTCP, options: timestamps, flags: flagACK, payload: 40 * 1448, segment: 1448}.build()
	small := superPacket{proto: protoUDP, payload: 100}.build()
	for range 100 {
		pass(f, super, bigBuffer)
		pass(f, small, tinyBuffer)
	}
	if n := testing.AllocsPerRun(200, func() { pass(f, super, bigBuffer); pass(f, small, tinyBuffer) }); n != 0 {
		t.Errorf("%v allocations for a super-packet and a datagram", n)
	}
	if s := f.up.Stats(); s.In != s.Out || s.In.Packets != 301*41 {
		t.Errorf("%+v in, %+v out, want %d packets", s.In, s.Out, 301*41)
	}
	if len(f.pool.frames) > 4 || len(f.pool.segments) > 64 {
		t.Errorf("the pool holds %d frames and %d segments: not all came back before they were taken again", len(f.pool.frames), len(f.pool.segments))
	}
}

func TestPacketsEnterTheLinkWhenTheKernelTookThem(t *testing.T) {
	f := newTestForwarder(t)
	arrives := func(ago time.Duration) time.Duration {
		f.look()
		before := f.up.Stats()
		b := f.pool.buffer(smallBuffer)
		like := superPacket{proto: protoUDP, payload: 1000}.build()
		f.take(f.pool.frame(b, copy(b, like.buf), like.v), time.Now().Add(-ago).UnixNano())
		if after := f.up.Stats(); after.In.Packets != before.In.Packets+1 {
			t.Fatalf("%d packets in, want one more than %d", after.In.Packets, before.In.Packets)
		}
		at, _ := f.up.NextDelivery()
		f.up.Advance(at, func(p link.Packet, _ time.Duration) { f.pool.release(p.Handle.(*segment)) })
		return time.Since(f.origin) - (at - wireDelay)
	}
	time.Sleep(5 * time.Millisecond) // so that the link has a past
	if got := arrives(3 * time.Millisecond); got < 3*time.Millisecond || got > 4*time.Millisecond {
		t.Errorf("a packet that waited for 3 ms entered %v ago", got)
	}
	f = newTestForwarder(t)
	if got := arrives(-time.Hour); got < 0 || got > 100*time.Millisecond {
		t.Errorf("a packet with a stamp in the future entered %v ago", got)
	}
	f = newTestForwarder(t)
	f.look()
	f.skew += int64(time.Hour) // the clock was set
	if got := arrives(-time.Hour); got < 0 || got > 100*time.Millisecond {
		t.Errorf("after the clock was set, a packet entered %v ago", got)
	}
}

func BenchmarkForwardSuperPacket(b *testing.B) {
	f := newTestForwarder(b)
	super := superPacket{proto: protoTCP, options: timestamps, flags: flagACK, payload: 44 * 1448, segment: 1448}.build()
	b.SetBytes(44 * 1448)
	b.ReportAllocs()
	for b.Loop() {
		pass(f, super, bigBuffer)
	}
}
