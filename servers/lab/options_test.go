package lab

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"bufferbloat/internal/host"
)

func TestECNAndTTLOfDatagrams(t *testing.T) {
	for _, server := range []netip.Addr{serverIPv4, serverIPv6} {
		within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
			at := netip.AddrPortFrom(server, 2112)
			in, err := l.Server().ListenUDP(ctx, at, host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			out, err := l.Client().DialUDP(ctx, at, host.Options{DSCP: 46, ECN: host.ECT1, TTL: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			if _, err := out.Send([]byte("x"), anyPort); err != nil {
				t.Fatal(err)
			}
			if d, err := in.Receive(make([]byte, 10)); err != nil || d.DS != 46<<2|1 {
				t.Errorf("%v: DS %#x, %v; want EF with ECT(1), over no router", server, d.DS, err)
			}
			if _, err := l.Client().DialTCP(ctx, at, host.Options{ECN: host.ECT0}); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("ECT(0) on TCP: %v", err)
			}
			if _, err := l.Client().DialEcho(ctx, server, host.Options{ICMPTimestamp: true}); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("ICMP timestamps: %v", err)
			}
		})
	}
}
