package program

import "os"

// Output is the file of -o. What it held stays until the first byte of the new recording comes, so that a server that can't be reached costs
// nobody an earlier recording.
type Output struct {
	file  *os.File
	begun bool
}

// OpenOutput opens the file, or makes it, so that one that can't be written is known before anything is sent.
func OpenOutput(name string) (*Output, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return &Output{file: file}, nil
}

// Regular reports whether it is a file, and no pipe or device.
func (f *Output) Regular() bool {
	info, err := f.file.Stat()
	return err == nil && info.Mode().IsRegular()
}

// Write implements io.Writer.
func (f *Output) Write(b []byte) (int, error) {
	if !f.begun {
		f.begun = true
		if f.Regular() { // a pipe or a device can't be cut, nor need it be
			if err := f.file.Truncate(0); err != nil {
				return 0, err
			}
		}
	}
	return f.file.Write(b)
}

// Close implements io.Closer.
func (f *Output) Close() error { return f.file.Close() }
