package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
)

// mostStreams is how many streams of a direction the tables list; of more they have the sums alone.
const mostStreams = 24

// detailed reports whether the result is of a plan whose streams and sums deserve tables of their own: any but a speedtest.
func (r *Result) detailed() bool {
	if r.Source != nil || r.Plan.Name == "speedtest" {
		return false
	}
	for i := range r.Phases {
		for j := range r.Phases[i].Goodput {
			if r.Phases[i].Goodput[j].Detail != nil {
				return true
			}
		}
	}
	return false
}

func sumColumns() []string {
	return []string{"Load", "Sum of", "Streams", "Mbps", "Mean Mbps", "Fairness", "In 100 ms", "Slew ms", "Slew max"}
}

// sumRows are the sums of each direction of each load, of its groups and marks, and of both directions.
func (r *Result) sumRows() [][]string {
	var out [][]string
	for i := range r.Phases {
		p := &r.Phases[i]
		for j := range p.Goodput {
			if g := &p.Goodput[j]; g.Detail != nil {
				out = append(out, g.sumRows(printable(p.Name))...)
			}
		}
		if t := p.Total; t != nil {
			row := []string{printable(p.Name), "all", none, mbps(bitrate.Bitrate(t.Goodput)), none, none, none, none, none}
			with := []string{printable(p.Name), "all, with ACKs (an estimate)", none, mbps(bitrate.Bitrate(t.WithAcks)), none, none, none, none, none}
			out = append(out, row, with)
		}
	}
	return out
}

func (g *Goodput) sumRows(phase string) [][]string {
	d := g.Detail
	row := []string{phase, g.Direction.String(), streamCount(g.Flowed, g.Planned), none, none, none, none, none, none}
	if g.OK {
		row[3] = mbps(g.Rate)
		if g.CutShort() {
			row[3] += " (cut short)"
		}
		if g.Flowed > 0 {
			row[4] = mbps(g.Rate / bitrate.Bitrate(g.Flowed))
		}
	}
	if g.HasFairness {
		row[5] = fairness(g.Fairness)
	}
	if d.Grid != nil {
		row[6] = fairness(d.Grid.FairnessMedian)
		if d.Grid.Interval != fineGrid {
			row[6] += " (" + seconds(d.Grid.Interval) + ")"
		}
	}
	if d.SlewMedian != nil {
		row[7], row[8] = briefMS(*d.SlewMedian), briefMS(*d.SlewMax)
	}
	out := [][]string{row}
	for _, part := range d.Groups {
		if g.alone(part.By) {
			continue
		}
		name := printable(part.Name)
		switch {
		case name != "":
		case part.By == "group":
			name = "no group"
		default:
			name = "not reached"
		}
		row := []string{phase, g.Direction.String() + " " + name, streamCount(part.Flowed, part.Planned), none, none, none, none, none, none}
		if part.Goodput != nil {
			row[3] = mbps(bitrate.Bitrate(*part.Goodput))
			if part.Flowed > 0 {
				row[4] = mbps(bitrate.Bitrate(*part.Goodput) / bitrate.Bitrate(part.Flowed))
			}
		}
		if part.Fairness != nil {
			row[5] = fairness(*part.Fairness)
		}
		out = append(out, row)
	}
	return out
}

// alone reports whether every part of the streams has one stream, which the table of streams shows as well.
func (g *Goodput) alone(by string) bool {
	for _, part := range g.Detail.Groups {
		if part.By == by && part.Planned > 1 {
			return false
		}
	}
	return len(g.Flows) <= mostStreams
}

func streamCount(flowed, planned int) string {
	if flowed == planned {
		return strconv.Itoa(planned)
	}
	return fmt.Sprintf("%d of %d", flowed, planned)
}

func fairness(j float64) string { return strconv.FormatFloat(j, 'f', 3, 64) }

func streamColumns() []string {
	return []string{"Stream", "Class", "Mbps", "Share %", "10pct", "90pct", "Begun at", "Ran for", "Slew ms", "sRTT ms", "Resent", "Control", "Server"}
}

// streamRows has a row for each stream of each load, and says which loads have too many.
func (r *Result) streamRows() (rows [][]string, left string) {
	var many []string
	for i := range r.Phases {
		p := &r.Phases[i]
		for j := range p.Goodput {
			g := &p.Goodput[j]
			if g.Detail == nil {
				continue
			}
			if len(g.Flows) > mostStreams {
				many = append(many, fmt.Sprintf("%d of %s, %s", len(g.Flows), printable(p.Name), g.Direction))
				continue
			}
			for k := range g.Flows {
				if f := &g.Flows[k]; f.Detail != nil {
					rows = append(rows, f.cells())
				}
			}
		}
	}
	if len(many) > 0 {
		left = fmt.Sprintf("Streams that are too many to be listed, and stand in the JSON document: %s", strings.Join(many, "; "))
	}
	return rows, left
}

func (f *Flow) cells() []string {
	d := f.Detail
	row := []string{printable(f.Name), printable(d.DSCP), none, none, none, none, none, none, none, none, none, none, printable(d.Server)}
	if f.OK {
		row[2] = mbps(f.Rate)
		if !f.Whole {
			row[2] += " (cut short)"
		}
	}
	if s := d.Share; s != nil {
		for i, v := range []float64{s.Mean, s.P10, s.P90} {
			row[3+i] = strconv.FormatFloat(v*100, 'f', 1, 64)
		}
	}
	if d.Due != nil {
		row[6] = sec(*d.Due)
	}
	if end := max(f.Last, f.Stopped); f.Flowed && end > f.First {
		row[7] = sec(end - f.First)
	}
	if d.Slew != nil {
		row[8] = briefMS(*d.Slew)
	}
	if d.TCP != nil && d.TCP.RTTMedian != nil {
		row[9] = briefMS(*d.TCP.RTTMedian)
	}
	if f.HasRetransmits {
		row[10] = strconv.FormatUint(f.Retransmits, 10)
	}
	if c := f.CongestionControl; c != "" {
		row[11] = printable(c)
	} else if d.Control != "" {
		row[11] = printable(d.Control) + "?"
	}
	return row
}

// sec is a time in seconds with one decimal.
func sec(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) }

// writeStreams prints the tables of sums and of streams.
func (r *Result) writeStreams(table func(head []string, rows [][]string), line func(string)) {
	if !r.detailed() {
		return
	}
	table(sumColumns(), r.sumRows())
	rows, left := r.streamRows()
	if len(rows) > 0 {
		table(streamColumns(), rows)
	}
	if left != "" {
		line(left)
	}
}

// added is how much the median of a series in a load lies above its idle one, for series that have no induced latency of their own; "-" where that is not known.
func (r *Result) added(p *Phase, l *Latency) string {
	if !r.detailed() || p.Kind != bufferbloat.Load || !p.UnderLoad || !l.Has(Median) {
		return none
	}
	idle := r.baseline(bufferbloat.Idle)
	if idle == nil {
		return none
	}
	for i := range idle.Latency {
		if b := &idle.Latency[i]; b.Series == l.Series && b.Has(Median) {
			return signed(l.Median - b.Median)
		}
	}
	return none
}
