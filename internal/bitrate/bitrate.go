// Package bitrate is a data rate with a unit, parsed from and printed for people.
package bitrate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bitrate is a data rate in bits per second; 1 Mbit/s is 1e6 bit/s, never 2^20.
type Bitrate int64

// The units of a rate.
const (
	BitPerSecond Bitrate = 1
	Kbit                 = 1000 * BitPerSecond
	Mbit                 = 1000 * Kbit
	Gbit                 = 1000 * Mbit
)

// Of returns the mean rate of n bytes in d. It is 0 where d is not positive: a rate over no time has no value, and callers
// that must tell the two apart check d.
func Of(n uint64, d time.Duration) Bitrate {
	if d <= 0 {
		return 0
	}
	return Bitrate(math.Round(float64(n) * 8 / d.Seconds()))
}

// Mbps returns the rate in Mbit/s, for printing.
func (r Bitrate) Mbps() float64 { return float64(r) / float64(Mbit) }

// Duration returns the time that n bytes take at rate r; r must be positive.
func (r Bitrate) Duration(n int) time.Duration {
	return time.Duration(math.Round(float64(n) * 8 * float64(time.Second) / float64(r)))
}

// String returns the rate in the largest unit that keeps it at 1 or above: "20Mbit", "512kbit", "1.5Gbit".
func (r Bitrate) String() string {
	for _, u := range []struct {
		unit Bitrate
		name string
	}{{Gbit, "Gbit"}, {Mbit, "Mbit"}, {Kbit, "kbit"}} {
		if r >= u.unit || r <= -u.unit {
			return strconv.FormatFloat(float64(r)/float64(u.unit), 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(int64(r), 10) + "bit"
}

// Parse reads a rate such as "20Mbit", "512kbit", "1.5Gbit" or "20mbit/s". The unit is required and its case does not
// matter: a bare number would leave open whether bits, kilobits or megabits were meant.
func Parse(s string) (Bitrate, error) {
	low := strings.ToLower(strings.TrimSpace(s))
	low = strings.TrimSuffix(low, "/s")
	units := []struct {
		name string
		unit Bitrate
	}{{"gbit", Gbit}, {"gbps", Gbit}, {"mbit", Mbit}, {"mbps", Mbit}, {"kbit", Kbit}, {"kbps", Kbit}, {"bit", BitPerSecond}, {"bps", BitPerSecond}}
	for _, u := range units {
		num, ok := strings.CutSuffix(low, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || v*float64(u.unit) > 1e15 {
			return 0, fmt.Errorf("bitrate %q: want a number from 0 to 1e15 bit/s before the unit", s)
		}
		return Bitrate(math.Round(v * float64(u.unit))), nil
	}
	return 0, fmt.Errorf("bitrate %q: want a number and a unit, as in 512kbit, 20Mbit or 1Gbit", s)
}

// Set parses s into r; with String and Type it makes a Bitrate a command-line flag.
func (r *Bitrate) Set(s string) error {
	v, err := Parse(s)
	if err == nil {
		*r = v
	}
	return err
}

// Type names the flag's value in a usage text.
func (*Bitrate) Type() string { return "rate" }
