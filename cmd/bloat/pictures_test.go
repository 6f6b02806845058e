package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// docsPictures are the pictures of docs/pictures.md: a file's name and the command line that draws it.
func docsPictures() [][2]string {
	return [][2]string{
		{"rrul.svg", "plot fifo.bloat.json.gz"},
		{"compared.svg", "plot fifo.bloat.json.gz fq_codel.bloat.json.gz"},
		{"cdf.svg", "plot fifo.bloat.json.gz fq_codel.bloat.json.gz --plot cdf --log"},
		{"box.svg", "plot fifo.bloat.json.gz fq_codel.bloat.json.gz --plot box"},
		{"rate-latency.svg", "plot fifo.bloat.json.gz fq_codel.bloat.json.gz --plot rate-latency"},
		{"shares.svg", "plot fifo.bloat.json.gz --plot shares"},
		{"heat.svg", "plot fifo.bloat.json.gz fq_codel.bloat.json.gz --plot heat --same-axes"},
	}
}

// TestThePicturesOfTheDocsAreWhatTheCommandsDraw makes the runs of "make demo" anew, in virtual time, and draws them. "make pictures" is this test
// with -update.
func TestThePicturesOfTheDocsAreWhatTheCommandsDraw(t *testing.T) {
	slow(t)
	if runtime.GOARCH != "amd64" {
		t.Skipf("the pictures were made on amd64; on %s floating-point rounding may differ", runtime.GOARCH)
	}
	t.Setenv("LC_ALL", "C.UTF-8")
	dir := t.TempDir()
	inDir := func(line string) []string {
		words := strings.Fields(line)
		for i, w := range words {
			if strings.HasSuffix(w, ".bloat.json.gz") {
				words[i] = filepath.Join(dir, w)
			}
		}
		return words
	}
	run := func(words []string) outcome {
		t.Helper()
		got := bloat(t.Context(), nil, words...)
		if got.status != 0 || got.stderr != "" {
			t.Fatalf("bloat %v: status %d, %s", words, got.status, got.stderr)
		}
		return got
	}
	run(inDir("speedtest --lab fifo --virtual -o fifo.bloat.json.gz"))
	run(inDir("speedtest --lab fq_codel --virtual -o fq_codel.bloat.json.gz"))
	page, err := os.ReadFile("../../docs/pictures.md")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, p := range docsPictures() {
		name, line := p[0], p[1]
		file := filepath.Join(dir, name)
		run(append(inDir(line), "-o", file))
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		total += len(got)
		golden(t, filepath.Join("../../docs/pictures", name), got)
		for _, want := range []string{"bloat " + line + " -o " + name + "\n", "](pictures/" + name + ")"} {
			if !bytes.Contains(page, []byte(want)) {
				t.Errorf("docs/pictures.md lacks %q", want)
			}
		}
	}
	if total > 200_000 {
		t.Errorf("the pictures of the docs take %d bytes, want at most 200000", total)
	}
	text := run(inDir("plot fifo.bloat.json.gz --width 100"))
	golden(t, "../../docs/pictures/terminal.txt", []byte(text.stdout))
}

// golden compares got with a file, or writes it with -update.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what is drawn; look at the change and run make pictures", file)
	}
}
