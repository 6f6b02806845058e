package report

import (
	"slices"
	"strconv"
	"time"

	"bufferbloat"
	"bufferbloat/probe"
	"bufferbloat/report/stat"
)

// The rules of a voice call.
const (
	// lateJitter is RRUL's limit: a packet whose delay is so much above that of the packet before it came too late to be heard, and counts as lost.
	lateJitter = 30 * time.Millisecond
	// jitterBuffer is what a receiver holds a packet back for, to even out smaller differences.
	jitterBuffer = lateJitter
)

// Voice is what a call would have met in one phase, on the packets of one series that are like those of G.711.
type Voice struct {
	Series string   `json:"series"`
	Up     VoiceWay `json:"up"`   // what the other end would have heard of this one
	Down   VoiceWay `json:"down"` // what this end would have heard of the other
}

// VoiceWay is one direction of a call. Shares are 0..1.
type VoiceWay struct {
	Reason string `json:"reason,omitempty"` // why there are no figures beside the losses, "" where there are
	Sent   int    `json:"sent"`             // packets on this way: down, those that reached the other end
	Lost   int    `json:"lost"`             // known to be lost on this way
	// LostEither are packets of which it is not known on which way they were lost. They are no part of Lost, and Loss and MOS count them on
	// both ways.
	LostEither int `json:"lost_either"`
	// Late are packets whose delay is more than 30 ms above that of the packet before them (IPDV, RFC 3393): RRUL counts them as lost.
	Late          int      `json:"late"`
	Loss          *float64 `json:"loss"`           // without the late ones
	EffectiveLoss *float64 `json:"effective_loss"` // with them

	Pairs int `json:"ipdv_n"` // pairs of adjacent packets that both came
	// IPDV is signed by RFC 3393; these are of its size.
	IPDVMean *time.Duration `json:"ipdv_mean_ns"`
	IPDVP99  *time.Duration `json:"ipdv_p99_ns"` // null with too few pairs for it
	IPDVMax  *time.Duration `json:"ipdv_max_ns"`
	// RTPJitter is the mean of the smoothed variation of RFC 3550 over the packets of the phase.
	RTPJitter *time.Duration `json:"rtp_jitter_ns"`
	// OneWay is the median delay: half of the least round-trip time of the series, and what this way's delay lay above the least that it had in
	// the run. So clocks that differ change nothing, but a path that is longer one way than the other, and clocks that drift apart.
	OneWay *time.Duration `json:"one_way_median_ns"`
	// R and MOS rate the call by the E-model (G.107), with OneWay, a jitter buffer of 30 ms, the length of a packet, and EffectiveLoss.
	R   *float64 `json:"r_factor"`
	MOS *float64 `json:"mos"`
}

// noOneWay is why a way has no delays.
const noOneWay = "no packet tells when the server had it"

// voiceBase is what the delays of a series are measured from, over the whole run.
type voiceBase struct {
	rtt, up, down time.Duration // the least of each
	ok            bool
}

func newVoiceBase(s *bufferbloat.ProbeSeries) (b voiceBase) {
	for sample := range s.All() {
		if !outcome(&sample).HasRTT() || !sample.HasOneWay {
			continue
		}
		if !b.ok {
			b = voiceBase{sample.RTT, sample.Up, sample.Down, true}
			continue
		}
		b.rtt, b.up, b.down = min(b.rtt, sample.RTT), min(b.up, sample.Up), min(b.down, sample.Down)
	}
	return b
}

// voiceCalls returns what the calls of a recording met from from to to, nil where there were none.
func voiceCalls(order []*bufferbloat.ProbeSeries, from, to time.Duration) (all []Voice) {
	for _, s := range order {
		if s.Voice {
			all = append(all, newVoice(s, from, to))
		}
	}
	return all
}

func newVoice(s *bufferbloat.ProbeSeries, from, to time.Duration) Voice {
	v := Voice{Series: s.Name}
	base := newVoiceBase(s)
	up, down := newWay(s.Interval, base.rtt/2, base.up), newWay(s.Interval, base.rtt/2, base.down)
	var samples []probe.Sample
	for sample := range s.All() {
		if within(&sample, from, to) && outcome(&sample) != probe.Unsent {
			samples = append(samples, sample)
		}
	}
	slices.SortFunc(samples, func(a, b probe.Sample) int { return int(min(max(int64(a.Seq)-int64(b.Seq), -1), 1)) })
	for i := range samples {
		up.add(&samples[i], true)
		down.add(&samples[i], false)
	}
	v.Up, v.Down = up.result(), down.result()
	return v
}

// way collects the packets of one direction.
type way struct {
	VoiceWay
	interval    time.Duration
	half, least time.Duration
	seq         uint64 // of the last packet that came with a delay; valid with any
	last        time.Duration
	any         bool
	jitter      stat.RTPJitter
	jitters     stat.Moments
	delays      []time.Duration
	ipdv        []time.Duration // sizes
}

func newWay(interval, half, least time.Duration) *way {
	return &way{interval: interval, half: half, least: least}
}

// add takes in one packet.
func (w *way) add(s *probe.Sample, up bool) {
	o := outcome(s)
	switch {
	case o == probe.LostUp && up, o == probe.LostDown && !up:
		w.Sent++
		w.Lost++
		return
	case o == probe.Lost:
		w.Sent++
		w.LostEither++
		return
	case o == probe.LostDown && up: // it came, and when is not told
		w.Sent++
		return
	case !o.HasRTT():
		return
	}
	w.Sent++
	if !s.HasOneWay {
		return
	}
	delay := s.Down
	if up {
		delay = s.Up
	}
	if w.any && s.Seq == w.seq+1 {
		w.ipdv = append(w.ipdv, (delay - w.last).Abs())
		if delay-w.last > lateJitter {
			w.Late++
		}
	}
	w.jitters.Add(w.jitter.Add(delay))
	w.delays = append(w.delays, delay-w.least)
	w.seq, w.last, w.any = s.Seq, delay, true
}

// result computes the figures.
func (w *way) result() VoiceWay {
	v := w.VoiceWay
	if v.Sent == 0 {
		v.Reason = "no packet was sent"
		return v
	}
	loss := float64(v.Lost+v.LostEither) / float64(v.Sent)
	v.Loss = &loss
	if len(w.delays) == 0 {
		v.Reason = noOneWay
		return v
	}
	effective := float64(v.Lost+v.LostEither+v.Late) / float64(v.Sent)
	v.EffectiveLoss = &effective
	median, _ := stat.Quantile(w.delays, 0.5) // it fails on no delays alone
	median += w.half
	v.OneWay = &median
	jitter, _ := w.jitters.Mean()
	v.RTPJitter = &jitter
	if v.Pairs = len(w.ipdv); v.Pairs > 0 {
		d := stat.Summarize(w.ipdv, 0)
		v.IPDVMean, v.IPDVMax, v.IPDVP99 = &d.Mean, &d.Max, value(d.P99, d.HasP99)
	}
	if r, mos, err := stat.Voice(median+jitterBuffer+w.interval, effective); err == nil {
		v.R, v.MOS = &r, &mos
	}
	return v
}

// voiceColumns are the heads of the table of calls; from the third on they are numbers.
func voiceColumns() []string {
	return []string{"Call", "Way", "Sent", "Loss %", "Loss % with IPDV > 30 ms", "One way", "IPDV avg", "IPDV 99pct", "IPDV max", "RTP jitter", "MOS"}
}

// voiceRows returns a row for each way of each call of each phase; delays in ms.
func (r *Result) voiceRows() (rows [][]string) {
	for i := range r.Phases {
		p := &r.Phases[i]
		for j := range p.Voice {
			v := &p.Voice[j]
			for _, w := range []struct {
				name string
				*VoiceWay
			}{{"up", &v.Up}, {"down", &v.Down}} {
				rows = append(rows, []string{printable(p.Name) + ", " + printable(v.Series), w.name, strconv.Itoa(w.Sent), percentOf(w.Loss), percentOf(w.EffectiveLoss),
					orNone(w.OneWay), orNone(w.IPDVMean), orNone(w.IPDVP99), orNone(w.IPDVMax), orNone(w.RTPJitter), fixed(w.MOS, 2)})
			}
		}
	}
	return rows
}

func percentOf(v *float64) string {
	if v == nil {
		return none
	}
	share := *v * 100
	return fixed(&share, 2)
}

func fixed(v *float64, digits int) string {
	if v == nil {
		return none
	}
	return strconv.FormatFloat(*v, 'f', digits, 64)
}

func orNone(d *time.Duration) string {
	if d == nil {
		return none
	}
	return ms(*d)
}
