package iperf3

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
	"bufferbloat/servers/iperf3"
	"bufferbloat/watch"
)

// own runs our server on the kernel's loopback until the test ends, and returns a client of it.
func own(t *testing.T, o iperf3.Options) *Client {
	t.Helper()
	h := host.NewKernel()
	ready, done := make(chan []netip.AddrPort, 1), make(chan error, 1)
	o.Ready = func(at []netip.AddrPort) { ready <- at }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- (&iperf3.Server{Options: o}).Serve(ctx, h, netip.MustParseAddrPort("127.0.0.1:0")) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	select {
	case at := <-ready:
		return &Client{Host: h, Addr: at[0]}
	case err := <-done:
		done <- nil
		t.Fatal(err)
		return nil
	}
}

func TestOurClientAndOurServerOverTheKernel(t *testing.T) {
	c := own(t, iperf3.Options{CPU: watch.Own})
	c.CPU = watch.Own
	for _, o := range []TestOptions{
		{Downloads: 2, Uploads: 2, Length: 300 * time.Millisecond}, {Uploads: 2, Bytes: 3_000_001}, {Downloads: 1, Bytes: 1 << 20},
		{UDP: true, Downloads: 2, Uploads: 2, Length: 300 * time.Millisecond, Rate: 4 * bitrate.Mbit},
	} {
		test := c.NewTest(o)
		for i, r := range runAll(t, t.Context(), test) {
			if r.Bytes == 0 || !r.HasServerBytes || r.Last.Before(r.First) || r.Connected.IsZero() {
				t.Errorf("%+v: flow %d: %+v", o, i, r)
			}
			if o.Bytes == 3_000_001 && r.Bytes != 1_500_001 {
				t.Errorf("%+v: flow %d: %d bytes, want half of them", o, i, r.Bytes)
			}
			if d := r.Datagrams; o.UDP && (d == nil || d.Received == 0 || d.Received+d.Lost+d.AfterEnd != d.Sent || !d.HasOrder || !d.HasDelay || len(d.Intervals) == 0) {
				t.Errorf("%+v: flow %d: %+v", o, i, d)
			}
		}
	}
}

func TestWeLogInToOurServer(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []wire.Padding{wire.OAEP, wire.PKCS1} {
		c := own(t, iperf3.Options{Login: &iperf3.Login{Key: key, Users: wire.Users{"mario": wire.PasswordHash("mario", "rossi")}, Padding: p, Now: time.Now}})
		for _, tt := range []struct {
			login *Login
			says  string // "" is none
		}{
			{&Login{User: "mario", Password: "rossi", Key: &key.PublicKey, Padding: p, Now: time.Now}, ""},
			{&Login{User: "mario", Password: "rossi", Key: &key.PublicKey, Padding: 1 - p, Now: time.Now}, "try the other padding, " + p.String()},
			{&Login{User: "mario", Password: "rosso", Key: &key.PublicKey, Padding: p, Now: time.Now}, "check user name"},
			{&Login{User: "luigi", Password: "rossi", Key: &key.PublicKey, Padding: p, Now: time.Now}, "check user name"},
			{&Login{User: "mario", Password: "rossi", Key: &key.PublicKey, Padding: p, Now: func() time.Time { return time.Now().Add(time.Minute) }}, "this host's clock"},
			{nil, "it wants a user name"},
		} {
			c.Login = tt.login
			_, err := c.NewTest(TestOptions{Downloads: 1, Bytes: 64 << 10}).Flows(load.Download)[0].Run(t.Context())
			if tt.says == "" && err != nil || tt.says != "" && (!errors.Is(err, wire.NotAuthorised) || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v, %+v: %v, want %q", p, tt.login, err, tt.says)
			}
		}
	}
}
