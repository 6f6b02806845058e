package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
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

// A run that "bloat lab" is put around knows its link as if it had made it.
func TestARunInsideALabHasWhatTheLabCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "lab", "-q", "--qdisc", "pie", "--", binary, "speedtest", "-H", "192.0.2.2", "-t", "1", "-i", "0", "-n", "2", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	for _, lacking := range []string{"netns", "userns", "veth", "packet-socket"} {
		if _, reason, ok := strings.Cut(stderr.String(), "no "+lacking+" here: "); ok {
			facility.Missing(t, lacking, reason)
		}
	}
	var d struct {
		Path struct {
			Lab *bufferbloat.LabLink `json:"lab"`
		} `json:"path"`
		Others []struct {
			Name string  `json:"name"`
			Max  float64 `json:"max"`
		} `json:"others"`
	}
	if jerr := json.Unmarshal(stdout.Bytes(), &d); jerr != nil {
		t.Fatalf("%v, %v: %s%s", err, jerr, stderr.String(), stdout.String())
	}
	if d.Path.Lab == nil || d.Path.Lab.Counted == nil {
		t.Fatalf("the run does not know its lab: %+v", d.Path)
	}
	c := d.Path.Lab.Counted
	if c.Up.Queue != "pie" || c.Down.Sent.Packets < 100 || c.Late == nil || !strings.HasPrefix(d.Path.Lab.Carrier, "kernel TCP") {
		t.Errorf("the lab is %+v, and counted %+v", d.Path.Lab, c)
	}
	for _, o := range d.Others {
		if o.Name == "lab down::backlog_bytes" && o.Max > 0 {
			return
		}
	}
	t.Errorf("no backlog of the lab among %+v", d.Others)
}

func names(all []bufferbloat.Quantity) (list []string) {
	for _, q := range all {
		list = append(list, q.Name)
	}
	return list
}
