package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"bufferbloat/internal/bitrate"
)

// none stands where there is no figure.
const none = "-"

// printable returns s with everything that could steer a terminal, or shift a line without being seen, escaped as in Go: control
// and format characters, line and paragraph separators, spaces other than the plain one, bytes that are not UTF-8.
func printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}

// ms is a time in milliseconds with three decimals, the form of all delays in tables.
func ms(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 3, 64) }

// plainMS is a time in milliseconds with the decimals that it has.
func plainMS(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', -1, 64) }

// briefMS is a time in milliseconds for running text: one decimal from 10 ms on, three below.
func briefMS(d time.Duration) string {
	digits := 3
	if d.Abs() >= 10*time.Millisecond {
		digits = 1
	}
	return strconv.FormatFloat(float64(d)/1e6, 'f', digits, 64)
}

// signed is briefMS with its sign.
func signed(d time.Duration) string {
	if s := briefMS(d); d < 0 {
		return s
	} else {
		return "+" + s
	}
}

// seconds is a time in seconds for running text: "30 s", "12.3 s".
func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return plainMS(d.Round(10*time.Microsecond)) + " ms"
	}
	return strconv.FormatFloat(math.Round(d.Seconds()*10)/10, 'f', -1, 64) + " s"
}

// mbps is a rate in Mbit/s with two decimals, and more where two would make it look like nothing.
func mbps(r bitrate.Bitrate) string {
	digits := 2
	if r > 0 && r < bitrate.Mbit/10 {
		digits = 6
	}
	return strconv.FormatFloat(r.Mbps(), 'f', digits, 64)
}

// lossPercent is the share of lost probes, "-" where none was decided. Any loss shows.
func lossPercent(l *Latency) string {
	loss, ok := l.Loss()
	if !ok {
		return none
	}
	digits := 2
	for v := loss * 100; v > 0 && v < math.Pow10(-digits) && digits < 8; {
		digits++
	}
	return strconv.FormatFloat(loss*100, 'f', digits, 64)
}

// percent is a share of 0..1 in whole percent, with one decimal below 10%.
func percent(share float64) string {
	digits := 0
	if share < 0.0995 && share >= 0.0005 {
		digits = 1
	}
	return strconv.FormatFloat(share*100, 'f', digits, 64) + "%"
}

// plural is "1 ping", "2 pings".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// probeKind names a kind of probe for people.
func probeKind(kind string) string {
	switch kind {
	case "icmp":
		return "ICMP"
	case "irtt":
		return "irtt, UDP"
	case "tcp":
		return "TCP handshakes"
	case "icmp_timestamp":
		return "ICMP timestamps"
	case "connect":
		return "new TCP connections"
	case "tls":
		return "TLS handshakes"
	case "dns":
		return "DNS look-ups"
	case "tcp_rr":
		return "request and response, TCP"
	case "udp_rr":
		return "request and response, UDP"
	case "tcp_rr_closed":
		return "closed loop, TCP"
	case "udp_rr_closed":
		return "closed loop, UDP"
	case "http":
		return "page fetches"
	case "page":
		return "page loads"
	}
	return printable(kind)
}

// Printable returns s as the reports print names and texts that come from outside: everything that could steer a terminal, or shift a line without
// being seen, is escaped as in Go.
func Printable(s string) string { return printable(s) }
