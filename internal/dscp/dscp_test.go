package dscp

import "testing"

func TestParse(t *testing.T) {
	for s, want := range map[string]CodePoint{"EF": 46, "ef": 46, "46": 46, "0x2e": 46, "CS1": 8, "be": 0, "AF41": 34, "0": 0, "63": 63, "va": 44, "046": 46, "0X2E": 46} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0xb8", "184", "64", "-1", "EF,CS1", "cs8", "0x10,0x20", "0b1", "0o7", "4_6", "0x"} {
		if got, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) = %d without an error", s, got)
		}
	}
}

func TestEveryCodePointPrintsWhatParses(t *testing.T) {
	for p := CodePoint(0); p < 64; p++ {
		if got, err := Parse(p.String()); err != nil || got != p {
			t.Errorf("%d prints as %q, which parses to %d, %v", uint8(p), p, got, err)
		}
		if FromByte(p.Byte()|3) != p {
			t.Errorf("%d is lost on the way through its byte", uint8(p))
		}
	}
	if EF.Byte() != 0xb8 {
		t.Errorf("EF is %#x on the wire, want 0xb8", EF.Byte())
	}
}
