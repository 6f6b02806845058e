package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// depth is the depth of a queue as a flag: "250ms" is time of the link's rate, "256k" bytes, "1000p" packets. One of its fields is set.
type depth struct {
	time    time.Duration
	bytes   int
	packets int
}

// maxDepth bounds bytes and packets; the queues have limits of their own below it.
const maxDepth = 1 << 40

// Set parses a depth. k and m are 1024 and 1048576 bytes, as tc(8) counts them.
func (d *depth) Set(s string) error {
	text := strings.ToLower(strings.TrimSpace(s))
	if t, err := time.ParseDuration(text); err == nil && t > 0 {
		*d = depth{time: t}
		return nil
	}
	for _, u := range []struct {
		name  string
		bytes float64
	}{{"kib", 1 << 10}, {"kb", 1 << 10}, {"k", 1 << 10}, {"mib", 1 << 20}, {"mb", 1 << 20}, {"m", 1 << 20}, {"b", 1}, {"p", 0}} {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		switch {
		case err != nil || !(n > 0) || n*max(u.bytes, 1) > maxDepth:
			return fmt.Errorf("buffer %q: want a number above 0 before the unit", s)
		case u.bytes == 0 && n == float64(int(n)):
			*d = depth{packets: int(n)}
			return nil
		case u.bytes > 0 && int(n*u.bytes) > 0:
			*d = depth{bytes: int(n * u.bytes)}
			return nil
		}
		break
	}
	return fmt.Errorf("buffer %q: want time (250ms), bytes (3000b, 256k, 2m) or packets (1000p)", s)
}

func (d *depth) String() string {
	switch {
	case d.bytes > 0:
		return strconv.Itoa(d.bytes) + "b"
	case d.packets > 0:
		return strconv.Itoa(d.packets) + "p"
	}
	return d.time.String()
}

// Type names the flag's value in a usage text.
func (*depth) Type() string { return "depth" }
