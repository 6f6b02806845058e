package acceptance

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/testnet"
)

// accuracyVariable set to anything runs the long comparison of all rates, which prints its table for the docs.
const accuracyVariable = "BLOAT_ACCURACY"

// link is one bottleneck between the client and the server: tbf over bfifo, each way.
type link struct {
	down, up bitrate.Bitrate
	buffer   time.Duration // of a full queue
}

func (l link) String() string {
	return fmt.Sprintf("%v/%v, %v", l.down, l.up, l.buffer)
}

// streams is how many streams a speedtest has there: its default, or as many as find room. A queue of 250 ms at 512 kbit/s has 11 packets,
// and of five streams one or two wait for seconds until their first packet does.
func (l link) streams() int {
	if min(l.down, l.up) < bitrate.Mbit {
		return 1
	}
	return 5
}

// The tolerances of the comparison.
const (
	goodputTolerance = 0.01 // of the link's payload rate
	rttTolerance     = 0.05 // of ping's median
)

func TestAccuracyAt20And4(t *testing.T) {
	t.Parallel()
	l := link{20 * bitrate.Mbit, 4 * bitrate.Mbit, 250 * time.Millisecond}
	for _, r := range compare(t, l, 8*time.Second, "netperf") {
		r.check(t)
		t.Log(r)
	}
}

func TestAccuracyOfEveryRate(t *testing.T) {
	if os.Getenv(accuracyVariable) == "" {
		t.Skipf("set %s=1 (make bench) for the comparison of all rates, which takes some minutes", accuracyVariable)
	}
	const buffer = 250 * time.Millisecond
	links := []link{
		{512 * bitrate.Kbit, 512 * bitrate.Kbit, buffer},
		{1 * bitrate.Mbit, 1 * bitrate.Mbit, buffer},
		{20 * bitrate.Mbit, 4 * bitrate.Mbit, buffer},
		{100 * bitrate.Mbit, 100 * bitrate.Mbit, buffer},
		{500 * bitrate.Mbit, 500 * bitrate.Mbit, buffer},
	}
	const fast = 100 * bitrate.Mbit // from here on one at a time; the others have little to do, and go on together
	rows := make([][]row, len(links)*len(accurateProtocols))
	var together sync.WaitGroup
	for i := range rows {
		l, protocol := links[i/len(accurateProtocols)], accurateProtocols[i%len(accurateProtocols)]
		one := func() {
			t.Run(l.String()+" "+protocol, func(t *testing.T) {
				for _, r := range compare(t, l, 30*time.Second, protocol) {
					r.check(t)
					rows[i] = append(rows[i], r)
				}
			})
		}
		if l.down < fast {
			together.Go(one)
			continue
		}
		together.Wait()
		one()
	}
	together.Wait()
	fmt.Println(tableHead)
	for _, r := range slices.Concat(rows...) {
		fmt.Println(r)
	}
}

// accurateProtocols are the protocols of flows that bloat serve answers to.
var accurateProtocols = []string{"netperf", "iperf3", "http"}

// row compares one direction's figures with what the link and the other tools say.
type row struct {
	link      link
	protocol  string
	algorithm string // congestion control of both ends
	direction string
	goodput   bitrate.Bitrate
	payload   bitrate.Bitrate // the link's payload rate: rate x 1448/1514
	others    bitrate.Bitrate // payload that the link carried for the probes and for ping instead
	median    time.Duration   // loaded RTT
	ping      time.Duration   // the same by iputils ping, over the same time
	pings     int
	lost      int // probes sent and not answered, in the whole run
	unpaid    int // the same by the kernel's and ping's counts
	spread    spread
}

// goodputOff is how far the goodput is from what the link had left for it, as a ratio.
func (r row) goodputOff() float64 { return float64(r.goodput)/float64(r.payload-r.others) - 1 }

func (r row) rttOff() float64 { return float64(r.median)/float64(r.ping) - 1 }

func (r row) check(t *testing.T) {
	t.Helper()
	if off := r.goodputOff(); math.Abs(off) > goodputTolerance {
		t.Errorf("%s: goodput %v, want %v within %.0f %% (off by %+.2f %%)", r.direction, r.goodput, r.payload-r.others, goodputTolerance*100, off*100)
	}
	if off := r.rttOff(); math.Abs(off) > rttTolerance || r.pings < 10 {
		t.Errorf("%s: median RTT %v, want ping's %v (n = %d) within %.0f %% (off by %+.2f %%)",
			r.direction, r.median, r.ping, r.pings, rttTolerance*100, off*100)
	}
	if r.lost != r.unpaid {
		t.Errorf("%d probes count as unanswered, the kernel and ping say %d", r.lost, r.unpaid)
	}
}

const tableHead = `| link down/up, buffer | protocol | TCP | direction | goodput, Mbit/s | link's payload | less probes and pings | off | median RTT, ms | ping's | off | unanswered | by the kernel | most in 500 ms | behind holes |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |`

func (r row) String() string {
	return fmt.Sprintf("| %v | %s | %s | %s | %.3f | %.3f | %.3f | %+.2f %% | %.1f | %.1f | %+.2f %% | %d | %d | %.0f %% | %d |", r.link, r.protocol, r.algorithm, r.direction,
		r.goodput.Mbps(), r.payload.Mbps(), (r.payload - r.others).Mbps(), r.goodputOff()*100, ms(r.median), ms(r.ping), r.rttOff()*100, r.lost, r.unpaid,
		r.spread.highest*100, r.spread.holed)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// compare runs one speedtest over l with flows of a protocol, with length for each direction, and returns a row for each direction. It also checks
// the flows' intervals.
func compare(t *testing.T, l link, length time.Duration, protocol string) []row {
	t.Helper()
	n := testnet.New(t)
	n.Down.Shape(t, testnet.Queue{Rate: l.down, Buffer: l.buffer})
	n.Up.Shape(t, testnet.Queue{Rate: l.up, Buffer: l.buffer})
	// The machine's default may be one that keeps the queue short on purpose. Which queue builds is not what is compared, but a full
	// one is the harder case.
	algorithm := n.Server.SetCongestionControl(t, "cubic", "reno")
	n.Client.SetCongestionControl(t, algorithm)
	serve(t, n, "--http-port", "80")
	down, up := watchArrivals(t, n.ClientDevice), watchArrivals(t, n.ServerDevice)
	o := speedtest(t, n, length, "-i", "2", "--probe", "icmp", "--protocol", protocol, "-n", strconv.Itoa(l.streams()))
	lost, unpaid := o.unanswered(t)
	var rows []row
	for _, d := range []struct {
		name string
		rate bitrate.Bitrate
		came arrivals
	}{{"download", l.down, down()}, {"upload", l.up, up()}} {
		ph := o.result.phase(t, d.name)
		r := row{link: l, protocol: protocol, algorithm: algorithm, direction: d.name, payload: testnet.Payload(d.rate), lost: lost, unpaid: unpaid}
		r.goodput, r.median = ph.figures(t)
		r.others = o.echoRate(ph)
		r.ping, r.pings = o.pingMedian(ph)
		list, start := intervalsOf(t, o.rec, d.name)
		r.spread = list.check(t, d.name, r.payload, l.buffer, d.came.behindHoles(o.rec, start, list))
		rows = append(rows, r)
	}
	return rows
}

// pingMedian returns the median of the pings that left in the time that the phase's statistics look at, and their number.
func (o outcome) pingMedian(ph *phase) (time.Duration, int) {
	var rtts []time.Duration
	for _, p := range o.pings {
		if ph.holds(p.sent.Sub(o.rec.Started)) {
			rtts = append(rtts, p.rtt)
		}
	}
	if len(rtts) == 0 {
		return 0, 0
	}
	slices.Sort(rtts)
	n := len(rtts)
	return (rtts[(n-1)/2] + rtts[n/2]) / 2, n
}

// The sizes of the echo packets in the queues: ICMP message, IP and Ethernet headers. Ours are smaller than ping's.
const (
	pingFrame  = pingSize + 8 + 20 + testnet.FrameOverhead
	probeFrame = ourEchoSize + 20 + testnet.FrameOverhead
)

// echoRate is the TCP payload that the link could have carried in place of the probes and pings of the phase. It is nothing on a
// fast link and one part in a hundred of 1 Mbit/s.
func (o outcome) echoRate(ph *phase) bitrate.Bitrate {
	bytes := 0
	for _, p := range o.pings {
		if ph.holds(p.sent.Sub(o.rec.Started)) {
			bytes += pingFrame
		}
	}
	for _, series := range o.rec.Probes {
		for _, s := range series.Samples {
			if s.Outcome.HasRTT() && ph.holds(s.Sent) {
				bytes += probeFrame
			}
		}
	}
	return testnet.Payload(bitrate.Of(uint64(bytes), *ph.To-*ph.From))
}

// unanswered returns how many of the run's probes count as sent and not answered, and how many echo requests of the client, less
// ping's own, its kernel sent and saw no reply to.
func (o outcome) unanswered(t *testing.T) (lost, unpaid int) {
	t.Helper()
	for _, p := range o.result.Probes {
		if p.Kind != "icmp" {
			t.Errorf("probe %q is of kind %q, and only ICMP was asked for", p.Name, p.Kind)
		}
		c := p.Count
		missing := c.Lost + c.LostUp + c.LostDown + c.Unfinished
		if answered := c.Received + c.Late + c.Invalid; missing != c.Sent-answered {
			t.Errorf("probe %q: %d lost or unfinished, want the %d sent less the %d answered", p.Name, missing, c.Sent, answered)
		}
		if c.Sent+c.Unsent != c.Due || c.Sent == 0 || c.Invalid > 0 || p.Duplicates > 0 {
			t.Errorf("probe %q: counts %+v with %d duplicates, want Sent + Unsent = Due, and nothing odd on this link", p.Name, c, p.Duplicates)
		}
		lost += missing
	}
	return lost, o.kernel.requests - o.kernel.replies - (o.pinger.sent - o.pinger.received)
}
