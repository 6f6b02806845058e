package netperf_test

import (
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	server "bufferbloat/servers/netperf"
)

func TestOurServerIsKnownByItsAnswerOnTheConnectionOfTheTest(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, "127.0.0.1:0", server.Options{Version: "test"})
	client.Ask = true
	f := client.NewFlow(netperf.FlowOptions{Direction: load.Download, Length: 500 * time.Millisecond, ServerDSCP: dscp.FromByte(0x20)})
	got, err := f.Run(t.Context())
	results, ok := f.Results()
	if err != nil || !ok || f.Server().Name != "bufferbloat test" || got.CongestionControl == "" || !got.HasRetransmits || !got.HasRemoteDS ||
		results.TxBytes < got.Bytes || f.Response().DataPort == 0 {
		t.Errorf("%+v of %+v, %+v, %v", got, f.Server(), results, err)
	}
}

func TestEachKindOfTransactionWithOurServer(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, "127.0.0.1:0", server.Options{Version: "test"})
	for _, kind := range []netperf.TransactionKind{netperf.TCPRR, netperf.TCPCRR, netperf.UDPRR} {
		transact(t, client, kind)
	}
	sent, err := client.SendDatagrams(t.Context(), netperf.DatagramOptions{Length: 400 * time.Millisecond, Rate: 8_000_000, Size: 1000})
	if err != nil || sent.Sent == 0 || sent.Sent+sent.Skipped+sent.Unsent < 399 || sent.Sent+sent.Skipped+sent.Unsent > 401 || sent.Received == 0 || sent.Received > sent.Sent || sent.Bytes != 1000*sent.Received {
		t.Errorf("datagrams: %+v, %v", sent, err)
	}
	_, err = client.NewTransactions(netperf.TransactionOptions{Kind: netperf.UDPRR, Length: time.Second, ResponseSize: 65507}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "at most the same or 1472") {
		t.Errorf("an amplifier: %v", err)
	}
}

func TestEachKindOfTransactionOverIPv6(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, "[::1]:0", server.Options{Version: "test"})
	for _, kind := range []netperf.TransactionKind{netperf.TCPRR, netperf.TCPCRR, netperf.UDPRR} {
		transact(t, client, kind)
		there := *client
		there.DataAddr = client.Addr.Addr() // which netperf asks for with a host of the test's own
		transact(t, &there, kind)
	}
}

// transact runs a short test and looks at what it says.
func transact(t *testing.T, client *netperf.Client, kind netperf.TransactionKind) {
	t.Helper()
	o := netperf.TransactionOptions{Kind: kind, Length: 30 * time.Second, Count: 20, RequestSize: 64, ResponseSize: 512, Wait: time.Millisecond,
		DSCP: dscp.FromByte(0xb8), ServerDSCP: dscp.FromByte(0x20)}
	got, err := client.NewTransactions(o).Run(t.Context())
	if err != nil || got.Transactions != 20 || got.RTTs.Min() <= 0 || got.RemoteDS != 0x20 || got.ServerTransactions < got.Transactions {
		t.Errorf("%v: %+v, %v", kind, got, err)
	}
	if median, ok := got.RTTs.TimeQuantile(0.5); !ok || median < got.RTTs.Min() || median > got.RTTs.Max() {
		t.Errorf("%v: median by time %v, %v", kind, median, ok)
	}
}
