package stat

// Values describes plain numbers, of whatever unit, by the same rule as delays. With N == 0 the figures mean nothing.
type Values struct {
	N                           int
	Min, Median, Mean, P99, Max float64
	HasP99                      bool // as in Summary
}

// DescribeSorted describes finite numbers in order of size.
func DescribeSorted(s []float64) Values {
	v := Values{N: len(s)}
	if v.N == 0 {
		return v
	}
	v.Min, v.Max = s[0], s[len(s)-1]
	v.Median, v.P99 = between(s, 0.5), between(s, 0.99)
	v.HasP99 = v.N >= MinSamples(0.99)
	for i, a := range s { // the running mean stays in range where a sum would not
		v.Mean += (a - v.Mean) / float64(i+1)
	}
	v.Mean = min(max(v.Mean, v.Min), v.Max)
	return v
}

// between is the q-quantile of sorted numbers by Rule.
func between(s []float64, q float64) float64 {
	at := q * float64(len(s)-1)
	k := int(at)
	if k+1 >= len(s) {
		return s[len(s)-1]
	}
	frac := at - float64(k)
	return s[k]*(1-frac) + s[k+1]*frac
}
