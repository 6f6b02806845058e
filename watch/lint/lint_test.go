package lint

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/watch/device"
	"bufferbloat/watch/qdisc"
)

func TestWhatOfADeviceFalsifiesAMeasurement(t *testing.T) {
	eth := device.Link{Name: "eth0", TxQueueLength: 1000}
	root := func(kind string, o qdisc.Options) qdisc.Queue {
		return qdisc.Queue{Kind: kind, Parent: qdisc.Root, Options: o}
	}
	below := func(kind string, o qdisc.Options) qdisc.Queue {
		return qdisc.Queue{Kind: kind, Parent: 0x10010, Options: o}
	}
	good := device.Facts{Driver: "e1000e", Speed: bitrate.Gbit, BQL: []device.BQL{{Limit: 30_000}}}
	with := func(change func(*device.Facts)) device.Facts { f := good; change(&f); return f }
	for _, c := range []struct {
		claim string
		h     Host
		want  []string // code, and a word of the text
	}{
		{"a desktop with fq_codel is fine", Host{eth, good, []qdisc.Queue{root("fq_codel", qdisc.Options{Limit: 10_240, Quantum: 1514})}, bitrate.Gbit, 1, 0}, nil},
		{"offloads without a shaper are fine", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Offloads = []string{"tso", "gso", "gro"} }),
			Queues: []qdisc.Queue{root("fq_codel", qdisc.Options{})}}, nil},
		{"offloads above a shaper make lumps", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Offloads = []string{"tso", "gro"} }),
			Queues: []qdisc.Queue{root("tbf", qdisc.Options{})}}, []string{"lint_offloads", "has tso on above its tbf"}},
		{"GRO alone says nothing of what is sent", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Offloads = []string{"gro"} }),
			Queues: []qdisc.Queue{root("tbf", qdisc.Options{})}}, nil},
		{"a shaper needs fine timers", Host{Link: eth, Facts: good, Queues: []qdisc.Queue{root("htb", qdisc.Options{})}, Timer: 4 * time.Millisecond},
			[]string{"lint_timer", "resolution of 4ms"}},
		{"netem is not stacked, and its limit is low", Host{Link: eth, Facts: good, Queues: []qdisc.Queue{root("netem", qdisc.Options{Limit: 1000}), below("fq_codel", qdisc.Options{})}},
			[]string{"lint_netem_stacked", "with fq_codel on eth0", "lint_netem_limit", "at most 1000 packets"}},
		{"netem alone with room is fine", Host{Link: eth, Facts: good, Queues: []qdisc.Queue{root("netem", qdisc.Options{Limit: 100_000}), {Kind: "ingress", Parent: qdisc.Ingress}}}, nil},
		{"a driver without BQL hides a queue", Host{Link: eth, Facts: with(func(f *device.Facts) { f.BQL = []device.BQL{{}, {}} })}, []string{"lint_bql", "e1000e of eth0"}},
		{"nor with a limit that is not for the rate", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Speed = 10 * bitrate.Mbit })}, []string{"lint_bql", "are 24ms at 10Mbit"}},
		{"a device without hardware has no ring", Host{Link: eth, Facts: device.Facts{Virtual: true, BQL: []device.BQL{{}}, PauseRx: true}}, nil},
		{"pause frames stop a device", Host{Link: eth, Facts: with(func(f *device.Facts) { f.PauseRx = true })}, []string{"lint_pause", "ethtool -A eth0"}},
		{"interrupts that wait are delay", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Coalesce = 1500 })}, []string{"lint_interrupts", "up to 1.5ms"}},
		{"a thousand packets at 100 Mbit/s", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Speed, f.BQL = 100*bitrate.Mbit, nil }),
			Queues: []qdisc.Queue{root("pfifo_fast", qdisc.Options{})}}, []string{"lint_txqueuelen", "1000 packets, which are 121ms"}},
		{"CPUs that sleep deeply wake late", Host{Link: eth, Facts: good, Sleep: 890 * time.Microsecond}, []string{"lint_sleep", "takes 890µs"}},
		{"CPUs that sleep lightly are fine", Host{Link: eth, Facts: good, Sleep: 133 * time.Microsecond}, nil},
		{"a virtual machine's host decides on sleep", Host{Link: eth, Facts: with(func(f *device.Facts) { f.Virtual = true }), Sleep: time.Second}, nil},
		{"fq_codel below a slow shaper wants a low limit", Host{Link: eth, Facts: good, Carried: 4 * bitrate.Mbit,
			Queues: []qdisc.Queue{root("htb", qdisc.Options{}), below("fq_codel", qdisc.Options{Limit: 10_240})}}, []string{"lint_fq_codel_limit", "10240 packets, which are 31s at 4 Mbit/s"}},
		{"a limit of 1000 is fine", Host{Link: eth, Facts: good, Carried: 4 * bitrate.Mbit,
			Queues: []qdisc.Queue{root("htb", qdisc.Options{}), below("fq_codel", qdisc.Options{Limit: 1000})}}, nil},
		{"fq_codel below a slow shaper wants a small quantum", Host{Link: eth, Facts: good, Carried: 4 * bitrate.Mbit,
			Queues: []qdisc.Queue{root("htb", qdisc.Options{}), below("fq_codel", qdisc.Options{Quantum: 1514})}}, []string{"lint_fq_codel", "1514 bytes at 4 Mbit/s"}},
		{"nobody judges loopback", Host{Link: device.Link{Name: "lo"}, Facts: with(func(f *device.Facts) { f.PauseRx = true })}, nil},
	} {
		got := Check(c.h)
		var words []string
		for i, r := range got {
			words = append(words, r.Code)
			if 2*i+1 < len(c.want) && strings.Contains(r.Text, c.want[2*i+1]) {
				words = append(words, c.want[2*i+1])
			} else {
				words = append(words, r.Text)
			}
		}
		if !slices.Equal(words, c.want) {
			t.Errorf("%s: got %q, want %q", c.claim, words, c.want)
		}
	}
}
