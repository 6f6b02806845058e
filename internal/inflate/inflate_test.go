package inflate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// zip compresses with every level in turn, one member each.
func zip(t testing.TB, level int, texts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, text := range texts {
		w, err := gzip.NewWriterLevel(&b, level)
		if err != nil {
			t.Fatal(err)
		}
		w.Name, w.Comment, w.Extra = "a name", "a comment", []byte{1, 2, 3}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func texts() map[string][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	few := make([]byte, 200_000)
	for i := range few {
		few[i] = "0123456789,.\n"[rnd.IntN(13)]
	}
	return map[string][]byte{
		"nothing": nil, "a byte": {7}, "one byte over and over": bytes.Repeat([]byte{'x'}, 500_000), "noise": noise, "few signs": few,
		"far matches": bytes.Repeat(noise[:32<<10], 4), "text": []byte(strings.Repeat(`{"t": 1588855601.601887, "val": 20.1},`+"\n", 10_000)),
	}
}

func TestTextComesBack(t *testing.T) {
	for name, text := range texts() {
		for level := gzip.HuffmanOnly; level <= gzip.BestCompression; level++ {
			got, err := io.ReadAll(NewReader(zip(t, level, text, nil, text)))
			if want := append(bytes.Clone(text), text...); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, level %d: %d bytes, %v; want %d", name, level, len(got), err, len(want))
			}
		}
	}
}

func TestDataThatIsCutOffSaysSo(t *testing.T) {
	whole := zip(t, gzip.DefaultCompression, texts()["few signs"][:3000])
	for n := range whole {
		if _, err := io.ReadAll(NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d of %d bytes: %v, want %v", n, len(whole), err, io.ErrUnexpectedEOF)
		}
	}
}

// FuzzInflate holds the package to compress/gzip: the same text, and an error where that has one.
func FuzzInflate(f *testing.F) {
	for _, text := range texts() {
		text = text[:min(len(text), 500)]
		f.Add(zip(f, gzip.DefaultCompression, text))
		f.Add(zip(f, gzip.NoCompression, text, text))
		f.Add(zip(f, gzip.HuffmanOnly, text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 1 << 20
		got, err := io.ReadAll(io.LimitReader(NewReader(b), most))
		var want []byte
		z, wantErr := gzip.NewReader(bytes.NewReader(b))
		if wantErr == nil {
			want, wantErr = io.ReadAll(io.LimitReader(z, most))
		}
		if len(want) == most && len(got) == most {
			return
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, and compress/gzip says %v", err, wantErr)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Errorf("%d bytes that differ from compress/gzip's %d", len(got), len(want))
		}
	})
}

func benchmark(b *testing.B, open func([]byte) io.Reader) {
	text := []byte(strings.Repeat("", 1))
	rnd := rand.New(rand.NewPCG(3, 4))
	for len(text) < 3<<20 {
		text = append(text, []byte("{\n        \"dur\": 0.2,\n        \"t\": 14367359")...)
		for range 6 {
			text = append(text, byte('0'+rnd.IntN(10)))
		}
	}
	data := zip(b, gzip.DefaultCompression, text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.Copy(io.Discard, open(data)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInflate(b *testing.B) { benchmark(b, func(d []byte) io.Reader { return NewReader(d) }) }

func BenchmarkStandardLibrary(b *testing.B) {
	benchmark(b, func(d []byte) io.Reader { z, _ := gzip.NewReader(bytes.NewReader(d)); return z })
}
