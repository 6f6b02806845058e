package iperf3

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
)

// streams are the data connections of a test that waits for them. service.mu guards them.
type streams struct {
	want int
	got  []*arrival
	full chan struct{} // closed when there are as many as wanted
}

// answer is what becomes of a connection with a cookie.
type answer uint8

const (
	unknown answer = iota // no test waits for it
	taken                 // it belongs to the test now
	refused               // its test has all that it wants
)

// offer gives a connection to the test that waits for its cookie.
func (v *service) offer(cookie wire.Cookie, a *arrival) answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.waiting[cookie.Key()]
	switch {
	case w == nil:
		return unknown
	case len(w.got) == w.want:
		return refused
	}
	if w.got = append(w.got, a); len(w.got) == w.want {
		close(w.full)
	}
	return taken
}

// openTCP waits for the client's connections. Which is which follows from the order in which they were accepted.
func (t *test) openTCP(ctx context.Context) error {
	client, server := t.p.Sends()
	w := &streams{want: client + server, full: make(chan struct{})}
	key := t.cookie.Key()
	t.mu.Lock()
	twice := t.waiting[key] != nil
	if !twice {
		t.waiting[key] = w
	}
	t.mu.Unlock()
	if twice {
		return errors.New("another test with the same cookie waits for its streams")
	}
	err := t.await(ctx, w.full)
	t.mu.Lock()
	delete(t.waiting, key)
	got := w.got
	t.mu.Unlock()
	slices.SortFunc(got, func(a, b *arrival) int { return cmp.Compare(a.number, b.number) })
	for _, a := range got {
		t.streams = append(t.streams, &stream{conn: a})
	}
	if err != nil {
		return err
	}
	for _, a := range got {
		t.tune(a)
	}
	t.claim = t.claims()
	return nil
}

// await tells the client to open its streams and waits until they are there, for a while.
func (t *test) await(ctx context.Context, full <-chan struct{}) error {
	if !t.send(wire.CreateStreams.Byte()) {
		return errClientGone
	}
	ctx, cancel := host.WithTimeout(ctx, t.host, t.patience())
	defer cancel()
	select {
	case <-full:
		return nil
	case <-t.ended:
		return errors.New("the client ends the test before it has begun")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// patience is how long a client may take to open its streams: as long as it said, within the longest test, and not less than any may.
func (s *session) patience() time.Duration { return max(streamsTimeout, min(s.p.Wait, s.o.MaxLength)) }

// tune sets on a connection what the client asked for. What cannot be had is noted, and the test goes on without it, as with stock servers: the
// results say what congestion control was used.
func (t *test) tune(a *arrival) {
	want := host.Tuning{DSCP: dscp.FromByte(uint8(t.p.TOS)), CongestionControl: t.p.Congestion, SendBuffer: t.p.Window, ReceiveBuffer: t.p.Window,
		PacingRate: t.p.KernelRate}
	if want == (host.Tuning{}) {
		return
	}
	tuner, ok := t.host.(host.Tuner)
	if !ok {
		t.log.Printf("iperf3: %v asks for marks or other settings, which this stack does not have", t.peer)
		return
	}
	// One by one, so that one that cannot be had does not cost the others.
	for _, one := range []host.Tuning{{DSCP: want.DSCP}, {CongestionControl: want.CongestionControl},
		{SendBuffer: want.SendBuffer, ReceiveBuffer: want.ReceiveBuffer}, {PacingRate: want.PacingRate}} {
		if one == (host.Tuning{}) {
			continue
		}
		if err := tuner.Tune(a.Conn, one); err != nil && !errors.Is(err, net.ErrClosed) {
			t.log.Printf("iperf3: %v: %v; the test goes on without it", t.peer, err)
		}
	}
}

// claims returns the leave that the senders of a test have to ask for before each block, nil where there is no limit.
func (t *test) claims() func() bool {
	blocks := t.p.Blocks
	if t.p.Bytes > 0 {
		blocks = (t.p.Bytes + uint64(t.p.Size) - 1) / uint64(t.p.Size)
	}
	if blocks == 0 {
		return nil
	}
	t.left.Store(int64(min(blocks, 1<<62)))
	return func() bool { return t.left.Add(-1) >= 0 }
}
