package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/load"
)

// The thresholds of the plain sentence. A queue stands in one direction, so what the load adds to the round trip is taken as added to one way;
// the idle way is half the idle round trip.
const (
	// addedDelay is from where bufferbloat.net advises to act.
	addedDelay = 50 * time.Millisecond
	// goodCall and worstCall are the one-way delays up to which ITU-T G.114 (and G.1010 for conversational voice) finds most users
	// content, and which network planning should not exceed. They are of the whole way from mouth to ear: the network's part is all that is known here.
	goodCall  = 150 * time.Millisecond
	worstCall = 400 * time.Millisecond
	// callLoss is the loss that ITU-T G.1010 allows conversational voice; so many lost probes are asked for before it counts.
	callLoss = 0.03
	fewLost  = 5
)

// burden is what a load does to a call.
type burden int

const (
	fine   burden = iota // adds less than addedDelay
	slower               // adds more, and the way stays below goodCall
	lagging
	breaking
)

// Plain says in a sentence or two for everyone what the load does to the delay, by the medians; the verdict is by the 90th percentile under load over the idle
// median. It is "" where the result is void or partial, has no baseline, or has too few samples, and there is none where a CPU of the host or its quota was the limit.
func (r *Result) Plain() string {
	if r.verdict() != 0 || r.Void() {
		return ""
	}
	var bad []told
	var good []string
	var idle, highest time.Duration
	for i := range r.Induced {
		d := &r.Induced[i]
		p := r.phase(d.Phase)
		if !d.OK || p == nil || d.Idle.Few() || d.Loaded.Few() {
			return ""
		}
		idle, highest = d.Idle.Median, max(highest, d.Loaded.Median)
		l := p.Primary()
		loss, _ := l.Loss()
		b := weigh(d)
		lossy := loss > callLoss && l.Lost >= fewLost
		if b == fine && !lossy {
			good = append(good, p.what())
			continue
		}
		bad = append(bad, d.told(p.what(), b, loss, lossy))
	}
	if len(bad)+len(good) == 0 {
		return ""
	}
	if slices.ContainsFunc(r.Findings, func(f bufferbloat.Finding) bool { return f.Code == "cpu_client" }) {
		return "Limited by CPU: the host that measured may have been the limit, so this is no verdict on the link."
	}
	var out []string
	long := idle/2 > goodCall
	if long {
		out = append(out, fmt.Sprintf("Even without load your delay of %s ms is long for a call.", roundMS(idle)))
	}
	switch {
	case len(bad) == 0:
		out = append(out, fmt.Sprintf("Your delay is %s ms, and %s ms at most under %s: a call will not notice.", roundMS(idle), roundMS(max(idle, highest)),
			strings.Join(good, " or ")))
		if long {
			out[len(out)-1] = fmt.Sprintf("Under %s it stays at %s ms at most.", strings.Join(good, " or "), roundMS(max(idle, highest)))
		}
	case len(good) == 0:
		out = append(out, sentences(bad)...)
	case long: // what adds nothing to a bad delay makes nothing fine
		out = append(append(out, sentences(bad)...), "Under "+strings.Join(good, " and under ")+" the load adds little to it.")
	default:
		verb := " is fine."
		if len(good) > 1 {
			verb = " are fine."
		}
		rest := strings.Join(good, " and ") + verb
		out = append(append(out, sentences(bad)...), strings.ToUpper(rest[:1])+rest[1:])
	}
	if slices.ContainsFunc(r.Findings, func(f bufferbloat.Finding) bool { return f.Severity == bufferbloat.Weakens }) {
		out = append(out, "(Mind what weakens this result: it is listed with it.)")
	}
	return strings.Join(out, " ")
}

// Void reports whether a finding voids any of the figures.
func (r *Result) Void() bool {
	return slices.ContainsFunc(r.Findings, func(f bufferbloat.Finding) bool { return f.Severity == bufferbloat.Voids })
}

// phase returns the phase of that name, or nil.
func (r *Result) phase(name string) *Phase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}

// what names the load of a phase for everyone.
func (p *Phase) what() string {
	var down, up bool
	for _, g := range p.Goodput {
		down, up = down || g.Direction == load.Download, up || g.Direction == load.Upload
	}
	switch {
	case down && up:
		return "download and upload at once"
	case down:
		return "download"
	case up:
		return "upload"
	}
	return printable(p.Name)
}

// weigh says what the added delay does to a call.
func weigh(d *Induced) burden {
	// Against the idle median: a noisy idle tail must not make the load look milder.
	added := max(d.Loaded.P90-d.Idle.Median, d.Median.Value)
	way := d.Idle.Median/2 + added
	switch {
	case added < addedDelay:
		return fine
	case way <= goodCall:
		return slower
	case way <= worstCall:
		return lagging
	}
	return breaking
}

// told is what a load does to the delay and what that means: "download", "rises from 12 to 480 ms", "calls will break up".
type told struct{ under, delay, verdict string }

// sentences says each verdict once: "Under download your delay rises from 12 to 258 ms, and under upload it rises from 12 to 290 ms: ...".
func sentences(all []told) (out []string) {
	for i, a := range all {
		if slices.ContainsFunc(all[:i], func(b told) bool { return b.verdict == a.verdict }) {
			continue
		}
		text, last := "Under "+a.under, " your delay "+a.delay
		for _, b := range all[i+1:] {
			switch {
			case b.verdict != a.verdict:
			case b.delay == a.delay:
				text += " and under " + b.under
			default:
				last += ", and under " + b.under + " it " + b.delay
			}
		}
		out = append(out, text+last+": "+a.verdict+".")
	}
	return out
}

// told says what the load that is named by under does.
func (d *Induced) told(under string, b burden, loss float64, lossy bool) told {
	text := fmt.Sprintf("rises from %s to %s ms", roundMS(d.Idle.Median), roundMS(d.Loaded.Median))
	tail := d.Loaded.P90 - d.Loaded.Median
	if d.Median.Value < addedDelay/2 {
		text = fmt.Sprintf("stays near %s ms", roundMS(d.Loaded.Median))
	}
	if tail > d.Loaded.Median/4 && b > fine {
		text += fmt.Sprintf(" (one time in ten %s ms or more)", roundMS(d.Loaded.P90))
	}
	if lossy {
		return told{under, text + fmt.Sprintf(" and %s of the packets are lost", percent(loss)), "calls will break up"}
	}
	switch b {
	case slower:
		return told{under, text, "noticeable, and still good enough for calls"}
	case lagging:
		return told{under, text, "in calls people will talk over each other"}
	}
	return told{under, text, "calls will break up"}
}

// roundMS is a time in whole milliseconds, with more digits below 10 ms.
func roundMS(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return plainMS(d.Round(10 * time.Microsecond))
	case d < 10*time.Millisecond:
		return plainMS(d.Round(100 * time.Microsecond))
	}
	return plainMS(d.Round(time.Millisecond))
}

func (t *speedtest) plain() {
	if text := t.r.Plain(); text != "" {
		t.blank()
		t.b.WriteString(text + "\n")
	}
}
