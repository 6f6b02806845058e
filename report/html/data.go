package html

import (
	"math"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report/curve"
)

// chartData is what the page's script draws. Times are in seconds since the run's start, RTTs in ms, rates in Mbit/s, as the axes show them.
type chartData struct {
	Runs []chartRun `json:"runs"`
}

type chartRun struct {
	Name   string       `json:"name"`
	Span   float64      `json:"span"`
	Phases []chartPhase `json:"phases"`
	Delays []chartLine  `json:"delays"` // the primary series first
	Rates  []chartLine  `json:"rates"`
	CDF    []chartCDF   `json:"cdf"`
}

type chartPhase struct {
	Name  string  `json:"name"`
	Load  bool    `json:"load"`
	Start float64 `json:"start"`
	End   float64 `json:"end"`
}

// chartLine is a line over time; a null value is a gap.
type chartLine struct {
	Name string     `json:"name"`
	X    []float64  `json:"x"`
	Y    []*float64 `json:"y"`
	Lost []float64  `json:"lost"`
}

// chartCDF is the distribution of the primary series in a phase; Y is in percent.
type chartCDF struct {
	Name string    `json:"name"`
	X    []float64 `json:"x"`
	Y    []float64 `json:"y"`
	Lost int       `json:"lost"`
	N    int       `json:"n"`
}

// chartColumns bounds a line: it has at most four points for each.
const chartColumns = 5000

func round(v float64, digits int) float64 {
	p := math.Pow(10, float64(digits))
	return math.Round(v*p) / p
}

func seconds(t time.Duration) float64 { return round(t.Seconds(), 4) }

func millis(t time.Duration) float64 { return round(float64(t)/1e6, 3) }

func newChartData(runs []Run) (data chartData) {
	data.Runs = []chartRun{}
	for _, r := range runs {
		rec := r.Recording
		span := curve.Span(rec)
		c := chartRun{Name: r.Name, Span: seconds(span), Phases: []chartPhase{}, Delays: []chartLine{}, Rates: []chartLine{}, CDF: []chartCDF{}}
		windows := curve.Windows(rec)
		for _, w := range windows {
			c.Phases = append(c.Phases, chartPhase{w.Name, w.Kind == bufferbloat.Load, seconds(w.Start), seconds(w.End)})
		}
		primary := curve.Primary(rec)
		for i := range rec.Probes {
			line := delayLine(&rec.Probes[i], span)
			if &rec.Probes[i] == primary {
				c.Delays = append([]chartLine{line}, c.Delays...)
			} else {
				c.Delays = append(c.Delays, line)
			}
		}
		for _, d := range []load.Direction{load.Download, load.Upload} {
			if line := rateLine(rec, d, span); len(line.X) > 0 {
				c.Rates = append(c.Rates, line)
			}
		}
		for _, w := range windows {
			if primary == nil || w.Kind == bufferbloat.Drain {
				continue
			}
			rtts, lost := curve.Within(primary, w.From, w.To)
			d := chartCDF{Name: w.Name, X: []float64{}, Y: []float64{}, Lost: lost, N: len(rtts)}
			for _, s := range curve.CDF(rtts, lost, 1000) {
				d.X, d.Y = append(d.X, millis(s.RTT)), append(d.Y, round(100*s.Share, 4))
			}
			c.CDF = append(c.CDF, d)
		}
		data.Runs = append(data.Runs, c)
	}
	return data
}

func delayLine(s *bufferbloat.ProbeSeries, span time.Duration) chartLine {
	line := chartLine{Name: s.Name, X: []float64{}, Y: []*float64{}, Lost: []float64{}}
	d := curve.NewDelays(s).Reduce(0, span, chartColumns)
	for i, stretch := range d.Stretches {
		if i > 0 {
			line.X, line.Y = append(line.X, seconds(stretch[0].At)), append(line.Y, nil)
		}
		for _, p := range stretch {
			v := millis(p.RTT)
			line.X, line.Y = append(line.X, seconds(p.At)), append(line.Y, &v)
		}
	}
	for _, t := range d.Lost {
		line.Lost = append(line.Lost, seconds(t))
	}
	return line
}

func rateLine(rec *bufferbloat.Recording, d load.Direction, span time.Duration) chartLine {
	line := chartLine{Name: d.String(), X: []float64{}, Y: []*float64{}, Lost: []float64{}}
	for i, stretch := range curve.Rates(curve.Flows(rec, d, ""), span/2000) {
		for j, r := range stretch {
			at := seconds(r.From + (r.To-r.From)/2)
			if i > 0 && j == 0 {
				line.X, line.Y = append(line.X, at), append(line.Y, nil)
			}
			v := round(r.Rate.Mbps(), 4)
			line.X, line.Y = append(line.X, at), append(line.Y, &v)
		}
	}
	return line
}
