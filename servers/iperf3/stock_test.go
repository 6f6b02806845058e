package iperf3

import (
	"context"
	"encoding/json"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
)

// serve runs a server until the test ends and returns its address and the lines that it has logged.
func serve(t testing.TB, h host.Host, o Options) (netip.AddrPort, func() []string) {
	t.Helper()
	ready := make(chan []netip.AddrPort, 1)
	var mu sync.Mutex
	var lines []string
	o.Ready = func(at []netip.AddrPort) { ready <- at }
	o.Log = func(line string) { mu.Lock(); lines = append(lines, line); mu.Unlock() }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Options: o}).Serve(ctx, h, netip.MustParseAddrPort("127.0.0.1:0")) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	select {
	case at := <-ready:
		return at[0], func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(lines) }
	case err := <-done:
		t.Fatalf("Serve returned %v", err)
		panic("not reached")
	}
}

// stock runs Debian's iperf3 as a client and returns what it printed as JSON.
func stock(t *testing.T, at netip.AddrPort, args ...string) report {
	t.Helper()
	path, err := exec.LookPath("iperf3")
	if err != nil {
		facility.Missing(t, "iperf3", err.Error())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	args = append([]string{"-c", at.Addr().String(), "-p", strconv.Itoa(int(at.Port())), "-J"}, args...)
	out, err := exec.CommandContext(ctx, path, args...).Output()
	var r report
	if jerr := json.Unmarshal(out, &r); jerr != nil {
		t.Fatalf("iperf3 %v: %v, %v: %s", args, err, jerr, out)
	}
	r.text = string(out)
	return r
}

// report is a part of what iperf3 -J prints.
type report struct {
	text  string
	Error string
	End   struct {
		Streams []struct {
			Sender, Receiver struct {
				Bytes       uint64
				Seconds     float64
				Retransmits int
				Sender      bool
			}
			UDP struct {
				Bytes   uint64
				Packets int
				Lost    int     `json:"lost_packets"`
				Jitter  float64 `json:"jitter_ms"`
				Sender  bool
			}
		}
		SumSent          struct{ Bytes uint64 } `json:"sum_sent"`
		SumReceived      struct{ Bytes uint64 } `json:"sum_received"`
		Congestion       string                 `json:"receiver_tcp_congestion"`
		SenderCongestion string                 `json:"sender_tcp_congestion"`
	}
	ServerText string          `json:"server_output_text"`
	ServerJSON json.RawMessage `json:"server_output_json"`
}

func TestStockClients(t *testing.T) {
	at, lines := serve(t, host.NewKernel(), Options{})
	for _, args := range [][]string{
		{"-t", "1", "-b", "40M"},
		{"-t", "1", "-b", "40M", "-R"},
		{"-t", "1", "-b", "40M", "--bidir"},
		{"-t", "1", "-P", "4", "-b", "10M"},
		{"-t", "1", "-P", "3", "-R", "-b", "10M"},
		{"-t", "1", "-P", "2", "--bidir", "-b", "10M"},
		{"-t", "1", "-O", "1", "-b", "10M"},
		{"-t", "1", "-O", "1", "-b", "10M", "-R"},
		{"-n", "10M"}, {"-n", "10M", "-R"}, {"-k", "50"}, {"-k", "50", "-R"}, {"-n", "2M", "-R", "-P", "2"}, {"-n", "2M", "-R", "-b", "100M"},
		{"-u", "-t", "1", "-b", "10M"}, {"-u", "-t", "1", "-b", "10M", "-R"}, {"-u", "-t", "1", "-b", "10M", "--bidir"}, {"-u", "-t", "1", "-b", "10M", "-P", "3", "--udp-counters-64bit"},
		{"-u", "-n", "1M", "-b", "10M", "-R"},
		{"-t", "1", "--get-server-output", "-b", "10M"},
		{"-u", "-t", "1", "--get-server-output", "-b", "10M"},
		{"-t", "1", "-S", "0xb8", "-C", "reno", "-R", "-b", "10M", "-N", "-w", "100K"},
		{"-t", "1", "--fq-rate", "10M", "-R"},
		{"-t", "1"}, {"-t", "1", "-R"},
	} {
		r := stock(t, at, args...)
		t.Logf("%v: error %q sent %d received %d cong %s %s %.200s %.200s", args, r.Error, r.End.SumSent.Bytes, r.End.SumReceived.Bytes, r.End.Congestion, r.End.SenderCongestion, r.ServerText, r.ServerJSON)
		for _, s := range r.End.Streams {
			t.Logf("   %+v", s)
		}
	}
	for _, l := range lines() {
		t.Log(l)
	}
}
