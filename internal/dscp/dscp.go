// Package dscp is the Differentiated Services code point: the upper six bits of the IPv4 TOS and IPv6 Traffic Class byte.
package dscp

import (
	"fmt"
	"strconv"
	"strings"
)

// CodePoint is a six-bit DSCP (RFC 2474), 0 to 63. The two ECN bits below it (RFC 3168) are not part of it.
type CodePoint uint8

// The code points that have names of their own (RFC 2474, 2597, 3246, 5865, 8622).
const (
	CS0 CodePoint = 0
	CS1 CodePoint = 8
	CS5 CodePoint = 40
	EF  CodePoint = 46
)

var names = map[string]CodePoint{
	"cs0": 0, "df": 0, "be": 0, "le": 1, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56,
	"af11": 10, "af12": 12, "af13": 14, "af21": 18, "af22": 20, "af23": 22, "af31": 26, "af32": 28, "af33": 30,
	"af41": 34, "af42": 36, "af43": 38, "ef": 46, "va": 44, "voice-admit": 44,
}

// Valid reports whether p has no more than its six bits.
func (p CodePoint) Valid() bool { return p <= 63 }

// Byte returns the whole DS byte with the ECN bits zero (Not-ECT).
func (p CodePoint) Byte() uint8 { return uint8(p) << 2 }

// FromByte returns the code point of a DS byte, without its ECN bits.
func FromByte(b uint8) CodePoint { return CodePoint(b >> 2) }

// String returns the name where there is one ("EF", "CS1"), otherwise the number.
func (p CodePoint) String() string {
	if p == 0 {
		return "CS0"
	}
	best := ""
	for n, v := range names {
		if v == p && n != "voice-admit" {
			best = strings.ToUpper(n)
		}
	}
	if best != "" {
		return best
	}
	return strconv.Itoa(int(p))
}

// Parse reads a code point by name in any case ("EF", "af41") or by number 0 to 63, decimal or with 0x. It takes the
// six-bit code point, never the whole byte: EF is 46 or 0x2e, and 0xb8 is an error.
func Parse(s string) (CodePoint, error) {
	low := strings.ToLower(strings.TrimSpace(s))
	if p, ok := names[low]; ok {
		return p, nil
	}
	digits, base := low, 10 // a leading zero is no octal
	if hex, ok := strings.CutPrefix(low, "0x"); ok {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 8)
	if err != nil || !CodePoint(v).Valid() {
		return 0, fmt.Errorf("DSCP %q: want a name (CS0..CS7, AF11..AF43, EF, VA, LE) or a code point 0 to 63", s)
	}
	return CodePoint(v), nil
}

// Set parses s into p; with String and Type it makes a CodePoint a command-line flag.
func (p *CodePoint) Set(s string) error {
	v, err := Parse(s)
	if err == nil {
		*p = v
	}
	return err
}

// Type names the flag's value in a usage text.
func (*CodePoint) Type() string { return "dscp" }
