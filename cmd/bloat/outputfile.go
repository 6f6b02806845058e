package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// outputFile is the file of -o. What it held stays until the first byte of the new recording comes, so that a server that can't be reached costs
// nobody an earlier recording.
type outputFile struct {
	file  *os.File
	begun bool
}

// openOutput opens the file, or makes it, so that one that can't be written is known before anything is sent.
func openOutput(name string) (*outputFile, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return &outputFile{file: file}, nil
}

// Write implements io.Writer.
func (f *outputFile) Write(b []byte) (int, error) {
	if !f.begun {
		f.begun = true
		if info, err := f.file.Stat(); err != nil || info.Mode().IsRegular() { // a pipe can't be cut, nor need it be
			if err := f.file.Truncate(0); err != nil {
				return 0, err
			}
		}
	}
	return f.file.Write(b)
}

// Close implements io.Closer.
func (f *outputFile) Close() error { return f.file.Close() }

// writeFile has a file's content made, and then writes the file: content that can't be made costs nobody an earlier file, and the file may be one
// that the content is made of.
func writeFile(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return saveFile(path, b.Bytes())
}

// saveFile writes a file of -o. It is written in place, so that it keeps its owner, its mode and its links. What is left of one that could not be
// written whole is removed.
func saveFile(path string, content []byte) error {
	file, err := openOutput(path)
	if err != nil {
		return &usageError{fmt.Errorf("-o: %w", err)}
	}
	info, err := file.file.Stat()
	regular := err == nil && info.Mode().IsRegular()
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		if regular {
			os.Remove(path)
		}
		return err
	}
	return nil
}
