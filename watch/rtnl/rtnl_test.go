package rtnl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestAttributesComeBackAsTheyWereAppended(t *testing.T) {
	b := AppendAttr(nil, 3, []byte("veth\x00"))
	b = AppendAttr(b, 0x8005, AppendAttr(nil, 1, []byte{1, 0, 0, 0}))
	var kinds []uint16
	err := Attrs(b, func(kind uint16, value []byte) error {
		kinds = append(kinds, kind)
		if kind == 3 && String(value) != "veth" {
			t.Errorf("got %q", value)
		}
		if n, ok := Uint32(value); kind == 5 && (!ok || n != 8|1<<16 && binary.NativeEndian.Uint16(value) != 8) {
			t.Errorf("got %d", n)
		}
		return nil
	})
	if err != nil || len(kinds) != 2 || kinds[0] != 3 || kinds[1] != 5 {
		t.Errorf("got %v, %v; want 3 and 5, without the flag for nesting", kinds, err)
	}
}

func TestHalfAnAttributeIsAnErrorWithItsPlace(t *testing.T) {
	whole := AppendAttr(nil, 1, []byte{1, 2, 3, 4})
	for cut := 1; cut < len(whole); cut++ {
		var bad *MalformedError
		if err := Attrs(append(bytes.Clone(whole), whole[:cut]...), func(uint16, []byte) error { return nil }); !errors.As(err, &bad) || bad.Offset != 8 {
			t.Errorf("%d bytes of the second: got %v, want an error at byte 8", cut, err)
		}
	}
}

func TestMessagesOfAnotherRequestAreLeftOut(t *testing.T) {
	message := func(kind uint16, sequence uint32, body ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(headerSize+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint32(b, sequence)
		return append(binary.NativeEndian.AppendUint32(b, 0), body...)
	}
	b := append(message(16, 7, 1, 2, 3, 4), message(17, 8, 5, 6, 7, 8)...)
	var got []uint16
	over, err := messages(b, 8, func(m Message, _ uint16) (bool, error) { got = append(got, m.Type); return true, nil })
	if !over || err != nil || len(got) != 1 || got[0] != 17 {
		t.Errorf("got %v, %v, %v; want the second alone", got, over, err)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(AppendAttr(nil, 1, []byte("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		seen := 0
		_, err := messages(b, 1, func(m Message, _ uint16) (bool, error) {
			seen += headerSize + len(m.Body)
			_ = Attrs(m.Body, func(_ uint16, v []byte) error { _ = String(v); return nil })
			return false, nil
		})
		if bad := (*MalformedError)(nil); err != nil && (!errors.As(err, &bad) || bad.Offset < 0 || bad.Offset > len(b)) || seen > len(b)+align*len(b) {
			t.Errorf("%x: %v, %d bytes of messages", b, err, seen)
		}
	})
}
