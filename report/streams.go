package report

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// FlowDetail is what is known of a stream beside its rate. Its fields, like those of the other details, are as the JSON document has them.
type FlowDetail struct {
	Group    string `json:"group,omitempty"`
	DSCP     string `json:"dscp"`
	Protocol string `json:"protocol"`
	Server   string `json:"server"` // its host as named
	Address  string `json:"address,omitempty"`
	Control  string `json:"congestion_control_asked,omitempty"`
	// Due is when the plan wanted it to begin, and Slew how much later its first data arrived; nil where it did not come to that.
	Due   *time.Duration `json:"due_ns"`
	Slew  *time.Duration `json:"slew_ns"`
	Share *GridShare     `json:"share"`         // nil without a grid
	TCP   *TCPFigures    `json:"tcp,omitempty"` // of this host's end, where it sends
}

// GridShare is what a stream had of all that its direction carried, 0..1, in the intervals of the grid in which the stream ran.
type GridShare struct {
	Mean   float64 `json:"mean"`
	P10    float64 `json:"p10"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
}

// TCPFigures are what the kernel's TCP_INFO said of a stream over its life; nil where it did not.
type TCPFigures struct {
	RTTMedian     *time.Duration `json:"srtt_median_ns"`
	RTTMax        *time.Duration `json:"srtt_max_ns"`
	MinRTT        *time.Duration `json:"min_rtt_ns"`
	WindowMedian  *float64       `json:"cwnd_median_segments"`
	Retransmits   *float64       `json:"retransmitted_segments"`
	Marks         *float64       `json:"delivered_ce_segments"`
	Busy          *time.Duration `json:"busy_ns"`
	WindowLimited *time.Duration `json:"rwnd_limited_ns"`
	BufferLimited *time.Duration `json:"sndbuf_limited_ns"`
}

// Detail is what is known of the streams of one direction beside their rate.
type Detail struct {
	SlewMedian *time.Duration `json:"slew_median_ns"`
	SlewMax    *time.Duration `json:"slew_max_ns"`
	Grid       *Grid          `json:"grid"` // nil where the counters were not read often enough
	// Acks estimates the acknowledgements that TCP streams of this direction sent the other way: a fortieth of their payload (one of 66 bytes for each
	// two full segments, in round numbers, as the RRUL specification's author does). An estimate, since no program sees them.
	Acks *int64 `json:"ack_estimate_bps"`
	// Skipped is how much of the load's beginning the rates leave out: as planned, a burst that the link permits for a while, or until all streams ran where
	// some of them waited for what the others carried.
	Skipped time.Duration `json:"skipped_ns,omitempty"`
	Groups  []Group       `json:"groups,omitempty"` // sums over parts of the streams, where there are several parts
}

// Grid says how evenly the streams shared their direction in each short interval.
type Grid struct {
	Interval       time.Duration `json:"interval_ns"`
	Bins           int           `json:"intervals"` // in which anything was carried
	FairnessMedian float64       `json:"fairness_jain_median"`
	FairnessP10    float64       `json:"fairness_jain_p10"`
}

// Group is the sum of some of the streams of one direction: those of a group of the plan, of a mark, or over one IP version.
type Group struct {
	By       string   `json:"by"` // "group", "dscp" or "family"
	Name     string   `json:"name"`
	Flowed   int      `json:"streams"`
	Planned  int      `json:"streams_planned"`
	Goodput  *int64   `json:"goodput_bps"` // nil where nothing was counted
	Fairness *float64 `json:"fairness_jain"`
}

// Total is what both directions of a load carried together.
type Total struct {
	Goodput  int64 `json:"goodput_bps"`
	WithAcks int64 `json:"with_ack_estimate_bps"`
}

// ackShare is what acknowledgements take of the other direction's payload, one in so many.
const ackShare = 40

// detail fills in the details of a phase that this program measured.
func (ph *Phase) detail(rec *bufferbloat.Recording) {
	if rec.Source != nil || ph.Kind != bufferbloat.Load {
		return
	}
	plans := map[string]*bufferbloat.FlowPlan{}
	for i := range rec.Plan.Phases {
		if rec.Plan.Phases[i].Name == ph.Name {
			for j := range rec.Plan.Phases[i].Flows {
				f := &rec.Plan.Phases[i].Flows[j]
				plans[f.Name] = f
			}
		}
	}
	recorded := map[string]*bufferbloat.Flow{}
	for i := range rec.Flows {
		recorded[rec.Flows[i].Name] = &rec.Flows[i]
	}
	tcp := tcpFigures(rec, recorded, ph.Name)
	for i := range ph.Goodput {
		g := &ph.Goodput[i]
		g.Detail = &Detail{Skipped: g.skipped}
		for j := range g.Flows {
			f := &g.Flows[j]
			f.Detail = newFlowDetail(f, plans[f.Name], recorded[f.Name], &rec.Plan)
			f.Detail.TCP = tcp[f.Name]
		}
		g.slew()
		g.acks(plans)
		g.groups()
		if ph.UnderLoad || ph.noLoad != "" {
			g.grid(recorded, ph.From, ph.To)
		}
	}
	ph.total()
}

func newFlowDetail(f *Flow, planned *bufferbloat.FlowPlan, recorded *bufferbloat.Flow, plan *bufferbloat.Plan) *FlowDetail {
	d := &FlowDetail{Protocol: string(bufferbloat.Netperf)}
	if planned != nil {
		d.Group, d.DSCP, d.Control = planned.Group, planned.DSCP.String(), planned.CongestionControl
		d.Protocol = cmp.Or(string(planned.Protocol), d.Protocol)
		s, _ := plan.ServerOf(planned.Server)
		d.Server = s.Host
	}
	if recorded != nil {
		d.Address = recorded.Address
		d.Group = cmp.Or(d.Group, recorded.Group)
	}
	d.Due = value(f.Due, f.Due > 0)
	d.Slew = value(f.First-f.Due, f.Due > 0 && f.Flowed && f.First >= f.Due)
	return d
}

// slew says how long the streams took to begin.
func (g *Goodput) slew() {
	var all []time.Duration
	for i := range g.Flows {
		if s := g.Flows[i].Detail.Slew; s != nil {
			all = append(all, *s)
		}
	}
	if len(all) == 0 {
		return
	}
	median, _ := stat.Quantile(all, 0.5)
	g.Detail.SlewMedian, g.Detail.SlewMax = &median, value(slices.Max(all), true)
}

// acks estimates the acknowledgements of the TCP streams.
func (g *Goodput) acks(plans map[string]*bufferbloat.FlowPlan) {
	if !g.OK || g.Bytes == 0 {
		return
	}
	var tcp float64
	for i := range g.Flows {
		f := &g.Flows[i]
		if p := plans[f.Name]; f.counted() && (p == nil || p.Protocol != bufferbloat.IPerf3UDP) {
			tcp += float64(f.Bytes)
		}
	}
	var all float64
	for i := range g.Flows {
		if f := &g.Flows[i]; f.counted() {
			all += float64(f.Bytes)
		}
	}
	if tcp > 0 {
		g.Detail.Acks = value(int64(float64(g.Rate)*tcp/all/ackShare), true)
	}
}

// groups sums up the parts of the streams: by the plan's groups, by mark, and by IP version.
func (g *Goodput) groups() {
	for _, by := range []struct {
		name string
		of   func(*FlowDetail) string
	}{{"group", func(d *FlowDetail) string { return d.Group }}, {"dscp", func(d *FlowDetail) string { return d.DSCP }}, {"family", (*FlowDetail).family}} {
		parts := map[string]*Goodput{}
		var order []string
		for i := range g.Flows {
			name := by.of(g.Flows[i].Detail)
			if parts[name] == nil {
				parts[name] = &Goodput{Direction: g.Direction}
				order = append(order, name)
			}
			p := parts[name]
			p.Flows = append(p.Flows, g.Flows[i])
			p.Planned++
		}
		if len(parts) < 2 {
			continue
		}
		for _, name := range order {
			p := parts[name]
			p.sum()
			if g.skipped > 0 {
				p.keep(g.First, g.Last)
			}
			g.Detail.Groups = append(g.Detail.Groups, Group{By: by.name, Name: name, Flowed: p.Flowed, Planned: p.Planned,
				Goodput: value(int64(p.Rate), p.OK), Fairness: value(p.Fairness, p.HasFairness)})
		}
	}
}

// family is the IP version that a stream went over, "" where its server was not reached.
func (d *FlowDetail) family() string {
	a, err := netip.ParseAddr(d.Address)
	switch {
	case err != nil:
		return ""
	case a.Unmap().Is4():
		return "IPv4"
	}
	return "IPv6"
}

// total adds up the directions.
func (ph *Phase) total() {
	t := &Total{}
	for i := range ph.Goodput {
		g := &ph.Goodput[i]
		if !g.OK {
			return // half of it would pass for the whole
		}
		t.Goodput += int64(g.Rate)
		t.WithAcks += int64(g.Rate)
		if a := g.Detail.Acks; a != nil {
			t.WithAcks += *a
		}
	}
	if len(ph.Goodput) > 0 {
		ph.Total = t
	}
}

// The grid's intervals: the RRUL specification asks for 100 ms; the counters of many streams are read each second.
const (
	fineGrid   = 100 * time.Millisecond
	coarseGrid = time.Second
	mostBins   = 40_000
)

// gridStep returns the interval that a counter's readings allow, or 0.
func gridStep(points []bufferbloat.Point) time.Duration {
	if len(points) < 3 {
		return 0
	}
	gaps := make([]time.Duration, 0, len(points)-1)
	for i := 1; i < len(points); i++ {
		gaps = append(gaps, points[i].At-points[i-1].At)
	}
	slices.Sort(gaps)
	switch typical := gaps[len(gaps)/2]; {
	case typical <= fineGrid*3/2:
		return fineGrid
	case typical <= coarseGrid*3/2:
		return coarseGrid
	}
	return 0
}

// grid says how the streams shared their direction from..to.
func (g *Goodput) grid(recorded map[string]*bufferbloat.Flow, from, to time.Duration) {
	var step time.Duration
	var flows []*Flow
	for i := range g.Flows {
		f := &g.Flows[i]
		if !f.counted() {
			continue
		}
		s := gridStep(recorded[f.Name].Readings())
		if s == 0 {
			continue // it was over before its counter told anything
		}
		step = max(step, s)
		flows = append(flows, f)
	}
	if step == 0 || len(flows) < 2 {
		return
	}
	bins := int(min((to-from)/step, mostBins))
	carried := make([][]float64, len(flows)) // of each stream in each interval; negative where it did not run
	sums := make([]float64, bins)
	for i, f := range flows {
		carried[i] = make([]float64, bins)
		at := pointer{points: recorded[f.Name].Readings()}
		last := at.bytes(from)
		for k := range bins {
			begin := from + time.Duration(k)*step
			now := at.bytes(begin + step)
			carried[i][k] = now - last
			last = now
			if begin < f.First || begin+step > f.end {
				carried[i][k] = -1
				continue
			}
			sums[k] += carried[i][k]
		}
	}
	g.share(flows, carried, sums, step)
}

// share sums up a grid.
func (g *Goodput) share(flows []*Flow, carried [][]float64, sums []float64, step time.Duration) {
	var fairness []float64
	parts := make([]float64, 0, len(flows))
	for k, sum := range sums {
		parts = parts[:0]
		for i := range flows {
			if carried[i][k] >= 0 {
				parts = append(parts, carried[i][k])
			}
		}
		if j, ok := stat.Jain(parts); ok && sum > 0 && len(parts) > 1 {
			fairness = append(fairness, j)
		}
	}
	if len(fairness) == 0 {
		return
	}
	slices.Sort(fairness)
	g.Detail.Grid = &Grid{Interval: step, Bins: len(fairness), FairnessMedian: quantile(fairness, 0.5), FairnessP10: quantile(fairness, 0.1)}
	for i, f := range flows {
		var shares []float64
		var mean float64
		for k, sum := range sums {
			if v := carried[i][k]; v >= 0 && sum > 0 {
				shares = append(shares, v/sum)
				mean += v / sum
			}
		}
		if n := len(shares); n > 0 {
			slices.Sort(shares)
			f.Detail.Share = &GridShare{Mean: min(mean/float64(n), 1), P10: quantile(shares, 0.1), Median: quantile(shares, 0.5), P90: quantile(shares, 0.9)}
		}
	}
}

// quantile is the quantile of sorted numbers by stat.Rule.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (sorted[i+1]-sorted[i])*(at-float64(i))
}

// pointer reads a counter at times that only grow.
type pointer struct {
	points []bufferbloat.Point
	i      int
}

func (p *pointer) bytes(at time.Duration) float64 {
	for p.i < len(p.points) && p.points[p.i].At < at {
		p.i++
	}
	return bytesAt(p.points[max(0, p.i-1):min(len(p.points), p.i+1)], at)
}

// tcpFigures sums up what TCP_INFO said of each flow of a phase.
func tcpFigures(rec *bufferbloat.Recording, recorded map[string]*bufferbloat.Flow, phase string) map[string]*TCPFigures {
	out := map[string]*TCPFigures{}
	var values []float64 // of one quantity after the other
	for i := range rec.Others {
		q := &rec.Others[i]
		_, what, ok := strings.Cut(q.Name, "::tcp_")
		if of := recorded[q.Flow]; !ok || of == nil || of.Phase != phase {
			continue
		}
		values = values[:0]
		for _, v := range q.Each {
			values = append(values, v)
		}
		if len(values) == 0 {
			continue
		}
		f := out[q.Flow]
		if f == nil {
			f = &TCPFigures{}
			out[q.Flow] = f
		}
		f.take(what, values)
	}
	return out
}

// take sums up the values of one quantity, which it puts in order of size.
func (f *TCPFigures) take(what string, sorted []float64) {
	last := sorted[len(sorted)-1]
	sort.Float64s(sorted)
	millis := func(v float64) *time.Duration { return value(time.Duration(v*1e6), v >= 0 && v < 1e12) }
	secs := func(v float64) *time.Duration { return value(time.Duration(v*1e9), v >= 0 && v < 1e9) }
	switch what {
	case "rtt":
		f.RTTMedian, f.RTTMax = millis(quantile(sorted, 0.5)), millis(sorted[len(sorted)-1])
	case "min_rtt":
		f.MinRTT = millis(sorted[0])
	case "cwnd":
		f.WindowMedian = value(quantile(sorted, 0.5), true)
	case "retransmits":
		f.Retransmits = &last
	case "delivered_ce":
		f.Marks = &last
	case "busy":
		f.Busy = secs(last)
	case "rwnd_limited":
		f.WindowLimited = secs(last)
	case "sndbuf_limited":
		f.BufferLimited = secs(last)
	}
}

// held returns which of the streams had to wait for what the others carried, and began long after the load.
func (g *Goodput) held(ph *Phase, planned *bufferbloat.PhasePlan) (w waited) {
	for i := range g.Flows {
		f := &g.Flows[i]
		// Of a recording that was cut off, the first reading is what is known.
		if !f.counted() || cmp.Or(f.Due, f.First)-ph.Start < lateStart {
			continue
		}
		k := slices.IndexFunc(planned.Flows, func(p bufferbloat.FlowPlan) bool { return p.Name == f.Name })
		if k >= 0 && planned.Flows[k].Above > 0 {
			w.flows++
			w.above, w.until = planned.Flows[k].Above, max(w.until, f.First-ph.Start)
		}
	}
	return w
}

// skip leaves out of the rates what the plan has statistics leave out of a load's beginning, and the time before streams that had to wait for long, where the
// counters tell what came after it.
func (g *Goodput) skip(ph *Phase, rec *bufferbloat.Recording) {
	var skip time.Duration
	for i := range rec.Plan.Phases {
		if p := &rec.Plan.Phases[i]; p.Name == ph.Name {
			g.waited = g.held(ph, p)
			skip = max(p.Skip, g.waited.until)
		}
	}
	if skip == 0 || !g.OK || !ph.Reached || rec.Source != nil {
		return
	}
	from := ph.Start + skip
	flows := carrying(rec, ph, g)
	whole, ok := standing(flows, from, ph.To)
	if !ok {
		return
	}
	g.skipped = skip
	for i := range g.Flows {
		f := &g.Flows[i]
		f.Rate, f.OK = bitrate.Bitrate(0), false
		for _, c := range flows {
			if c.Name == f.Name {
				f.Rate, f.OK = standing([]*bufferbloat.Flow{c}, max(from, f.First), min(ph.To, f.end))
				points := c.Readings()
				f.kept = max(0, bytesAt(points, ph.To)-bytesAt(points, from))
			}
		}
	}
	g.keep(from, ph.To)
	g.Rate = whole
	g.CountedBy = load.CountedByReads
	if g.Direction == load.Upload {
		g.CountedBy = load.CountedByAcks
	}
}

// keep makes g's figures those of what its flows carried from..to alone.
func (g *Goodput) keep(from, to time.Duration) {
	shares := make([]float64, max(g.Planned, len(g.Flows)))
	var bytes float64
	for i := range g.Flows {
		shares[i] = g.Flows[i].kept
		bytes += shares[i]
	}
	g.First, g.Last, g.Bytes = from, to, uint64(bytes)
	g.Rate, g.OK = rate(g.Bytes, from, to)
	if len(shares) > 1 {
		g.Fairness, g.HasFairness = stat.Jain(shares)
	}
}
