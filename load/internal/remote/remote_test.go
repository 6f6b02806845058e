package remote

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAServerIsNamedAsTheUserNamedIt(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:12865")
	for name, want := range map[string]string{
		"":            "netperf server 192.0.2.1 port 12865",
		"192.0.2.1":   "netperf server 192.0.2.1 port 12865",
		"example.org": "netperf server example.org (192.0.2.1 port 12865)",
	} {
		if got := (Server{Protocol: "netperf", Name: name, Addr: at}).String(); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestAnErrorIsTheServersUnlessTheContextIsDone(t *testing.T) {
	interrupted, broken := errors.New("interrupted"), errors.New("broken")
	s := Server{Protocol: "netperf", Addr: netip.MustParseAddrPort("192.0.2.1:1")}
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := s.Explain(ctx, broken); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), s.String()+": ") {
		t.Errorf("got %v", err)
	}
	cancel(interrupted)
	if err := s.Explain(ctx, broken); err != interrupted {
		t.Errorf("got %v, want the cause of the context", err)
	}
}

func TestWhatCannotBeReachedSaysWhatToDo(t *testing.T) {
	sentinel := errors.New("cannot be reached")
	for _, tt := range []struct {
		cause error
		want  string
	}{
		{syscall.ECONNREFUSED, "is netserver running there"},
		{context.DeadlineExceeded, "within 7s; the host is down"},
		{syscall.EHOSTUNREACH, syscall.EHOSTUNREACH.Error()},
	} {
		err := Server{Program: "netserver"}.Unreachable(sentinel, tt.cause, 7*time.Second)
		if !errors.Is(err, sentinel) || !errors.Is(err, tt.cause) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}
