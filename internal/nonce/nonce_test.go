package nonce

import (
	"bytes"
	"io"
	"testing"
)

func TestNoTwoAreAlike(t *testing.T) {
	seen := map[[16]byte]bool{}
	for range 1000 {
		var b [16]byte
		if _, err := io.ReadFull(Reader, b[:]); err != nil || seen[b] {
			t.Fatalf("got %x again, %v", b, err)
		}
		seen[b] = true
	}
}

// A large read may come in pieces, and has no rest of zeros.
func TestAllOfItIsFilled(t *testing.T) {
	b := make([]byte, 1<<20)
	Fill(b)
	if i := bytes.Index(b, make([]byte, 16)); i >= 0 {
		t.Errorf("16 bytes from %d on are 0", i)
	}
	if Uint16() == Uint16() && Uint16() == Uint16() && Uint16() == Uint16() {
		t.Error("three pairs of numbers are alike")
	}
}
