package http2

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	"golang.org/x/net/http2"
)

// Frames are compared with those of another implementation, in both directions.
func TestFramesAreThoseOfAnotherImplementation(t *testing.T) {
	t.Parallel()
	var theirs bytes.Buffer
	f := http2.NewFramer(&theirs, nil)
	steps := []struct {
		write func() error
		ours  []byte
	}{
		{func() error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		}, AppendSettings(nil, Setting{EnablePush, 0}, Setting{InitialWindowSize, 1 << 30})},
		{f.WriteSettingsAck, Head{Type: SettingsType, Flags: Ack}.AppendTo(nil)},
		{func() error { return f.WriteWindowUpdate(3, 1<<20) }, AppendWindowUpdate(nil, 3, 1<<20)},
		{func() error { return f.WriteData(1, true, []byte("hello")) }, append(Head{5, Data, EndStream, 1}.AppendTo(nil), "hello"...)},
		{func() error { return f.WritePing(true, [8]byte{1, 2, 3}) }, append(Head{8, Ping, Ack, 0}.AppendTo(nil), 1, 2, 3, 0, 0, 0, 0, 0)},
		{func() error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: []byte("block"), EndHeaders: true})
		}, append(Head{5, Headers, EndHeaders, 5}.AppendTo(nil), "block"...)},
	}
	for i, s := range steps {
		theirs.Reset()
		if err := s.write(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(theirs.Bytes(), s.ours) {
			t.Errorf("frame %d: %x, want %x", i, s.ours, theirs.Bytes())
		}
		h, err := ReadHead(bufio.NewReader(&theirs), DefaultFrame)
		if err != nil || !bytes.Equal(h.AppendTo(nil), s.ours[:HeadSize]) {
			t.Errorf("frame %d is read as %+v, %v", i, h, err)
		}
	}
}

func TestPaddingAndPriorityAreTakenOff(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	if err := f.WriteDataPadded(1, false, []byte("hello"), make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(&b)
	h, err := ReadHead(r, DefaultFrame)
	if err != nil {
		t.Fatal(err)
	}
	if content, padding, err := h.Unpad(r); err != nil || content != 5 || padding != 7 {
		t.Errorf("%d bytes and %d of padding, %v, want 5 and 7", content, padding, err)
	}
	b.Reset()
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("block"), PadLength: 3, Priority: http2.PriorityParam{Weight: 9}}); err != nil {
		t.Fatal(err)
	}
	r = bufio.NewReader(&b)
	h, err = ReadHead(r, DefaultFrame)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := h.ReadPayload(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.Fragment(payload); err != nil || string(got) != "block" {
		t.Errorf("the block is %q, %v", got, err)
	}
}

func TestWhatCantBeIsAFormatError(t *testing.T) {
	t.Parallel()
	parse := map[string]func() error{
		"settings of 5 bytes":   func() error { _, err := ParseSettings(make([]byte, 5)); return err },
		"a window of 2^31":      func() error { _, err := ParseSettings([]byte{0, 4, 0x80, 0, 0, 0}); return err },
		"a frame size of 1":     func() error { _, err := ParseSettings([]byte{0, 5, 0, 0, 0, 1}); return err },
		"a number of 3 bytes":   func() error { _, err := Number(make([]byte, 3)); return err },
		"a goodbye of 7 bytes":  func() error { _, _, err := ParseGoAway(make([]byte, 7)); return err },
		"padding beyond itself": func() error { _, err := Head{Length: 2, Flags: Padded}.Fragment([]byte{9, 0}); return err },
		"no priority":           func() error { _, err := Head{Length: 2, Flags: HasPrio}.Fragment([]byte{9, 0}); return err },
		"an oversize frame": func() error {
			_, err := ReadHead(bufio.NewReader(bytes.NewReader([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1})), DefaultFrame)
			return err
		},
		"data padded beyond itself": func() error {
			_, _, err := Head{Length: 2, Flags: Padded}.Unpad(bufio.NewReader(bytes.NewReader([]byte{5})))
			return err
		},
	}
	for name, f := range parse {
		var format *FormatError
		if err := f(); !errors.As(err, &format) {
			t.Errorf("%s: %v, want a *FormatError", name, err)
		}
	}
	if _, err := (Head{Length: 9}).ReadPayload(bytes.NewReader(make([]byte, 3))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a payload that breaks off: %v", err)
	}
}

func FuzzReadHead(f *testing.F) {
	f.Add(AppendSettings(nil, Setting{EnablePush, 0}))
	f.Add(append(Head{5, Headers, EndHeaders | Padded | HasPrio, 5}.AppendTo(nil), 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		h, err := ReadHead(r, DefaultFrame)
		if err != nil {
			return
		}
		// The reserved bit is not read.
		want := bytes.Clone(b[:HeadSize])
		want[5] &= 0x7f
		if got := h.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%x parses to %+v, encodes to %x", b, h, got)
		}
		payload, err := h.ReadPayload(r)
		if err != nil {
			return
		}
		if fragment, err := h.Fragment(payload); err == nil && len(fragment) > len(payload) {
			t.Errorf("%x: a block of %d bytes in %d", b, len(fragment), len(payload))
		}
		_, _ = ParseSettings(payload)
		_, _, _ = ParseGoAway(payload)
	})
}
