package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"bufferbloat/cmd/internal/program"
	"bufferbloat/load/netperf"
)

// studentsT are the two-sided quantiles of Student's t distribution by confidence in percent, for 1 to 29 degrees of freedom.
var studentsT = map[string][mostTests - 1]float64{
	"95": {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
		2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045},
	"99": {63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
		2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756},
}

// intervalWidth is the width of the interval that the mean of values lies in with a confidence, as a share of that mean: infinite for fewer than two, and
// where the mean is 0.
func intervalWidth(values []float64, level int) float64 {
	n := len(values)
	if n < 2 {
		return math.Inf(1)
	}
	mean, squares := meanOf(values), 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	if mean == 0 {
		return math.Inf(1)
	}
	return 2 * studentsT[fmt.Sprint(level)][n-2] * math.Sqrt(squares/float64(n-1)/float64(n)) / mean
}

func meanOf(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// tests runs the test, or as many of them as it takes to know the mean of their figures well enough. An interrupt ends them with those that are there.
func (n *netperfRun) tests(ctx context.Context) (netperfFigures, error) {
	var all []netperfFigures
	var rates []float64
	for len(all) < n.most && ctx.Err() == nil {
		m, err := n.measure(ctx)
		if err != nil && (len(all) == 0 || ctx.Err() == nil) {
			return netperfFigures{}, err
		}
		if err != nil {
			break
		}
		all, rates = append(all, m), append(rates, m.throughput)
		if len(all) >= n.fewest && intervalWidth(rates, n.level) <= n.width {
			break
		}
	}
	if len(all) == 0 {
		return netperfFigures{}, context.Cause(ctx)
	}
	m := meanFigures(all)
	if n.most == 1 {
		return m, nil
	}
	m.width = intervalWidth(rates, n.level)
	if m.width > n.width {
		m.warn(fmt.Sprintf("after %d tests their mean lies, with a confidence of %d %%, in an interval of %.1f %% of it, not of %.1f %%", len(all), n.level,
			100*m.width, 100*n.width))
	}
	return m, nil
}

// meanFigures are the last of one or more tests' figures with the means of rates, time and CPU use, and the warnings of all.
func meanFigures(all []netperfFigures) netperfFigures {
	m := all[len(all)-1]
	m.tests, m.warning = len(all), ""
	mean := func(of func(*netperfFigures) float64) float64 {
		var values []float64
		for i := range all {
			values = append(values, of(&all[i]))
		}
		return meanOf(values)
	}
	m.throughput = mean(func(m *netperfFigures) float64 { return m.throughput })
	m.sending = mean(func(m *netperfFigures) float64 { return m.sending })
	m.rate = mean(func(m *netperfFigures) float64 { return m.rate })
	m.cpu = mean(func(m *netperfFigures) float64 { return m.cpu })
	m.elapsed = time.Duration(mean(func(m *netperfFigures) float64 { return float64(m.elapsed) }))
	for i := range all {
		m.warn(all[i].warning)
	}
	return m
}

// warn adds a warning that is not there yet.
func (m *netperfFigures) warn(text string) {
	switch {
	case text == "" || strings.Contains(m.warning, text):
	case m.warning == "":
		m.warning = text
	default:
		m.warning += "; " + text
	}
}

// stands reports whether what was counted is to be printed though the test ended with an error: it was interrupted, or it had no end of its own and
// the server made one.
func (n *netperfRun) stands(ctx context.Context, err error, moved bool, m *netperfFigures) bool {
	var s *program.SignalError
	switch {
	case !moved:
		return false
	case errors.As(context.Cause(ctx), &s):
		if !n.endless {
			m.warn(s.Error())
		}
		return true
	case n.endless && (errors.Is(err, netperf.ErrCutShort) || errors.Is(err, netperf.ErrServerGone)):
		m.warn(fmt.Sprintf("the server ended it: %v", err))
		return true
	}
	return false
}
