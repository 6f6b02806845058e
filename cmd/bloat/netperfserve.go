package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/netperf"
	"bufferbloat/watch"
)

// netperfLimits are the flags of bloat serve that bound its netperf clients, beside those for all.
type netperfLimits struct {
	perAddress int
	perHour    int
	traffic    byteCount
	rate       bitrate.Bitrate
}

func (l *netperfLimits) register(flags *pflag.FlagSet) {
	flags.IntVar(&l.perAddress, "max-tests-per-address", 0, "netperf tests of one address at the same time, and as many of iperf3 (default: as many as in all)")
	flags.IntVar(&l.perHour, "max-tests-per-hour", 0, "netperf tests that one address may begin in an hour, and as many of iperf3 (default: any number)")
	flags.Var(&l.traffic, "max-traffic-per-hour", "bytes that one address may move in netperf tests in an hour, and as many in those of iperf3, as in 20G; a test ends there (default: any number)")
	flags.Var(&l.rate, "max-rate", "netperf payload of all tests together, each way (default: what the link carries)")
}

// apply puts the limits into a server's options.
func (l *netperfLimits) apply(o *netperf.Options) error {
	if l.perAddress < 0 || l.perHour < 0 || l.rate < 0 {
		return errors.New("--max-tests-per-address, --max-tests-per-hour and --max-rate want more than 0")
	}
	o.MaxTestsPerAddress, o.MaxTestsPerHour, o.MaxBytesPerHour, o.MaxRate = l.perAddress, l.perHour, uint64(l.traffic), l.rate
	if o.MaxTestsPerAddress == 0 {
		o.MaxTestsPerAddress = o.MaxTests
	}
	o.MaxIdle = maxIdle(descriptors())
	o.CPU = func() (busy, total []time.Duration, err error) {
		t, err := watch.CPU()
		return t.Busy, t.Total, err
	}
	return nil
}

// byteCount is a flag's number of bytes, with k, M, G or T for thousands of thousands.
type byteCount uint64

func (b *byteCount) String() string {
	if *b == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*b), 10)
}

func (*byteCount) Type() string { return "bytes" }

func (b *byteCount) Set(text string) error {
	number, scale := text, 1.0
	for suffix, s := range map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			number, scale = before, s
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if v *= scale; err != nil || !(v >= 1 && v < math.MaxInt64) {
		return fmt.Errorf("want a number of bytes, as in 500M or 20G")
	}
	*b = byteCount(v)
	return nil
}

// maxIdle is how many connections that run no test, or serve the web, a server may keep, where the process may open so many descriptors; 0 is not known. The servers
// share them and do not know of each other, so that whoever fills one with silence must leave the others enough.
func maxIdle(descriptors uint64) int {
	const most, listeners = 256, 16
	if descriptors == 0 {
		return most
	}
	return int(min(most, max(4, (descriptors-min(descriptors, listeners))/4)))
}
