package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bufferbloat"
	"bufferbloat/report"
	"bufferbloat/report/flent"
	"bufferbloat/report/html"
	"bufferbloat/report/plot"
	"bufferbloat/report/termplot"
)

// TestAPackedRecordingSaysWhatAPlainOneSays writes one run in every form that there is, from either kind of recording. What reads a field that packing leaves
// empty would say less, or another thing.
func TestAPackedRecordingSaysWhatAPlainOneSays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.bloat.json.gz")
	if got := bloat(t.Context(), nil, strings.Fields("speedtest --lab fq_codel --virtual -t 3 -n 2 -i 2 -o "+file)...); got.status != 0 {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := bufferbloat.ReadRecording(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	packed, err := bufferbloat.ReadPacked(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if f := packed.Flows[0]; f.Points != nil || len(f.Readings()) == 0 || len(packed.Others) == 0 || packed.Others[0].At != nil || packed.Probes[0].Samples != nil {
		t.Fatal("the recording is not packed, or has nothing to pack")
	}
	results := [2]*opened{{report.New(plain), plain}, {report.New(packed), packed}}
	same := func(name string, write func(o *opened, w io.Writer) error) {
		t.Helper()
		var out [2]bytes.Buffer
		for i := range out {
			if err := write(results[i], &out[i]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if out[0].Len() == 0 || !bytes.Equal(out[0].Bytes(), out[1].Bytes()) {
			t.Errorf("%s: %d bytes from a packed recording differ from %d from a plain one", name, out[1].Len(), out[0].Len())
		}
	}
	for _, format := range strings.Split(formatNames, ", ") {
		write, err := resultWriter(format)
		if err != nil {
			t.Fatal(err)
		}
		same(format, write)
	}
	same("recording", func(o *opened, w io.Writer) error { return bufferbloat.WriteRecording(w, o.recording) })
	same("flent", func(o *opened, w io.Writer) error { return flent.Write(w, o.recording) })
	same("page", func(o *opened, w io.Writer) error {
		return html.Write(w, []html.Run{{Name: "run", Recording: o.recording}}, plot.Options{})
	})
	for name, draw := range map[string]func(io.Writer, []termplot.Run, termplot.Options) error{"time": termplot.Time, "cdf": termplot.CDF} {
		same("terminal "+name, func(o *opened, w io.Writer) error {
			return draw(w, []termplot.Run{{Name: "run", Recording: o.recording}}, termplot.Options{})
		})
	}
	for _, kind := range plot.Kinds() {
		same("plot "+string(kind), func(o *opened, w io.Writer) error {
			p, err := plot.New(kind, []plot.Run{{Name: "run", Recording: o.recording}}, plot.Options{})
			if err != nil {
				return err
			}
			return p.WriteSVG(w)
		})
	}
	if !slices.Equal(plain.Findings, packed.Findings) {
		t.Errorf("findings %v, want %v", packed.Findings, plain.Findings)
	}
}
