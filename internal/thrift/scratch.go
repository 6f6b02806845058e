package thrift

import (
	"cmp"
	"errors"
	"os"
	"sync"
)

// Scratch is a file for what is too much for memory. It is made in the system's directory for temporary files when it is first written to, and has no name
// there where the system lets a file that is open be without. The zero value is ready; it is safe for concurrent use.
type Scratch struct {
	mu    sync.Mutex
	file  *os.File // nil before the first write
	named bool     // it still has its name
	err   error    // why there is none
}

// WriteAt implements io.WriterAt.
func (s *Scratch) WriteAt(b []byte, at int64) (int, error) {
	file, err := s.open(true)
	if err != nil {
		return 0, err
	}
	return file.WriteAt(b, at)
}

// ReadAt implements io.ReaderAt.
func (s *Scratch) ReadAt(b []byte, at int64) (int, error) {
	file, err := s.open(false)
	if err != nil {
		return 0, err
	}
	return file.ReadAt(b, at)
}

// open returns the file, which it makes where there is none and it is to be made.
func (s *Scratch) open(create bool) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil && s.err == nil && create {
		if s.file, s.err = os.CreateTemp("", "bufferbloat-*"); s.err == nil {
			s.named = os.Remove(s.file.Name()) != nil
		}
	}
	if s.file == nil {
		return nil, cmp.Or(s.err, os.ErrNotExist)
	}
	return s.file, nil
}

// Close gives back what the file took. It can't be used after that.
func (s *Scratch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if s.named {
		err = errors.Join(err, os.Remove(s.file.Name()))
	}
	s.file, s.err = nil, os.ErrClosed
	return err
}
