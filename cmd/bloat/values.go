package main

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// seconds is a flag's time, given as the old scripts have it, in seconds ("30"), or with a unit ("1m30s", "500ms").
type seconds time.Duration

func (s *seconds) String() string {
	d := time.Duration(*s)
	if d%time.Second == 0 {
		return strconv.Itoa(int(d / time.Second))
	}
	return d.String()
}

func (s *seconds) Set(text string) error {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		if math.IsNaN(v) || v < 0 || v > 1e6 {
			return fmt.Errorf("want 0 to 1000000 seconds")
		}
		*s = seconds(math.Round(v * float64(time.Second)))
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 1e6*time.Second {
		return fmt.Errorf("want seconds (30) or a time with its unit (500ms, 2m)")
	}
	*s = seconds(d)
	return nil
}

func (*seconds) Type() string { return "seconds" }
