package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
)

const (
	second = time.Second
	msec   = time.Millisecond
)

// maker builds a Recording by hand: phases one after the other, with delays and flows as told.
type maker struct {
	rec *bufferbloat.Recording
	at  time.Duration
	rnd *rand.Rand
}

// newMaker returns a maker of a speedtest that has the series.
func newMaker(o bufferbloat.SpeedtestOptions, series ...bufferbloat.ProbeSeries) *maker {
	o.Server.Host, o.Server.NetperfPort, o.Server.IRTTPort = "lab", 12865, 2112
	if o.Interval == 0 {
		o.Interval = 100 * msec
	}
	if o.Probe == "" {
		o.Probe = bufferbloat.ICMP
	}
	if len(series) == 0 {
		series = []bufferbloat.ProbeSeries{{Name: "icmp", Kind: "icmp", Primary: true}}
	}
	for i := range series {
		s := &series[i]
		s.Target, s.Address, s.Interval, s.DSCP = "lab", "192.0.2.2", o.Interval, "CS0"
	}
	return &maker{rnd: rand.New(rand.NewPCG(1, 2)), rec: &bufferbloat.Recording{
		Version: "1.0.0", Started: time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC), Plan: bufferbloat.Speedtest(o),
		Path:   bufferbloat.Path{Host: "lab", Address: "192.0.2.2", Family: "IPv4", Stack: "kernel", Server: "netserver 2.7", Setup: 40 * msec},
		Client: bufferbloat.HostFacts{OS: "linux", Arch: "amd64", Kernel: "6.18", CPUs: 2, CongestionControl: "cubic"},
		CPU:    bufferbloat.CPUSeries{Available: true},
		Probes: series,
	}}
}

// phase adds a phase of the plan: mid is the middle of its delays, swing how far a slow wave leads from it.
func (m *maker) phase(name string, length, mid, swing time.Duration) *bufferbloat.Phase {
	p := bufferbloat.Phase{Name: name, Start: m.at, End: m.at + length, From: m.at, To: m.at + length}
	for _, planned := range m.rec.Plan.Phases {
		if planned.Name == name {
			p.Kind = planned.Kind
		}
	}
	if p.Kind == bufferbloat.Load {
		p.From, p.To = p.Start+second/2, p.End
	}
	for i := range m.rec.Probes {
		m.probe(&m.rec.Probes[i], p, mid, swing)
	}
	for at := m.at + second; at <= p.End; at += second {
		busy := 0.05
		if p.Kind == bufferbloat.Load {
			busy = 0.2
		}
		m.rec.CPU.Samples = append(m.rec.CPU.Samples, bufferbloat.CPUSample{At: at, Busy: []float64{busy, busy / 2}, Own: busy / 3})
	}
	m.at = p.End
	m.rec.Ended = m.at
	m.rec.Phases = append(m.rec.Phases, p)
	return &m.rec.Phases[len(m.rec.Phases)-1]
}

func (m *maker) probe(s *bufferbloat.ProbeSeries, p bufferbloat.Phase, mid, swing time.Duration) {
	for due := p.Start; due < p.End; due += s.Interval {
		wave := math.Sin(2 * math.Pi * (due - p.Start).Seconds() / 3.3)
		rtt := mid + time.Duration(float64(swing)*wave) + time.Duration(m.rnd.Int64N(int64(300*time.Microsecond)))
		s.Samples = append(s.Samples, probe.Sample{Seq: uint64(len(s.Samples)), Due: due, Sent: due + 50*time.Microsecond, Outcome: probe.Received,
			RTT: rtt, Stamp: host.KernelStamp})
	}
}

// flows adds the flows of one direction of the phase added last: all of them together deliver at rate.
func (m *maker) flows(d load.Direction, n int, rate bitrate.Bitrate, errs ...string) {
	p := m.rec.Phases[len(m.rec.Phases)-1]
	good := n - len(errs)
	by := load.CountedByReads
	if d == load.Upload {
		by = load.CountedByServer
	}
	for i := range n {
		f := bufferbloat.Flow{Name: fmt.Sprintf("%v %d", d, i+1), Phase: p.Name, Direction: d, Started: p.Start}
		if i >= good {
			f.Error = errs[i-good]
			m.rec.Flows = append(m.rec.Flows, f)
			continue
		}
		first, last := p.Start+100*msec+time.Duration(i)*10*msec, p.End-time.Duration(i)*10*msec
		span := (p.End - p.Start - 100*msec).Seconds()
		f.Result = bufferbloat.FlowResult{Bytes: uint64(float64(rate) / 8 * span / float64(good)), CountedBy: by, Connected: p.Start + 40*msec,
			First: first, Last: last, Stopped: p.End, Flowed: true, CongestionControl: "cubic", Retransmits: 12, HasRetransmits: true}
		if d == load.Upload {
			f.Result.ServerBytes, f.Result.HasServerBytes = f.Result.Bytes, true
		}
		f.Points = []bufferbloat.Point{{At: first, Bytes: 1448}, {At: last, Bytes: f.Result.Bytes}}
		m.rec.Flows = append(m.rec.Flows, f)
	}
}

// outcome gives every so many-th sample from..to of a series an outcome.
func (m *maker) outcome(series, from, to, every int, o probe.Outcome) {
	s := m.rec.Probes[series].Samples
	for i := from; i < to && i < len(s); i += every {
		s[i].Outcome = o
		if !o.HasRTT() {
			s[i].RTT = 0
		}
	}
}

const fullRate = 19131000 // 20 Mbit/s x 1448/1514, as bit/s, about

func options(concurrent bool) bufferbloat.SpeedtestOptions {
	return bufferbloat.SpeedtestOptions{Idle: 5 * second, Length: 30 * second, Streams: 5, Concurrent: concurrent}
}

// queueRun is a good run on an emulated 20/4 Mbit/s link, with delays of down and up, give or take swing, under load.
func queueRun(queue string, down, up, swing time.Duration) *bufferbloat.Recording {
	m := newMaker(options(false),
		bufferbloat.ProbeSeries{Name: "icmp", Kind: "icmp", Primary: true}, bufferbloat.ProbeSeries{Name: "irtt", Kind: "irtt"})
	m.rec.Path.Lab = &bufferbloat.LabLink{Carrier: "in process, real time", Down: 20 * bitrate.Mbit, Up: 4 * bitrate.Mbit, RTT: 40 * msec,
		Queue: queue, BufferDown: 625000, BufferUp: 125000, Overhead: 14}
	m.rec.Path.Stack = "lab (in process)"
	m.phase("idle", 5*second, 40*msec, 0)
	m.phase("download", 30*second, down, swing)
	m.flows(load.Download, 5, fullRate)
	m.phase("drain after download", second, 100*msec, 0)
	m.phase("upload", 30*second, up, swing)
	m.flows(load.Upload, 5, fullRate/5)
	m.phase("drain after upload", second, 100*msec, 0)
	m.phase("after", 3*second, 40*msec, 0)
	return m.rec
}

func fifoRun() *bufferbloat.Recording {
	rec := queueRun("fifo", 258*msec, 290*msec, 20*msec)
	m := maker{rec: rec}
	m.outcome(1, 120, 300, 60, probe.LostUp)
	m.outcome(1, 130, 300, 80, probe.LostDown)
	return rec
}

func fqCodelRun() *bufferbloat.Recording { return queueRun("fq_codel", 45*msec, 52*msec, msec) }

func idleRun() *bufferbloat.Recording {
	m := newMaker(options(false))
	m.rec.Plan.Phases = m.rec.Plan.Phases[:1]
	m.rec.Plan.Phases[0].Length = 60 * second
	m.phase("idle", 60*second, 15*msec, msec)
	m.outcome(0, 10, 600, 100, probe.Lost)
	m.outcome(0, 55, 56, 1, probe.Late)
	m.rec.CPU = bufferbloat.CPUSeries{Why: "no /proc here"}
	return m.rec
}

// silentRun had its load, and not one reply.
func silentRun() *bufferbloat.Recording {
	rec := fifoRun()
	rec.Path.Lab = nil
	rec.Probes = rec.Probes[:1]
	m := maker{rec: rec}
	m.outcome(0, 0, math.MaxInt, 1, probe.Lost)
	return rec
}

func twoOfFiveRun() *bufferbloat.Recording { return partialRun(258*msec, 20*msec) }

// partialRun has a download of two streams and no upload.
func partialRun(down, swing time.Duration) *bufferbloat.Recording {
	m := newMaker(options(false))
	m.phase("idle", 5*second, 40*msec, 0)
	m.phase("download", 30*second, down, swing)
	refused := "192.0.2.2:12865: connection refused; is a netserver running there?"
	m.flows(load.Download, 5, fullRate, refused, refused, refused)
	m.phase("drain after download", second, 100*msec, 0)
	p := m.phase("upload", second, 40*msec, 0)
	p.From, p.To = p.Start, p.Start
	m.flows(load.Upload, 5, fullRate, refused, refused, refused, refused, refused)
	m.phase("drain after upload", second, 40*msec, 0)
	m.phase("after", 3*second, 40*msec, 0)
	m.outcome(0, 0, 10, 4, probe.Lost)
	m.outcome(0, 60, 80, 5, probe.Unsent)
	m.rec.Probes[0].Tally = probe.Tally{Duplicates: 3}
	m.rec.Findings = []bufferbloat.Finding{{Code: "family", Severity: bufferbloat.Note, Text: "IPv4 is used throughout: 2001:db8::2 did not answer in time"}}
	return m.rec
}

func interruptedRun() *bufferbloat.Recording {
	m := newMaker(options(false))
	m.phase("idle", 5*second, 40*msec, 0)
	m.phase("download", 7300*msec, 258*msec, 20*msec)
	m.flows(load.Download, 5, fullRate)
	m.outcome(0, 121, 123, 1, probe.Unfinished)
	m.rec.Stopped = "interrupted"
	return m.rec
}

func bothRun() *bufferbloat.Recording {
	m := newMaker(options(true))
	m.phase("idle", 5*second, 40*msec, 0)
	m.phase("both", 30*second, 480*msec, 50*msec)
	m.flows(load.Download, 5, fullRate)
	m.flows(load.Upload, 5, fullRate/5)
	m.phase("drain", second, 100*msec, 0)
	m.phase("after", 3*second, 40*msec, 0)
	m.outcome(0, 60, 300, 7, probe.Lost)
	return m.rec
}

func irttRun() *bufferbloat.Recording {
	m := newMaker(options(false), bufferbloat.ProbeSeries{Name: "irtt", Kind: "irtt", Primary: true, Reason: "ICMP is not permitted here (operation not permitted)"})
	m.phase("idle", 5*second, 40*msec, 0)
	m.phase("download", 30*second, 258*msec, 20*msec)
	m.flows(load.Download, 5, fullRate)
	m.phase("drain after download", second, 100*msec, 0)
	m.phase("upload", 30*second, 290*msec, 20*msec)
	m.flows(load.Upload, 5, fullRate/5)
	m.phase("drain after upload", second, 100*msec, 0)
	m.phase("after", 3*second, 46*msec, 0)
	m.outcome(0, 100, 300, 3, probe.LostUp)
	return m.rec
}

// failedRun is one in which no stream carried anything.
func failedRun() *bufferbloat.Recording {
	rec := partialRun(40*msec, 0)
	for i := range rec.Flows {
		rec.Flows[i].Result, rec.Flows[i].Points = bufferbloat.FlowResult{}, nil
		rec.Flows[i].Error = "192.0.2.2:12865: connection refused; is a netserver running there?"
	}
	for i := range rec.Phases {
		if p := &rec.Phases[i]; p.Kind == bufferbloat.Load {
			p.From, p.To = p.Start, p.Start
		}
	}
	return rec
}

// recordings are the runs that golden files show.
func recordings() map[string]*bufferbloat.Recording {
	return map[string]*bufferbloat.Recording{
		"fifo": fifoRun(), "idle": idleRun(), "no_replies": silentRun(), "two_of_five": twoOfFiveRun(),
		"interrupted": interruptedRun(), "both": bothRun(), "irtt": irttRun(), "failed": failedRun(),
	}
}
