package netperf

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// FuzzSession sends any bytes to a server, as the whole of a control connection. The property: no panic, whole records as answers,
// no more than two of them for each request and a fixed number beyond, and nothing left a second after the connection's end.
func FuzzSession(f *testing.F) {
	for _, name := range []string{
		"omni-tcp-stream.c2s", "omni-tcp-maerts.c2s", "omni-tcp-rr-sizes-burst.c2s", "omni-tcp-stream-3-iterations.c2s",
		"omni-tcp-stream-options.c2s", "omni-udp-rr-ipv6-explicit-host.c2s", "cpu-calibrate.c2s", "v260-both-tcp-maerts.c2s",
		"passphrase-bad.c2s", "omni-tcp-crr.c2s", "omni-udp-stream.c2s", "legacy-tcp-stream.c2s", "legacy-tcp-maerts.c2s",
		"legacy-tcp-rr.c2s", "legacy-udp-rr.c2s", "legacy-udp-stream.c2s", "legacy-tcp-crr.c2s", "v245-both-tcp-stream.c2s",
		"v250-both-tcp-stream.c2s",
	} {
		f.Add(capture(f, name), false)
		f.Add(capture(f, name), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, locked bool) {
		if len(b) > 8*wire.Size {
			return
		}
		synctest.Test(t, func(t *testing.T) { oneSession(t, b, locked) })
	})
}

func oneSession(t *testing.T, b []byte, locked bool) {
	h := memory()
	h.BytesPerS = 10 << 20
	o := Options{MaxLength: time.Minute, Log: func(string) {}}
	if locked {
		o.Passphrase = "opensesame"
	}
	v, err := newService(o, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l, err := h.ListenTCP(ctx, netip.MustParseAddrPort("127.0.0.1:12865"), host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { _ = v.accept(ctx, l) })
	conn, err := h.DialTCP(ctx, netip.MustParseAddrPort("127.0.0.1:12865"), host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(b) // the server may have refused the first record already
	time.Sleep(200 * time.Second)
	closeWrite(conn)
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	answers, _ := io.ReadAll(conn)
	_ = conn.Close()
	time.Sleep(time.Second)
	if requests := len(b) / wire.Size; len(answers)%wire.Size != 0 || len(answers)/wire.Size > 2*requests+8 {
		t.Errorf("%d bytes of answers to %d requests", len(answers), requests)
	}
	v.mu.Lock()
	// Wrong passphrases are remembered for a while.
	if all, accounts := v.clients.InUse(); all.Connections+all.Tests+accounts != 0 || len(v.idle.list) != 0 {
		t.Errorf("in use after the end: %+v, %d accounts, %d idle", all, accounts, len(v.idle.list))
	}
	v.mu.Unlock()
	cancel()
	accepting.Wait()
	v.sessions.Wait()
}
