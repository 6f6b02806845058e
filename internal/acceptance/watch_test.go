package acceptance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/testnet"
)

// The queue stands in the client's own device, where no probe of the path alone could tell whose it is.
func TestTheRecordingHasTheQueueOfTheOwnDevice(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	n := testnet.New(t)
	n.ClientDevice.Shape(t, testnet.Queue{Rate: 10 * bitrate.Mbit, Buffer: 100 * time.Millisecond})
	serve(t, n)
	o := speedtest(t, n, 3*time.Second, "-i", "2", "-n", "2", "--probe", "icmp")
	device := n.ClientDevice.Name
	highest := func(name string) float64 {
		t.Helper()
		for _, q := range o.rec.Others {
			if q.Name == name && len(q.Values) > 0 {
				return slices.Max(q.Values)
			}
		}
		t.Errorf("the recording has no values of %s, but of %v", name, names(o.rec.Others))
		return 0
	}
	const full = 125_000 // bytes: 100 ms at 10 Mbit/s
	if got := highest(device + " tbf::backlog_bytes"); got < full/4 || got > 2*full {
		t.Errorf("the highest backlog is %.0f bytes, want some part of %d", got, full)
	}
	var sent uint64
	for _, f := range o.rec.Flows {
		if strings.HasPrefix(f.Name, "upload") {
			sent += f.Result.Bytes
		}
	}
	if got := highest(device + "::tx_bytes"); sent == 0 || got < float64(sent) {
		t.Errorf("the device sent %.0f bytes, and the uploads delivered %d", got, sent)
	}
	if busy := highest("cpu0::busy"); busy <= 0 || busy > 1 {
		t.Errorf("CPU 0 was busy by a share of %v", busy)
	}
	if d := o.rec.Client.Device; d == nil || d.Name != device || d.Driver != "veth" || !d.Virtual || d.MTU != 1500 || len(d.Offloads) > 0 || !slices.Contains(d.Queues, "tbf") {
		t.Errorf("the device is %+v", d)
	}
	for _, f := range o.result.Findings {
		if f.Code == "competing_traffic" || f.Code == "lint_offloads" || f.Code == "device_unwatched" {
			t.Errorf("nobody else is there, and the offloads are off: got %+v", f)
		}
	}
}

func names(all []bufferbloat.Quantity) (list []string) {
	for _, q := range all {
		list = append(list, q.Name)
	}
	return list
}
