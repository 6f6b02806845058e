package bufferbloat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat/load"
)

// highestRTT returns the highest round trip of a packet among the probes sent at or after from, which tells how deep the load's queue was. Exchanges, in which
// what is lost is sent again, count where no series is of packets alone. What a page or a name takes is many round trips or another host's time, and counts where
// there is nothing else: a drain is rather too long than too short.
func (r *recorder) highestRTT(from time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var packets, exchanges, others time.Duration
	for i := range r.rec.Probes {
		high := &packets
		switch ProbeKind(r.rec.Probes[i].Kind) {
		case ICMP, ICMPTimestamp, IRTT, UDPRR:
		case TCP, TCPRR, Connect:
			high = &exchanges
		default:
			high = &others
		}
		for s := range r.rec.Probes[i].All() {
			if s.Sent >= from {
				*high = max(*high, s.RTT)
			}
		}
	}
	return cmp.Or(packets, exchanges, others)
}

// window is the window of a phase by the recording so far.
func (r *recorder) window(p Phase) (from, to time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, to, _ = r.rec.window(p)
	return from, to
}

// judge returns the findings that the recording so far calls for, of a run that ended early for the reason stopped, "" if it did not.
func (r *recorder) judge(stopped string) []Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := append(r.rec.judgeFlows(stopped), r.rec.judgeCongestionControl()...)
	found = append(found, r.rec.judgeDistance()...)
	found = append(found, r.rec.judgeTLS()...)
	found = append(found, r.rec.judgeProbes()...)
	return append(found, r.rec.judgeMarks()...)
}

// judgeFlows says which flows are missing, and what weakens the figures of the others. Those that ended because the run was stopped are
// not missing.
func (r *Recording) judgeFlows(stopped string) (found []Finding) {
	for _, ph := range r.Phases {
		if ph.Kind != Load {
			continue
		}
		if _, _, ragged := r.window(ph); ragged {
			found = append(found, Finding{"streams_ragged", Weakens, ph.Name,
				"at no time did all streams carry data; the latency is that of the time in which three quarters of them did"})
		}
		if none, apart := r.apart(ph); apart {
			text := "by plan the streams run at different times: the latency of the load is that of all the time in which it stood, and the rate of each stream that of its own time"
			if none >= time.Second {
				text += fmt.Sprintf("; for %v of it none ran", none.Round(100*time.Millisecond))
			}
			found = append(found, Finding{"streams_staggered", Note, ph.Name, text})
		}
		for _, d := range []load.Direction{load.Download, load.Upload} {
			var all, failed int
			var errs, warnings alike
			for _, f := range r.Flows {
				if f.Phase != ph.Name || f.Direction != d {
					continue
				}
				all++
				if f.Error != "" && f.Error != stopped {
					failed++
					errs.add(f.Error)
				}
				if f.Result.Warning != "" {
					warnings.add(f.Result.Warning)
				}
			}
			switch {
			case failed == 0:
			case failed == all:
				found = append(found, Finding{"load_failed", Voids, ph.Name, fmt.Sprintf("%v: none of the %d streams ran to its end: %s", d, all, errs.brief())})
			default:
				found = append(found, Finding{"streams_missing", Weakens, ph.Name,
					fmt.Sprintf("%v: %d of %d streams ran to their end: %s", d, all-failed, all, errs.brief())})
			}
			if len(warnings.first) > 0 {
				found = append(found, Finding{"flow_warning", Weakens, ph.Name, fmt.Sprintf("%v: %s", d, warnings.brief())})
			}
		}
	}
	return found
}

// judgeCongestionControl says which flows ran with another congestion control than planned.
func (r *Recording) judgeCongestionControl() (found []Finding) {
	for i := range r.Plan.Phases {
		ph := &r.Plan.Phases[i]
		var other []string
		for _, fp := range ph.Flows {
			if f := r.flow(fp.Name); f != nil && fp.CongestionControl != "" && f.Result.CongestionControl != "" && f.Result.CongestionControl != fp.CongestionControl {
				other = append(other, fmt.Sprintf("%s ran with %s, not %s", fp.Name, quoteOdd(f.Result.CongestionControl), fp.CongestionControl))
			}
		}
		if len(other) > 0 {
			found = append(found, Finding{"congestion_control", Weakens, ph.Name, brief(other) + ": the sending server has no other, or did not take it"})
		}
	}
	return found
}

// farthest is within what the RRUL specification wants the server to be.
const farthest = 80 * time.Millisecond

// judgeDistance says which servers of an RRUL workload are too far away for it.
func (r *Recording) judgeDistance() (found []Finding) {
	if !strings.HasPrefix(r.Plan.Name, "rrul") && !strings.HasPrefix(r.Plan.Workload, "rrul") {
		return nil
	}
	var far []string
	for _, p := range append([]Path{r.Path}, r.Paths...) {
		if rtt := r.leastRTT(p); rtt > farthest {
			far = addOnce(far, fmt.Sprintf("%s is %v away", quoteOdd(p.Host), rtt.Round(100*time.Microsecond)))
		}
	}
	if len(far) > 0 {
		found = append(found, Finding{Code: "server_far", Severity: Weakens,
			Text: fmt.Sprintf("%s, and RRUL wants its server within %v: choose one that is nearer", brief(far), farthest)})
	}
	return found
}

// leastRTT returns the least round-trip time that was seen to a server, 0 for none.
func (r *Recording) leastRTT(p Path) (least time.Duration) {
	least = p.Setup
	for i := range r.Probes {
		s := &r.Probes[i]
		if s.Address != p.Address {
			continue
		}
		for sample := range s.All() {
			if sample.RTT > 0 && (least == 0 || sample.RTT < least) {
				least = sample.RTT
			}
		}
	}
	return least
}

// judgeProbes says what the probes met beside loss.
func (r *Recording) judgeProbes() (found []Finding) {
	for _, s := range r.Probes {
		add := func(code string, severity Severity, format string, args ...any) {
			found = append(found, Finding{Code: code, Severity: severity, Text: s.Name + " probes: " + fmt.Sprintf(format, args...)})
		}
		switch asked := r.asked(s); {
		case s.Reason == "":
		case asked != "" && asked != s.Target:
			add("probe_fallback", Weakens, "they go to %s and not to %s, because %s", quoteOdd(s.Target), quoteOdd(asked), s.Reason)
		default:
			add("probe_fallback", Note, "used because %s", s.Reason)
		}
		if s.Error != "" {
			add("probe_ended", Weakens, "%s", s.Error)
		}
		if n := s.Tally.Rejected; n > 0 {
			by := make([]string, len(s.Tally.RejectedBy))
			for i, a := range s.Tally.RejectedBy {
				by[i] = a.String()
			}
			if len(by) == 0 {
				add("probe_failed", Weakens, "%d were answered otherwise than asked, or refused, and count as lost; the first: %s", n, s.Tally.FirstRefusal)
			} else {
				add("probe_rejected", Weakens, "%d were refused by %s: %s", n, strings.Join(by, ", "), s.Tally.FirstRefusal)
			}
		}
		if s.Tally.Corrupt > 0 {
			add("probe_corrupt", Note, "%d packets failed the check and were not counted", s.Tally.Corrupt)
		}
	}
	return found
}

// asked returns the host that the plan wanted a primary series to probe, "" where it left that open.
func (r *Recording) asked(s ProbeSeries) string {
	for _, p := range r.Plan.Probes {
		if p.Primary && s.Primary {
			return p.Target
		}
	}
	return ""
}

// alike are texts of which those that differ in their numbers alone are told once, by the first.
type alike struct {
	first  []string
	count  map[string]int  // by the text without its digits
	differ map[string]bool // whether their numbers do
}

func (a *alike) add(s string) {
	if a.count == nil {
		a.count, a.differ = map[string]int{}, map[string]bool{}
	}
	key := withoutDigits(s)
	if a.count[key] == 0 {
		a.first = append(a.first, s)
	}
	a.differ[key] = a.differ[key] || !slices.Contains(a.first, s)
	a.count[key]++
}

func (a *alike) brief() string {
	told := make([]string, len(a.first))
	for i, s := range a.first {
		told[i] = s
		switch key := withoutDigits(s); {
		case a.count[key] > 1 && a.differ[key]:
			told[i] += fmt.Sprintf(" (the first of %d streams, whose numbers differ)", a.count[key])
		case a.count[key] > 1 && strings.ContainsFunc(s, isDigit):
			told[i] += fmt.Sprintf(" (%d alike)", a.count[key])
		}
	}
	return brief(told)
}

func isDigit(c rune) bool { return c >= '0' && c <= '9' || c == '.' }

// withoutDigits is a text without its numbers, and the units that go with their size.
func withoutDigits(s string) string {
	var b strings.Builder
	digits := false
	for _, c := range s {
		switch {
		case isDigit(c):
			digits = true
			continue
		case digits && strings.ContainsRune("mµns", c): // 5.1s or 510.3ms
			continue
		}
		digits = false
		b.WriteRune(c)
	}
	return b.String()
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// brief joins the first few of a list.
func brief(list []string) string {
	const few = 3
	if len(list) > few {
		return strings.Join(list[:few], "; ") + fmt.Sprintf("; and %d more", len(list)-few)
	}
	return strings.Join(list, "; ")
}
