package main

import "os"

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
