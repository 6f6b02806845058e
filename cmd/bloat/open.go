package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"bufferbloat"
	"bufferbloat/report"
	"bufferbloat/report/flent"
	"bufferbloat/report/foreign"
)

// An opened file is a result, and the recording behind it where the file has samples.
type opened struct {
	result    *report.Result
	recording *bufferbloat.Recording // nil where there are no samples
}

// openResult reads a result of any kind: one of our recordings or JSON results, a data file of flent, or what another program printed. The kind is
// told by the content and never by the name.
func openResult(path string) (*report.Result, error) {
	o, err := openFigures(path, os.Stdin)
	return o.result, err
}

// open is openResult with the recording; the path "-" is stdin.
func open(path string, stdin io.Reader) (opened, error) {
	return openBy(path, stdin, bufferbloat.ReadRecording)
}

// openFigures is open without the recording, of which it holds no more than it must.
func openFigures(path string, stdin io.Reader) (opened, error) {
	o, err := openBy(path, stdin, bufferbloat.ReadPacked)
	o.recording = nil
	return o, err
}

// openBy opens a file, and reads it by ours if it is one of our recordings.
func openBy(path string, stdin io.Reader, ours func(io.Reader) (*bufferbloat.Recording, error)) (opened, error) {
	if path == "-" {
		o, err := read(stdin, ours)
		return o, named("stdin", err)
	}
	if err := checkRegular(path); err != nil {
		return opened{}, err
	}
	file, err := os.Open(path)
	if err != nil {
		return opened{}, err
	}
	defer file.Close()
	o, err := read(file, ours)
	return o, named(path, err)
}

// checkRegular returns an error for what is no regular file, before it is opened: a FIFO that nobody writes to would keep the program forever, and
// a device may do anything. The process's own descriptors are let through, because the shell's <(COMMAND) is a pipe among them.
func checkRegular(path string) error {
	if isDescriptor(path) {
		return nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return named(path, errNotRegular)
	}
	return nil // or an error that opening will say
}

var errNotRegular = errors.New("is not a regular file")

// isDescriptor reports whether a path names an open file of this process.
func isDescriptor(path string) bool {
	path = filepath.Clean(path)
	dir := filepath.Dir(path)
	return path == "/dev/stdin" || dir == "/dev/fd" || dir == "/proc/self/fd"
}

func named(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// headSize is how much of a file is looked at to tell its kind, compressed.
const headSize = 64 << 10

func read(r io.Reader, ours func(io.Reader) (*bufferbloat.Recording, error)) (opened, error) {
	b := bufio.NewReaderSize(r, headSize)
	head, err := b.Peek(headSize)
	if len(head) == 0 && err != io.EOF {
		return opened{}, err
	}
	head = plainHead(head)
	switch {
	case bytes.HasPrefix(head, []byte(`{"head":`)):
		return ofRecording(ours(b))
	case report.IsResult(head):
		return ofDocument(b)
	case flent.Is(head):
		return ofRecording(flent.Read(b))
	}
	result, rec, err := foreign.ReadRaw(b)
	return opened{result, rec}, err
}

// ofDocument reads a JSON result of ours, compressed or not.
func ofDocument(b *bufio.Reader) (opened, error) {
	var text io.Reader = b
	if head, _ := b.Peek(2); bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		gz, err := gzip.NewReader(b)
		if err != nil {
			return opened{}, err
		}
		text = gz
	}
	result, err := report.ReadResult(text)
	return opened{result: result}, err
}

func ofRecording(rec *bufferbloat.Recording, err error) (opened, error) {
	if err != nil {
		return opened{}, err
	}
	return opened{report.New(rec), rec}, nil
}

// plainHead returns the beginning of the text of a file: of gzip what the first bytes hold, otherwise the bytes.
func plainHead(head []byte) []byte {
	if !bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return head
	}
	gz, err := gzip.NewReader(bytes.NewReader(head))
	if err != nil {
		return head
	}
	text := make([]byte, headSize)
	n, _ := io.ReadFull(gz, text) // a head ends in the middle of things
	return text[:n]
}
