package flent

import (
	"errors"
	"io"
	"sync"
)

// ahead decompresses in a goroutine of its own while the text before it is parsed: each takes about half of the time that a file takes. What it reads
// from must never block.
type ahead struct {
	full  chan chunk
	free  chan []byte
	stop  chan struct{}
	done  sync.WaitGroup
	chunk chunk
	at    int
}

// chunk is a piece of text, and the error that came with it.
type chunk struct {
	b   []byte
	err error
}

const (
	chunkSize = 64 << 10
	chunks    = 4
)

// newAhead starts reading r; the caller must close it.
func newAhead(r io.Reader) *ahead {
	a := &ahead{full: make(chan chunk, chunks), free: make(chan []byte, chunks), stop: make(chan struct{})}
	for range chunks {
		a.free <- make([]byte, chunkSize)
	}
	a.done.Go(func() {
		for {
			var b []byte
			select {
			case b = <-a.free:
			case <-a.stop:
				return
			}
			n, err := r.Read(b[:chunkSize])
			select {
			case a.full <- chunk{b[:n], err}:
			case <-a.stop:
				return
			}
			if err != nil {
				return
			}
		}
	})
	return a
}

// Read returns the text in order, and after it the error that ended it.
func (a *ahead) Read(b []byte) (int, error) {
	for a.at == len(a.chunk.b) {
		if a.chunk.err != nil {
			return 0, a.chunk.err
		}
		if a.chunk.b != nil {
			a.free <- a.chunk.b // there is room for all that exist
		}
		a.chunk, a.at = <-a.full, 0
	}
	n := copy(b, a.chunk.b[a.at:])
	a.at += n
	return n, nil
}

// close ends the goroutine.
func (a *ahead) close() {
	close(a.stop)
	a.done.Wait()
}

// pieces is a file in memory, in pieces, so that reading it copies nothing.
type pieces struct {
	b    [][]byte
	at   int // in the first piece
	size int
}

// fill reads r up to its end, or until there are most bytes or more.
func (p *pieces) fill(r io.Reader, most int) error {
	for p.size < most {
		b := make([]byte, chunkSize)
		n, err := io.ReadFull(r, b)
		p.b, p.size = append(p.b, b[:n]), p.size+n
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

func (p *pieces) next() bool {
	for len(p.b) > 0 && p.at == len(p.b[0]) {
		p.b, p.at = p.b[1:], 0
	}
	return len(p.b) > 0
}

func (p *pieces) Read(b []byte) (int, error) {
	if !p.next() {
		return 0, io.EOF
	}
	n := copy(b, p.b[0][p.at:])
	p.at += n
	return n, nil
}

// ReadByte is what the decompressor asks for, so as not to put a buffer of its own before it.
func (p *pieces) ReadByte() (byte, error) {
	if !p.next() {
		return 0, io.EOF
	}
	p.at++
	return p.b[0][p.at-1], nil
}
