package bufferbloat

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
)

// What this run's own packets may have taken of a device at most, beyond the payload that its flows delivered. What is more is not its own.
const (
	ownOverhead = 1.12 // headers of full-size segments take 4.6 %; the rest is for what is sent twice and seen here
	ownACKs     = 0.06 // of the payload in the other direction: an acknowledgement for each full-size segment
	ownPacket   = 250  // bytes, of each probe of one packet in each direction, beyond 1.05 of its payload, which may come in fragments
	ownExchange = 1000 // bytes, of each probe of several small packets
	ownTLS      = 16e3 // bytes, of a handshake, certificates included
	ownSegment  = 1600 // bytes, of each segment that was sent again

	// competingShare is the share of the direction's highest rate from which on other traffic is worth a finding, and competingRate the least rate.
	competingShare = 0.05
	competingRate  = 100 * bitrate.Kbit
)

// judgeCompeting says in which phases a device carried more than this run: traffic that took part of the link, and had its own part in the queue.
func (r *Recording) judgeCompeting(device string) (found []Finding) {
	for _, way := range []struct {
		counter   string
		direction load.Direction
		verb      string
	}{{"::rx_bytes", load.Download, "received"}, {"::tx_bytes", load.Upload, "sent"}} {
		var highest float64 // bytes a second, in any phase
		for _, ph := range r.Phases {
			if n, ok := r.counted(device+way.counter, ph.From, ph.To); ok {
				highest = max(highest, n/(ph.To-ph.From).Seconds())
			}
		}
		for _, ph := range r.Phases {
			all, ok := r.counted(device+way.counter, ph.From, ph.To)
			own, told := r.ownBytes(&ph, way.direction)
			if !ok || !told || ph.Kind == Drain {
				continue
			}
			length := ph.To - ph.From
			others := bitrate.Of(uint64(max(0, all-own)), length)
			if others < competingRate || others.Mbps() < competingShare*highest*8/1e6 {
				continue
			}
			found = append(found, Finding{Code: "competing_traffic", Severity: Weakens, Phase: ph.Name, Text: fmt.Sprintf(
				"%s: of the %.3g Mbit/s that %s %s, at least %.3g were not this run's: other traffic shared the link and its queue",
				ph.Name, bitrate.Of(uint64(all), length).Mbps(), device, way.verb, others.Mbps())})
		}
	}
	return found
}

// ownBytes returns what this run's packets took of a direction in a phase's window at most, false where that can't be told.
func (r *Recording) ownBytes(ph *Phase, d load.Direction) (bytes float64, ok bool) {
	for i := range r.Flows {
		f := &r.Flows[i]
		if f.Phase != ph.Name {
			continue
		}
		points := f.Readings()
		if !r.fullSize(f.Name) || !f.Result.Flowed || len(points) == 0 {
			return 0, false
		}
		at := func(t time.Duration) float64 { return f.bytesAt(points, t) }
		n := at(ph.To) - at(ph.From)
		if f.Direction != d {
			bytes += n * ownACKs
			continue
		}
		if d == load.Upload {
			n += at(ph.To+maxDrain) - at(ph.To) // it has left this host and waits in a queue on the way
		}
		bytes += n*ownOverhead + float64(f.Result.Retransmits)*ownSegment
	}
	for i := range r.Probes {
		sent := 0
		for s := range r.Probes[i].All() {
			if s.Sent >= ph.From && s.Sent < ph.To {
				sent++
			}
		}
		each, told := r.Probes[i].ownBytes()
		if sent > 0 && !told {
			return 0, false
		}
		bytes += float64(sent) * each
	}
	return bytes + r.loopBytes(ph.From, ph.To), true
}

// ownBytes is what each probe takes of a direction at most, false where that is as much as the object has that it fetches.
func (s *ProbeSeries) ownBytes() (each float64, told bool) {
	switch ProbeKind(s.Kind) {
	case ICMP, ICMPTimestamp, IRTT, TCPRR, UDPRR:
		return 1.05*float64(s.Size) + ownPacket, true
	case TLS:
		return ownTLS, true
	case Fetch, Page:
		return 0, false
	}
	return ownExchange, true
}

// fullSize reports whether a flow's packets are as large as the path lets them be, so that headers are a small part of them.
func (r *Recording) fullSize(flow string) bool {
	for i := range r.Plan.Phases {
		for _, f := range r.Plan.Phases[i].Flows {
			if f.Name == flow {
				return slices.Contains([]Protocol{"", Netperf, IPerf3, HTTP, HTTP2}, f.Protocol)
			}
		}
	}
	return false
}

// bytesAt is the flow's counter at a time, between its readings as if it grew evenly.
func (f *Flow) bytesAt(points []Point, t time.Duration) float64 {
	i, _ := slices.BinarySearchFunc(points, t, func(p Point, t time.Duration) int { return cmp.Compare(p.At, t) })
	switch {
	case i == len(points):
		return float64(max(f.Result.Bytes, points[i-1].Bytes))
	case i == 0:
		return 0
	}
	from, to := points[i-1], points[i]
	return between(t, from.At, to.At, float64(from.Bytes), float64(to.Bytes))
}

// between interpolates.
func between(t, from, to time.Duration, a, b float64) float64 {
	if to <= from {
		return b
	}
	return a + (b-a)*float64(t-from)/float64(to-from)
}

// counted returns by how much a counter among the quantities grew from one time to another, false where it was not read about then, or began
// anew meanwhile.
func (r *Recording) counted(name string, from, to time.Duration) (float64, bool) {
	const least = time.Second // below it the times of the readings matter
	q := r.other(name)
	if q == nil || to-from < least {
		return 0, false
	}
	times, values := q.Columns()
	at := func(t time.Duration) (float64, bool) {
		i, _ := slices.BinarySearch(times, t)
		if i == 0 || i == len(times) || times[i]-times[i-1] > 10*deviceStep {
			return 0, false
		}
		return between(t, times[i-1], times[i], values[i-1], values[i]), true
	}
	a, ok := at(from)
	b, ok2 := at(to)
	if i, _ := slices.BinarySearch(times, to); !ok && ok2 && i > 0 && from <= times[0] && times[0]-from < least/2 {
		a, ok = values[0], true // a run's first reading is at its start
	}
	if !ok || !ok2 {
		return 0, false
	}
	for i := 1; i < len(times); i++ {
		if times[i] > from && times[i-1] < to && values[i] < values[i-1] {
			return 0, false
		}
	}
	return b - a, true
}
