package netperf

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/load"
)

// FuzzServer has a server say any bytes on the control connection, whatever it is asked, to each kind of test. The property: no panic, an end
// within the bounds of the package's doc, no count without data, and no goroutine left.
func FuzzServer(f *testing.F) {
	for _, name := range []string{
		"omni-tcp-stream.s2c", "omni-tcp-maerts.s2c", "omni-tcp-rr.s2c", "omni-tcp-crr.s2c", "omni-tcp-stream-cpu.s2c", "unsupported-test.s2c",
		"v260-both-tcp-maerts.s2c", "v250-both-tcp-stream.s2c", "passphrase-bad.s2c",
	} {
		var all []byte
		for _, record := range capture(f, name) {
			all = append(all, record...)
		}
		for kind := range uint8(5) {
			f.Add(all, kind, kind%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, says []byte, kind uint8, hangUp bool) {
		if len(says) > 4<<10 {
			return
		}
		synctest.Test(t, func(t *testing.T) { oneServer(t, says, kind%5, hangUp) })
	})
}

func oneServer(t *testing.T, says []byte, kind uint8, hangUp bool) {
	h := fast()
	at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
		defer ctl.Close()
		if _, err := request(ctl); err != nil {
			return
		}
		_, _ = ctl.Write(says)
		if !hangUp {
			_, _ = io.Copy(io.Discard, ctl)
		}
	})
	c := &Client{Host: h, Addr: at}
	begin := time.Now()
	switch kind {
	case 0:
		_, _ = c.Check(t.Context())
	case 1, 2:
		r, err := c.NewFlow(FlowOptions{Direction: load.Direction(kind), Length: 2 * time.Second}).Run(t.Context())
		if err == nil || r.Bytes != 0 {
			t.Errorf("%d bytes, %v, though there was no data connection", r.Bytes, err)
		}
	default:
		r, err := c.NewTransactions(TransactionOptions{Kind: TransactionKind(kind - 2), Length: 2 * time.Second}).Run(t.Context())
		if err == nil || r.Transactions != 0 {
			t.Errorf("%d transactions, %v, though there was no data connection", r.Transactions, err)
		}
	}
	if d := time.Since(begin); d > 2*time.Minute {
		t.Errorf("it took %v", d)
	}
}
