package bufferbloat

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/watch"
	"bufferbloat/watch/device"
	"bufferbloat/watch/lint"
	"bufferbloat/watch/qdisc"
	"bufferbloat/watch/wifi"
)

// Bounds of what is watched of a host with many CPUs, or of a device with many queues.
const (
	mostCores  = 64
	mostQueues = 16
	coreStep   = time.Second // the kernel counts CPU time in ticks of 10 ms
	deviceStep = 200 * time.Millisecond
)

// watchHost has the run watch the host that it runs on: its CPUs and, on a real path, the device that leads to the server.
func (r *run) watchHost() {
	if r.o.NoCPU != "" {
		return
	}
	r.o.Watch = slices.Clip(r.o.Watch)
	if w, err := watchCores(); err == nil { // where there are no times of CPUs, the recording says so already
		r.o.Watch = append(r.o.Watch, w)
	}
	if w, ok := watchQuota(); ok {
		r.o.Watch = append(r.o.Watch, w)
	}
	if _, plain := r.h.(*host.Kernel); !plain || r.o.Lab != nil {
		return
	}
	d, err := newDeviceWatch(r)
	if err != nil {
		r.notes = append(r.notes, Finding{Code: "device_unwatched", Severity: Note,
			Text: fmt.Sprintf("neither the queue nor the counters of this host's network device are watched: %v", err)})
		return
	}
	r.device = d.describe()
	r.o.Watch = append(r.o.Watch, d.watch())
}

// watchCores watches the shares of each CPU's time, and its clock rate where that is known.
func watchCores() (Watch, error) {
	last, err := watch.Cores()
	if err != nil {
		return Watch{}, err
	}
	last = last[:min(len(last), mostCores)]
	w := Watch{Name: "the CPUs of this host", Every: coreStep}
	for _, c := range last {
		name := "cpu" + strconv.Itoa(c.Number)
		w.Series = append(w.Series, WatchSeries{name + "::busy", "share"}, WatchSeries{name + "::softirq", "share"}, WatchSeries{name + "::irq", "share"},
			WatchSeries{name + "::steal", "share"}, WatchSeries{name + "::frequency", "Hz"})
	}
	started := slices.Clone(last)
	w.Read = func(values []float64) error {
		now, err := watch.Cores()
		if err != nil {
			return err
		}
		for i, c := range started {
			at := func(list []watch.Core) int {
				return slices.IndexFunc(list, func(o watch.Core) bool { return o.Number == c.Number })
			}
			if from, to := at(last), at(now); from >= 0 && to >= 0 {
				coreValues(values[5*i:], &last[from], &now[to])
			}
		}
		last = now
		return nil
	}
	return w, nil
}

// coreValues fills in what a CPU did between two readings.
func coreValues(values []float64, from, to *watch.Core) {
	if to.Hertz > 0 {
		values[4] = to.Hertz
	}
	total := to.Total - from.Total
	if total <= 0 {
		return // less than a tick ago
	}
	for i, d := range []time.Duration{to.Busy - from.Busy, to.SoftIRQ - from.SoftIRQ, to.IRQ - from.IRQ, to.Steal - from.Steal} {
		values[i] = min(1, max(0, float64(d)/float64(total)))
	}
}

// deviceWatch watches the device through which packets to the first server that can be reached leave.
type deviceWatch struct {
	r      *run
	link   device.Link
	facts  device.Facts
	queues []qdisc.Queue // as they were at the start
	limits int           // byte queue limits
	radio  bool
	// station is the access point that a Wi-Fi device has its link with, nil for none.
	station *wifi.Station
	alone   bool // all servers are behind this device, and nothing leaves by another
}

func newDeviceWatch(r *run) (*deviceWatch, error) {
	d := &deviceWatch{r: r}
	index, alone, err := egress(r.peers, device.Egress)
	if err != nil {
		return nil, err
	}
	d.alone = alone && !r.plan.forks()
	if d.link, err = device.ReadLink(index); err != nil {
		return nil, err
	}
	if d.queues, err = qdisc.Read(index); err != nil {
		return nil, err
	}
	d.queues = d.queues[:min(len(d.queues), mostQueues)]
	d.facts = device.ReadFacts(d.link)
	d.limits = min(len(d.facts.BQL), mostQueues)
	_, d.radio = device.ReadWireless(d.link.Name)
	if list, err := d.stations(); err == nil && len(list) == 1 { // an access point's stations are many, and the server is behind one of them at most
		d.station = &list[0]
	}
	return d, nil
}

// egress returns the device that leads to the first of the peers that has an address and a device, and whether it leads to all others that
// have an address. An error is why none has.
func egress(peers []*peer, of func(to, from netip.Addr, through string) (int, error)) (index int, alone bool, err error) {
	err = errors.New("no server can be reached")
	found := false
	alone = true
	for _, p := range peers {
		if !p.addr.IsValid() {
			continue // it has no flow and no probe either
		}
		at, failed := of(p.addr, p.server.Source, p.server.Interface)
		switch {
		case failed != nil && !found:
			alone, err = false, failed
		case failed != nil || found && at != index:
			alone = false
		default:
			index, found = at, true
		}
	}
	if !found {
		return 0, false, err
	}
	return index, alone, nil
}

// forks reports whether a flow or a probe leaves this host by a way of its own.
func (p *Plan) forks() bool {
	return slices.ContainsFunc(p.Phases, func(ph PhasePlan) bool {
		return slices.ContainsFunc(ph.Flows, func(f FlowPlan) bool { return f.Source.IsValid() || f.Interface != "" })
	}) || slices.ContainsFunc(p.Probes, func(pr ProbePlan) bool { return pr.Source.IsValid() || pr.Interface != "" })
}

// describe is the device as the recording keeps it.
func (d *deviceWatch) describe() *DeviceFacts {
	f := &DeviceFacts{Name: d.link.Name, Driver: d.facts.Driver, Kind: d.link.Kind, Virtual: d.facts.Virtual, Speed: d.facts.Speed, MTU: d.link.MTU,
		TxQueue: d.link.TxQueueLength, Offloads: append([]string{}, d.facts.Offloads...), PauseRx: d.facts.PauseRx, PauseTx: d.facts.PauseTx, Queues: []string{},
		Missing: d.facts.Missing}
	for i := range d.queues {
		f.Queues = append(f.Queues, d.queues[i].Name())
	}
	return f
}

// series names what is watched, in the order in which read gives it.
func (d *deviceWatch) series() (all []WatchSeries) {
	add := func(prefix string, list ...WatchSeries) {
		for _, s := range list {
			all = append(all, WatchSeries{prefix + "::" + s.Name, s.Unit})
		}
	}
	add(d.link.Name, WatchSeries{"rx_bytes", "bytes"}, WatchSeries{"tx_bytes", "bytes"}, WatchSeries{"rx_dropped", "packets"}, WatchSeries{"tx_dropped", "packets"},
		WatchSeries{"rx_errors", "packets"}, WatchSeries{"tx_errors", "packets"})
	for i := range d.queues {
		q := &d.queues[i]
		// The first two are named as flent's data files name them, and drawn as theirs are.
		list := []WatchSeries{{"backlog_bytes", "bytes"}, {"backlog_pkts", "packets"}, {"sent_bytes", "bytes"}, {"dropped", "packets"}, {"overlimits", ""}, {"requeues", "packets"}}
		for _, m := range q.More {
			list = append(list, WatchSeries{m.Name, m.Unit})
		}
		add(d.link.Name+" "+q.Name(), list...)
	}
	for i := range d.limits {
		add(d.link.Name+" tx-"+strconv.Itoa(i), WatchSeries{"bql_limit", "bytes"}, WatchSeries{"bql_inflight", "bytes"})
	}
	if d.radio {
		add(d.link.Name, WatchSeries{"wifi_quality", ""}, WatchSeries{"wifi_signal", "dBm"}, WatchSeries{"wifi_noise", "dBm"}, WatchSeries{"wifi_retries", "packets"},
			WatchSeries{"wifi_missed_beacons", "packets"})
	}
	if d.station != nil {
		add(d.link.Name+" station "+d.station.String(), stationSeries()...)
	}
	return all
}

func (d *deviceWatch) watch() Watch {
	return Watch{Name: "the network device " + d.link.Name, Every: deviceStep, Series: d.series(), Read: d.read, Doubts: d.doubts}
}

func (d *deviceWatch) read(values []float64) error {
	l, err := device.ReadLink(d.link.Index)
	if err != nil {
		return err
	}
	now, err := qdisc.Read(d.link.Index)
	if err != nil {
		return err
	}
	put := func(list ...float64) { values = values[copy(values, list):] }
	put(float64(l.RxBytes), float64(l.TxBytes), float64(l.RxDropped), float64(l.TxDropped), float64(l.RxErrors), float64(l.TxErrors))
	for i := range d.queues {
		put(queueValues(&d.queues[i], now)...)
	}
	limits, _ := device.ReadBQL(d.link) // at the worst they are not known now
	for i := range d.limits {
		if i < len(limits) {
			put(float64(limits[i].Limit), float64(limits[i].InFlight))
		} else {
			put(math.NaN(), math.NaN())
		}
	}
	if w, ok := device.ReadWireless(d.link.Name); d.radio && ok {
		put(w.Quality, w.Signal, w.Noise, float64(w.Retries), float64(w.Missed))
	} else if d.radio {
		values = values[5:]
	}
	if d.station != nil {
		now, _ := d.stations() // likewise
		stationValues(values, d.station, now)
	}
	return nil
}

func (d *deviceWatch) stations() ([]wifi.Station, error) {
	if d.r.o.Kinds.Stations == nil {
		return nil, errors.ErrUnsupported
	}
	return d.r.o.Kinds.Stations(d.link.Index)
}

// stationSeries are the quantities of a station, and stationValues their values.
func stationSeries() []WatchSeries {
	return []WatchSeries{{"wifi_signal", "dBm"}, {"wifi_tx_rate", "bit/s"}, {"wifi_rx_rate", "bit/s"}, {"wifi_tx_packets", "packets"}, {"wifi_tx_retries", "packets"},
		{"wifi_tx_failed", "packets"}}
}

// stationValues leaves alone what is not told, and all where the station is another one now: its counters began anew.
func stationValues(values []float64, was *wifi.Station, now []wifi.Station) {
	i := slices.IndexFunc(now, func(s wifi.Station) bool { return s.MAC == was.MAC })
	if i < 0 {
		return
	}
	s := &now[i]
	put := func(place int, v float64, told bool) {
		if told {
			values[place] = v
		}
	}
	put(0, float64(s.Signal), s.HasSignal)
	put(1, float64(s.TxRate), s.TxRate > 0)
	put(2, float64(s.RxRate), s.RxRate > 0)
	put(3, float64(s.TxPackets), s.HasTxCounters)
	put(4, float64(s.TxRetries), s.HasTxCounters)
	put(5, float64(s.TxFailed), s.HasTxCounters)
}

// queueValues are the counters of a queue as it is now; NaN where it is gone, or another one has its place.
func queueValues(was *qdisc.Queue, now []qdisc.Queue) []float64 {
	out := make([]float64, 6, 6+len(was.More))
	for i := range out {
		out[i] = math.NaN()
	}
	i := slices.IndexFunc(now, func(q qdisc.Queue) bool {
		return q.Class == was.Class && q.Kind == was.Kind && q.Handle == was.Handle && q.Parent == was.Parent
	})
	if i >= 0 {
		q := &now[i]
		copy(out, []float64{float64(q.Backlog), float64(q.Length), float64(q.Bytes), float64(q.Drops), float64(q.Overlimits), float64(q.Requeues)})
	}
	for _, m := range was.More {
		v := math.NaN()
		if i >= 0 {
			for _, n := range now[i].More {
				if n.Name == m.Name {
					v = n.Value
				}
			}
		}
		out = append(out, v)
	}
	return out
}

// doubts says what of the device bears on the result, when the run is over.
func (d *deviceWatch) doubts() (found []Finding) {
	rec := &d.r.rec.rec // nobody writes any more
	h := lint.Host{Link: d.link, Facts: d.facts, Queues: d.queues, Timer: lint.TimerResolution(), Sleep: lint.DeepestSleep()}
	if limits, err := device.ReadBQL(d.link); err == nil {
		h.Facts.BQL = limits // a limit follows the load
	}
	for _, ph := range rec.Phases {
		if n, ok := rec.counted(d.link.Name+"::tx_bytes", ph.From, ph.To); ok {
			h.Carried = max(h.Carried, bitrate.Of(uint64(n), ph.To-ph.From))
		}
	}
	for _, m := range lint.Check(h) {
		found = append(found, Finding{Code: m.Code, Severity: Note, Text: m.Text})
	}
	if d.alone && d.link.Name != "lo" {
		found = append(found, rec.judgeCompeting(d.link.Name)...)
	}
	return found
}
