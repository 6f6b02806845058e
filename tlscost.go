package bufferbloat

import (
	"fmt"
	"time"
)

// mostBusy is the share of a CPU above which TLS, and not the path, may be what a flow shows.
const mostBusy = 0.8

// judgeTLS says what encryption took, for each phase with flows over TLS.
func (r *Recording) judgeTLS() (found []Finding) {
	for _, ph := range r.Phases {
		var shortest, longest, busy, took time.Duration
		flows, worst, agreed := 0, 0.0, ""
		for i := range r.Flows {
			f := &r.Flows[i]
			t := f.Result.TLS
			if f.Phase != ph.Name || t == nil {
				continue
			}
			if flows++; flows == 1 || t.Handshake < shortest {
				shortest = t.Handshake
			}
			longest, busy, agreed = max(longest, t.Handshake), busy+t.Busy, t.Version+", "+t.Cipher
			if span := f.Result.Last - f.Result.First; span > 0 {
				took = max(took, span)
				worst = max(worst, t.Busy.Seconds()/span.Seconds())
			}
		}
		if flows == 0 {
			continue
		}
		text := fmt.Sprintf("%d streams over TLS (%s): handshakes of %.1f to %.1f ms", flows, quoteOdd(agreed), milliseconds(shortest), milliseconds(longest))
		if took > 0 && busy > 0 {
			text += fmt.Sprintf("; encryption took %.1f %% of one CPU", 100*busy.Seconds()/took.Seconds())
		}
		found = append(found, Finding{"tls_cost", Note, ph.Name, text})
		if worst > mostBusy {
			found = append(found, Finding{"tls_bound", Weakens, ph.Name,
				fmt.Sprintf("TLS kept a stream busy %.0f %% of its time: its rate may be that of this host's encryption and not of the path", 100*worst)})
		}
	}
	return found
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
