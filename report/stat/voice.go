package stat

import (
	"errors"
	"math"
	"time"
)

// ErrVoice says that a voice rating was asked for with a delay or a loss that cannot be.
var ErrVoice = errors.New("want a delay from 0 on and a loss within 0..1")

// Voice rates a G.711 call by the E-model of ITU-T Rec. G.107 with all parameters at their defaults but delay and loss, in its usual
// simplification:
//
//	R      = 93.2 - Id - Ie-eff
//	Id     = 0.024 d + 0.11 (d - 177.3) where d > 177.3, d being the one-way delay in ms (Cole and Rosenbluth 2001, a fit to G.107's Idd)
//	Ie-eff = Ie + (95 - Ie) Ppl / (Ppl + Bpl), loss Ppl in percent, at random; Ie 0 and Bpl 25.1 for G.711 with concealment (G.113, Appendix I)
//	MOS    = 1 + 0.035 R + R (R - 60) (100 - R) 7e-6, between 1 and 4.5 (G.107, Annex B)
//
// oneWay is from mouth to ear, with the jitter buffer and the codec's own delay in it; half a round-trip time is a lower bound where
// nothing better is known. The model is made for planning and says nothing of one call's listener.
func Voice(oneWay time.Duration, loss float64) (r, mos float64, err error) {
	if oneWay < 0 || math.IsNaN(loss) || loss < 0 || loss > 1 {
		return 0, 0, ErrVoice
	}
	const (
		best      = 93.2
		threshold = 177.3 // ms
		ie, bpl   = 0.0, 25.1
	)
	d := float64(oneWay) / 1e6
	id := 0.024 * d
	if d > threshold {
		id += 0.11 * (d - threshold)
	}
	ppl := loss * 100
	r = max(best-id-(ie+(95-ie)*ppl/(ppl+bpl)), 0)
	return r, max(1+0.035*r+r*(r-60)*(100-r)*7e-6, 1), nil
}
