package iperf3

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Span is what a receiver counted of a stream's datagrams in a stretch of time.
type Span struct {
	From, To             time.Duration // since the stream's begin
	Bytes                uint64
	Received             uint64
	Lost                 int64 // less than 0 where more of those missing before came after all
	Reordered, Duplicate uint64
	Jitter               time.Duration // at its end
	Least, Most          time.Duration // delay of its datagrams, less the shortest of the stream; valid with HasDelay
	HasDelay             bool
	HasOrder             bool // Reordered and Duplicate are known
}

// Track is a Tally that also keeps how it came about, in spans of equal length. Its fields must be set before it is used.
type Track struct {
	Tally
	Every time.Duration // length of a span
	Begin time.Duration // of the stream, on the receiver's clock

	at          Tally // when the span that runs began
	ended       int   // spans
	spans       []Span
	least, most time.Duration // of the transit times in it
	some        bool
}

// maxSpans bounds what a track keeps; a longer stream's later spans are left out.
const maxSpans = 100_000

// Take counts a datagram, as Tally.Take does, in the span of its arrival.
func (t *Track) Take(d Datagram, n int, arrived time.Duration, wide bool) bool {
	t.until(arrived)
	if !t.Tally.Take(d, n, arrived, wide) {
		return false
	}
	if transit := arrived - d.Sent; !t.some {
		t.some, t.least, t.most = true, transit, transit
	} else {
		t.least, t.most = min(t.least, transit), max(t.most, transit)
	}
	return true
}

// until ends the spans that are over at a time.
func (t *Track) until(now time.Duration) {
	for t.ended < maxSpans && now-t.Begin >= time.Duration(t.ended+1)*t.Every {
		t.end(time.Duration(t.ended+1) * t.Every)
	}
}

func (t *Track) end(to time.Duration) {
	t.spans = append(t.spans, Span{From: time.Duration(t.ended) * t.Every, To: to,
		Bytes: t.Bytes - t.at.Bytes, Received: t.Received - t.at.Received, Lost: int64(t.Lost()) - int64(t.at.Lost()),
		Reordered: t.Reordered - t.at.Reordered, Duplicate: t.Duplicate - t.at.Duplicate, Jitter: t.Jitter,
		Least: t.least, Most: t.most, HasDelay: t.some, HasOrder: true})
	t.at, t.some = t.Tally, false
	t.ended++
}

// Spans returns the spans up to a time, the last of which may be short. It ends the track.
func (t *Track) Spans(now time.Duration) []Span {
	t.until(now)
	// Behind the last whole one a moment without a datagram says nothing.
	to, some := now-t.Begin, t.Received+t.Duplicate > t.at.Received+t.at.Duplicate
	if rest := to - time.Duration(t.ended)*t.Every; t.ended < maxSpans && (some || rest > t.Every/10) {
		t.end(to)
	}
	for i := range t.spans {
		if s := &t.spans[i]; s.HasDelay {
			s.Least, s.Most = s.Least-t.Tally.least, s.Most-t.Tally.least
		} else {
			s.Least, s.Most = 0, 0
		}
	}
	return t.spans
}

// Most returns the longest delay of all datagrams so far, less the shortest, or false where none came.
func (t *Tally) Most() (time.Duration, bool) { return t.most - t.least, t.begun }

// Report is a receiver's report over time, in the form in which iperf3 -J prints its intervals: what a server can send as its output. The
// spans are those of each stream of the test, in their order; a stream that this end sends on has none.
func Report(streams [][]Span) json.RawMessage {
	type stream struct {
		Start   float64 `json:"start"`
		End     float64 `json:"end"`
		Seconds float64 `json:"seconds"`
		Bytes   uint64  `json:"bytes"`
		Bits    float64 `json:"bits_per_second"`
		Jitter  float64 `json:"jitter_ms"`
		Lost    int64   `json:"lost_packets"`
		Packets int64   `json:"packets"`
		Percent float64 `json:"lost_percent"`
		Order   uint64  `json:"out_of_order"`
		Twice   uint64  `json:"duplicate_packets"`
		Least   float64 `json:"delay_change_min_ms"`
		Most    float64 `json:"delay_change_max_ms"`
		Omitted bool    `json:"omitted"`
		Sender  bool    `json:"sender"`
	}
	type interval struct {
		Streams []stream `json:"streams"`
	}
	out := struct {
		Intervals []interval `json:"intervals"`
	}{Intervals: []interval{}}
	for k := 0; ; k++ {
		var i interval
		some := false
		for _, spans := range streams {
			if k >= len(spans) {
				i.Streams = append(i.Streams, stream{Sender: len(spans) == 0})
				continue
			}
			some = true
			s := spans[k]
			one := stream{Start: s.From.Seconds(), End: s.To.Seconds(), Seconds: (s.To - s.From).Seconds(), Bytes: s.Bytes, Jitter: ms(s.Jitter),
				Lost: s.Lost, Packets: int64(s.Received) + s.Lost, Order: s.Reordered, Twice: s.Duplicate, Least: ms(s.Least), Most: ms(s.Most)}
			if one.Seconds > 0 {
				one.Bits = math.Round(8 * float64(s.Bytes) / one.Seconds)
			}
			if one.Packets > 0 {
				one.Percent = 100 * float64(s.Lost) / float64(one.Packets)
			}
			i.Streams = append(i.Streams, one)
		}
		if !some {
			break
		}
		out.Intervals = append(out.Intervals, i)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil // finite numbers only: it does not occur
	}
	return b
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// ParseReport reads what a server run with -J sent as its output: the spans of each of n streams, in their order, that it received on. A report of
// another shape is an error.
func ParseReport(b []byte, n int) ([][]Span, error) {
	type stream struct {
		Start, End      float64
		Bytes           uint64
		Jitter          float64  `json:"jitter_ms"`
		Lost            int64    `json:"lost_packets"`
		Packets         int64    `json:"packets"`
		Order           *uint64  `json:"out_of_order"`
		Twice           *uint64  `json:"duplicate_packets"`
		Least           *float64 `json:"delay_change_min_ms"`
		Most            *float64 `json:"delay_change_max_ms"`
		Omitted, Sender bool
	}
	var in struct {
		Intervals []struct{ Streams []stream }
	}
	if at, ok := tooDeep(b); ok {
		return nil, &FormatError{"report", at, fmt.Sprintf("nested more than %d deep", maxNesting)}
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, &FormatError{"report", 0, err.Error()}
	}
	out := make([][]Span, n)
	for k, i := range in.Intervals {
		if len(i.Streams) != n {
			return nil, &FormatError{"report", 0, fmt.Sprintf("interval %d has %d streams, and the test %d", k+1, len(i.Streams), n)}
		}
		for j, s := range i.Streams {
			if s.Sender || s.Omitted || s.End <= s.Start {
				continue
			}
			if !(s.Start >= 0 && s.End <= maxCount && s.Jitter >= 0 && s.Jitter <= 1e9) || s.Packets-s.Lost < 0 {
				return nil, &FormatError{"report", 0, fmt.Sprintf("interval %d makes no sense", k+1)}
			}
			span := Span{From: seconds(s.Start), To: seconds(s.End), Bytes: s.Bytes, Received: uint64(s.Packets - s.Lost), Lost: s.Lost,
				Jitter: seconds(s.Jitter / 1e3)}
			if s.Order != nil && s.Twice != nil {
				span.Reordered, span.Duplicate, span.HasOrder = *s.Order, *s.Twice, true
			}
			if s.Least != nil && s.Most != nil && math.Abs(*s.Least) < 1e9 && math.Abs(*s.Most) < 1e9 && span.Received > 0 {
				span.Least, span.Most, span.HasDelay = seconds(*s.Least/1e3), seconds(*s.Most/1e3), true
			}
			out[j] = append(out[j], span)
		}
	}
	return out, nil
}

func seconds(f float64) time.Duration { return time.Duration(math.Round(f * float64(time.Second))) }
