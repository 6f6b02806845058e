package foreign

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/probe"
	"bufferbloat/report"
)

// irttFile is what is read of irtt's JSON, of versions 0.9.0 to 0.9.2. Times are nanoseconds.
type irttFile struct {
	Version struct {
		IRTT string `json:"irtt"`
	} `json:"version"`
	Config struct {
		Remote string `json:"remote_address"`
		Params struct {
			Interval time.Duration `json:"interval"`
			DSCP     int           `json:"dscp"` // the whole byte
		} `json:"params"`
		Supplied struct {
			Remote string `json:"remote_address"`
		} `json:"supplied"`
	} `json:"config"`
	Stats struct {
		Start      json.RawMessage `json:"start_time"` // a string, or from 0.9.2 on an object
		Sent       int             `json:"packets_sent"`
		Duplicates uint64          `json:"duplicates"`
		Late       uint64          `json:"late_packets"` // replies that came after the reply to a later request
	} `json:"stats"`
	Trips []irttTrip `json:"round_trips"`
}

type irttTrip struct {
	Seq        uint64 `json:"seqno"`
	Lost       string `json:"lost"`
	Timestamps struct {
		Client, Server struct {
			Send, Receive irttStamp
		}
	} `json:"timestamps"`
	Delay struct {
		RTT     *time.Duration `json:"rtt"`
		Send    *time.Duration `json:"send"`
		Receive *time.Duration `json:"receive"`
	} `json:"delay"`
}

type irttStamp struct {
	Wall      int64         `json:"wall"`
	Monotonic time.Duration `json:"monotonic"`
}

func readIRTT(b []byte) (*report.Result, *bufferbloat.Recording, error) {
	var f irttFile
	if err := decode(b, &f); err != nil {
		return nil, nil, err
	}
	switch {
	case len(f.Trips) == 0:
		return nil, nil, fmt.Errorf("irtt: there are no round trips in the file: nothing was measured, or they were left out")
	case len(f.Trips) > maxSamples:
		return nil, nil, fmt.Errorf("irtt: more than %d round trips", maxSamples)
	case f.Stats.Sent != 0 && f.Stats.Sent != len(f.Trips):
		return nil, nil, fmt.Errorf("irtt: %d packets were sent, and there are %d round trips: the file is not whole", f.Stats.Sent, len(f.Trips))
	}
	remote := f.Config.Supplied.Remote
	if remote == "" {
		remote = f.Config.Remote
	}
	out := &pings{source: report.Source{Program: clip("irtt " + f.Version.IRTT), Host: clip(remote)}}
	s := bufferbloat.ProbeSeries{Name: "irtt", Kind: "irtt", Target: clip(remote), Primary: true, Tally: probe.Tally{Duplicates: f.Stats.Duplicates, Reordered: f.Stats.Late}}
	if a, err := netip.ParseAddrPort(f.Config.Remote); err == nil {
		s.Address = a.Addr().String()
	}
	if i := f.Config.Params.Interval; i > 0 && i <= maxRTT {
		s.Interval = i
	}
	if d := f.Config.Params.DSCP; d >= 0 && d <= 255 {
		s.DSCP = dscp.FromByte(uint8(d)).String()
	}
	samples, timed, err := f.samples()
	if err != nil {
		return nil, nil, err
	}
	s.Samples = samples
	if n := f.doubtUp(samples); n > 0 {
		out.findings = append(out.findings, finding("loss_direction", bufferbloat.Note,
			"%d losses that irtt calls upstream stand near reordered requests, of which its server keeps no right account: their direction is not known", n))
	}
	out.timed, out.series, out.resolution = timed, []bufferbloat.ProbeSeries{s}, []time.Duration{time.Nanosecond}
	if timed {
		out.started = f.started()
	}
	out.source.Untold = []string{"whether the clocks of the two hosts agree, so one-way delays are used for nothing but their changes"}
	r, rec := out.result()
	return r, rec, nil
}

// started is the wall clock's reading at the start, zero where there is none.
func (f *irttFile) started() time.Time {
	var text string
	if json.Unmarshal(f.Stats.Start, &text) == nil {
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil && plausible(t) {
			return t.UTC()
		}
		return time.Time{}
	}
	var stamp irttStamp
	if json.Unmarshal(f.Stats.Start, &stamp) == nil && stamp.Wall > 0 {
		return time.Unix(0, stamp.Wall).UTC()
	}
	return time.Time{}
}

// plausible reports whether a date can be printed in four digits.
func plausible(t time.Time) bool { return t.Year() >= 1970 && t.Year() <= 9999 }

// samples turns the round trips into samples, in the order of their numbers, which must be 0, 1, 2, ...
func (f *irttFile) samples() (out []probe.Sample, timed bool, err error) {
	first := f.Trips[0].Timestamps.Client.Send
	mono, wall := true, true
	for i := range f.Trips {
		s := f.Trips[i].Timestamps.Client.Send
		mono, wall = mono && s.Monotonic > 0, wall && s.Wall > 0
	}
	for i := range f.Trips {
		t := &f.Trips[i]
		if t.Seq != uint64(i) {
			return nil, false, fmt.Errorf("irtt: round trip %d has the number %d: some are missing", i, t.Seq)
		}
		s := probe.Sample{Seq: t.Seq, Due: time.Duration(i)}
		send := t.Timestamps.Client.Send
		switch {
		case mono:
			s.Due = send.Monotonic - first.Monotonic
		case wall:
			s.Due = time.Duration(send.Wall - first.Wall)
		}
		if s.Due < 0 || s.Due > 400*24*time.Hour {
			return nil, false, fmt.Errorf("irtt: request %d was sent %v after the first: the clock was set", i, s.Due)
		}
		s.Sent = s.Due
		switch t.Lost {
		case "false":
			if t.Delay.RTT == nil {
				return nil, false, fmt.Errorf("irtt: round trip %d was answered and has no time", i)
			}
			s.Outcome, s.RTT = probe.Received, *t.Delay.RTT
			if s.RTT > maxRTT {
				return nil, false, fmt.Errorf("irtt: a round trip of %v", s.RTT)
			}
			if t.Delay.Send != nil && t.Delay.Receive != nil {
				s.Up, s.Down, s.HasOneWay = *t.Delay.Send, *t.Delay.Receive, true
			}
		case "true":
			s.Outcome = probe.Lost
		case "true_up":
			s.Outcome = probe.LostUp
		case "true_down":
			s.Outcome = probe.LostDown
		default:
			return nil, false, &Error{Text: t.Lost, Why: fmt.Sprintf("no kind of loss (round trip %d)", i)}
		}
		out = append(out, s)
	}
	return out, mono || wall, nil
}

// window is how many requests irtt's server remembers.
const window = 64

// doubtUp takes back the direction of upstream losses that may be none: the server's account of the requests before one goes wrong where requests were
// reordered, and shows some that arrived as missing. It returns how many it took back.
func (f *irttFile) doubtUp(samples []probe.Sample) (doubted int) {
	odd := f.reordered()
	for i := range samples {
		if samples[i].Outcome != probe.LostUp {
			continue
		}
		for j := max(0, i-window); j < min(len(samples), i+window); j++ {
			if odd[j] {
				samples[i].Outcome = probe.Lost
				doubted++
				break
			}
		}
	}
	return doubted
}

// reordered marks the requests that reached the server after a later one, all of them where the server's stamps are missing and some
// replies came out of order.
func (f *irttFile) reordered() []bool {
	odd := make([]bool, len(f.Trips))
	var highest time.Duration
	for i := range f.Trips {
		t := &f.Trips[i]
		if t.Lost != "false" {
			continue
		}
		at := t.Timestamps.Server.Receive.Monotonic
		if at == 0 {
			at = t.Timestamps.Server.Send.Monotonic
		}
		if at == 0 {
			for j := range odd {
				odd[j] = f.Stats.Late > 0
			}
			return odd
		}
		odd[i] = at < highest
		highest = max(highest, at)
	}
	return odd
}
