package foreign

import (
	"fmt"
	"math"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report"
)

// iperfFile is what is read of iperf3's JSON, of versions 3.0 on.
type iperfFile struct {
	Error string `json:"error"`
	Start struct {
		Version   string `json:"version"`
		Timestamp struct {
			Secs float64 `json:"timesecs"`
		} `json:"timestamp"`
		ConnectingTo struct {
			Host string `json:"host"`
		} `json:"connecting_to"`
		Accepted struct {
			Host string `json:"host"`
		} `json:"accepted_connection"`
		Test struct {
			Protocol string  `json:"protocol"`
			Streams  int     `json:"num_streams"`
			Reverse  int     `json:"reverse"`
			Bidir    int     `json:"bidir"`
			Omit     float64 `json:"omit"`
		} `json:"test_start"`
	} `json:"start"`
	Intervals []struct {
		Streams []iperfSum `json:"streams"`
	} `json:"intervals"`
	End struct {
		Streams []struct {
			Sender   *iperfSum `json:"sender"`
			Receiver *iperfSum `json:"receiver"`
			UDP      *iperfSum `json:"udp"`
		} `json:"streams"`
		Received        *iperfSum `json:"sum_received"`
		ReceivedReverse *iperfSum `json:"sum_received_bidir_reverse"`
		CPU             *struct {
			Host   float64 `json:"host_total"`
			Remote float64 `json:"remote_total"`
		} `json:"cpu_utilization_percent"`
		SenderControl string `json:"sender_tcp_congestion"`
	} `json:"end"`
}

// iperfSum is a stream, or all of a direction, over some time. Seconds and bytes are floats, because old versions print them so.
type iperfSum struct {
	Socket      int      `json:"socket"`
	Start       float64  `json:"start"`
	End         float64  `json:"end"`
	Bytes       float64  `json:"bytes"`
	Retransmits *float64 `json:"retransmits"`
	MinRTT      float64  `json:"min_rtt"` // microseconds, of the sender's kernel
	MaxRTT      float64  `json:"max_rtt"`
	Jitter      float64  `json:"jitter_ms"`
	Lost        float64  `json:"lost_packets"`
	Packets     float64  `json:"packets"`
	Omitted     bool     `json:"omitted"`
	Sender      *bool    `json:"sender"` // the host that wrote the file sends
}

// maxTest bounds the length of a test.
const maxTest = 400 * 24 * 3600 // seconds

// check says what cannot be, "" where nothing is odd.
func (s *iperfSum) check() string {
	switch {
	case s.Start < 0 || s.End < s.Start || s.End > maxTest:
		return fmt.Sprintf("from %v s to %v s is no time", s.Start, s.End)
	case s.Bytes < 0 || s.Bytes > 1<<53 || s.Bytes != math.Trunc(s.Bytes):
		return fmt.Sprintf("%v is no number of bytes", s.Bytes)
	case s.Packets < 0 || s.Lost < 0 || s.Packets > 1<<53 || s.Lost > s.Packets:
		return fmt.Sprintf("%v of %v packets lost", s.Lost, s.Packets)
	}
	return ""
}

func secs(v float64) time.Duration { return time.Duration(math.Round(v * 1e9)) }

func readIperf3(b []byte) (*report.Result, *bufferbloat.Recording, error) {
	var f iperfFile
	if err := decode(b, &f); err != nil {
		return nil, nil, err
	}
	if f.Error != "" {
		return nil, nil, fmt.Errorf("iperf3 ended with an error, so its figures do not stand: %s", quote(f.Error))
	}
	if f.Start.Accepted.Host != "" {
		return nil, nil, fmt.Errorf("this is the file of an iperf3 server; directions are told from the client: use the client's file")
	}
	rec := &bufferbloat.Recording{CPU: bufferbloat.CPUSeries{Why: "told for the whole test only"}}
	if t := f.Start.Timestamp.Secs; t > 0 && t < 9e9 {
		rec.Started = time.Unix(int64(t), 0).UTC()
	}
	flows, err := f.flows()
	if err != nil {
		return nil, nil, err
	}
	rec.Flows = flows
	var end time.Duration
	var down, up bool
	for _, fl := range flows {
		end = max(end, fl.Result.Last)
		down, up = down || fl.Direction == load.Download, up || fl.Direction == load.Upload
	}
	name := "upload"
	switch {
	case down && up:
		name = "both"
	case down:
		name = "download"
	}
	for i := range rec.Flows {
		rec.Flows[i].Phase = name
	}
	rec.Phases = []bufferbloat.Phase{{Name: name, Kind: bufferbloat.Load, End: end, To: end}}
	rec.Ended = end
	rec.Findings = f.findings(name)
	r := report.New(rec)
	r.Source = &report.Source{Program: clip("iperf3 " + strings.TrimPrefix(f.Start.Version, "iperf ")), Host: clip(f.Start.ConnectingTo.Host),
		Untold: []string{"the latency: iperf3 sends no probe"}}
	if up {
		r.Source.Untold = append(r.Source.Untold, "how much of an upload had arrived at each moment")
	}
	var kept []bufferbloat.Finding
	for _, x := range r.Findings {
		if x.Code != "no_probes" {
			kept = append(kept, x)
		}
	}
	r.Findings = kept
	for i := range r.Induced {
		r.Induced[i].Why = "iperf3 sends no probe"
	}
	return r, rec, nil
}

func quote(s string) string { return fmt.Sprintf("%+q", clip(s)) }

// flows are the streams of a TCP test, and one flow for each direction of a UDP test, of which only the sum says what was received.
func (f *iperfFile) flows() ([]bufferbloat.Flow, error) {
	var out []bufferbloat.Flow
	counts := map[load.Direction]int{}
	add := func(d load.Direction, got *iperfSum) *bufferbloat.Flow {
		counts[d]++
		fl := bufferbloat.Flow{Name: fmt.Sprintf("%v %d", d, counts[d]), Direction: d, Result: bufferbloat.FlowResult{CongestionControl: clip(f.End.SenderControl)}}
		if got != nil && got.Bytes > 0 {
			fl.Started = secs(got.Start)
			fl.Result.Flowed, fl.Result.Bytes = true, uint64(got.Bytes)
			fl.Result.Connected, fl.Result.First, fl.Result.Last, fl.Result.Stopped = secs(got.Start), secs(got.Start), secs(got.End), secs(got.End)
			fl.Result.CountedBy = load.CountedByReads
			if d == load.Upload {
				fl.Result.CountedBy = load.CountedByServer
			}
		}
		out = append(out, fl)
		return &out[len(out)-1]
	}
	var sums [3]float64 // by direction
	for i := range f.End.Streams {
		s := &f.End.Streams[i]
		for _, part := range []*iperfSum{s.Sender, s.Receiver, s.UDP} {
			if part == nil {
				continue
			}
			if why := part.check(); why != "" {
				return nil, fmt.Errorf("iperf3: stream %d: %s", i+1, why)
			}
		}
		if s.UDP != nil {
			continue
		}
		if s.Sender == nil || s.Receiver == nil {
			return nil, fmt.Errorf("iperf3: stream %d lacks what its sender or its receiver counted", i+1)
		}
		d := f.direction(s.Sender.Sender)
		fl := add(d, s.Receiver)
		sums[d] += s.Receiver.Bytes
		if n := s.Sender.Retransmits; n != nil && *n >= 0 && *n <= 1<<53 {
			fl.Result.Retransmits, fl.Result.HasRetransmits = uint64(*n), true
		}
		if d == load.Download {
			fl.Points = f.points(s.Receiver.Socket)
		}
	}
	for _, sum := range []struct {
		s *iperfSum
		d load.Direction
	}{{f.End.Received, f.direction(nil)}, {f.End.ReceivedReverse, load.Download}} {
		if sum.s == nil {
			continue
		}
		if why := sum.s.check(); why != "" {
			return nil, fmt.Errorf("iperf3: the sum of the %v: %s", sum.d, why)
		}
		if f.Start.Test.Protocol == "UDP" {
			add(sum.d, sum.s)
			continue
		}
		if math.Abs(sums[sum.d]-sum.s.Bytes) > sum.s.Bytes/1000+1 {
			return nil, fmt.Errorf("iperf3: the %v has %.0f bytes by its streams and %.0f by their sum: one of them is of something else", sum.d, sums[sum.d], sum.s.Bytes)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("iperf3: the file does not say what was received: the test did not run to its end, or iperf3 is too old")
	}
	return out, nil
}

// direction of a stream whose file's host sends, or of all where it is not told.
func (f *iperfFile) direction(sender *bool) load.Direction {
	up := f.Start.Test.Reverse == 0
	if sender != nil {
		up = *sender
	}
	if up {
		return load.Upload
	}
	return load.Download
}

// points are the readings of a stream that this host received.
func (f *iperfFile) points(socket int) []bufferbloat.Point {
	var out []bufferbloat.Point
	var total float64
	for i := range f.Intervals {
		for j := range f.Intervals[i].Streams {
			s := &f.Intervals[i].Streams[j]
			if s.Socket != socket || s.Omitted || s.check() != "" {
				continue
			}
			if total += s.Bytes; total > 1<<53 {
				return nil
			}
			out = append(out, bufferbloat.Point{At: secs(s.End), Bytes: uint64(total)})
		}
	}
	return out
}

// findings are what iperf3 tells beside the rates.
func (f *iperfFile) findings(phase string) (out []bufferbloat.Finding) {
	if f.End.CPU != nil {
		for _, c := range []struct {
			who, code string
			percent   float64
		}{{"here", "cpu_client", f.End.CPU.Host}, {"on the server", "cpu_server", f.End.CPU.Remote}} {
			if c.percent >= 95 && c.percent < 1e6 {
				out = append(out, bufferbloat.Finding{Code: c.code, Severity: bufferbloat.Weakens, Phase: phase,
					Text: fmt.Sprintf("iperf3 took %.0f%% of a CPU %s: it may be the limit, not the link", c.percent, c.who)})
			}
		}
	}
	low, high := math.Inf(1), 0.0
	for i := range f.End.Streams {
		if s := f.End.Streams[i].Sender; s != nil && s.MinRTT > 0 && s.MaxRTT >= s.MinRTT && s.MaxRTT < 3.6e9 {
			low, high = min(low, s.MinRTT), max(high, s.MaxRTT)
		}
	}
	if high > 0 {
		out = append(out, bufferbloat.Finding{Code: "kernel_rtt", Severity: bufferbloat.Note, Phase: phase,
			Text: fmt.Sprintf("the kernel of a sender saw smoothed RTTs of its own streams from %.3f to %.3f ms; no probe did", low/1e3, high/1e3)})
	}
	for _, s := range []*iperfSum{f.End.Received, f.End.ReceivedReverse} {
		if f.Start.Test.Protocol == "UDP" && s != nil && s.Packets > 0 && s.Jitter >= 0 && s.Jitter < 3.6e6 {
			out = append(out, bufferbloat.Finding{Code: "load_loss", Severity: bufferbloat.Note, Phase: phase,
				Text: fmt.Sprintf("of the load itself %.0f of %.0f datagrams were lost (%.2f%%); RTP jitter %.3f ms (RFC 3550)", s.Lost, s.Packets, 100*s.Lost/s.Packets, s.Jitter)})
		}
	}
	return out
}
