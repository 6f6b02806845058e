package http

import (
	"net"
	"sync/atomic"
	"time"

	"bufferbloat/internal/host"
)

// meter counts what passes a connection, and the time that its calls take. Its figures may be read at any time.
type meter struct {
	net.Conn
	clock   host.Clock
	written atomic.Uint64
	pending atomic.Int64 // bytes of the write that is under way
	took    atomic.Int64 // ns in Read and Write
	held    atomic.Int64 // bytes of finished calls of Write that were not written on

	corked int // used by the writer alone, as kept is
	kept   []byte
}

func (m *meter) reset() { m.took.Store(0) }

func (m *meter) Read(b []byte) (int, error) {
	began := m.clock.Now()
	n, err := m.Conn.Read(b)
	m.took.Add(int64(m.clock.Now().Sub(began)))
	return n, err
}

// Write writes b, or keeps it while the meter is corked, until there is enough for one write.
func (m *meter) Write(b []byte) (int, error) {
	if m.corked == 0 {
		return m.write(b)
	}
	m.kept = append(m.kept, b...)
	if len(m.kept) < m.corked {
		m.held.Store(int64(len(m.kept)))
		return len(b), nil
	}
	if err := m.flush(); err != nil {
		return 0, err
	}
	return len(b), nil
}

// cork has what is written kept until there are so many bytes; 0 writes what is kept, and keeps no more.
func (m *meter) cork(bytes int) error {
	m.corked = bytes
	if bytes > 0 {
		return nil
	}
	return m.flush()
}

func (m *meter) flush() error {
	kept := m.kept
	m.kept = m.kept[:0]
	if len(kept) == 0 {
		return nil
	}
	_, err := m.write(kept)
	return err
}

func (m *meter) write(b []byte) (int, error) {
	began := m.clock.Now()
	m.pending.Store(int64(len(b)))
	n, err := m.Conn.Write(b)
	m.written.Add(uint64(max(0, n)))
	m.pending.Store(0)
	m.held.Store(0)
	m.took.Add(int64(m.clock.Now().Sub(began)))
	return n, err
}

// busy is the time that TLS itself took: between the meters, not waiting for the connection. It is a little too high where the machine is busy with
// other things meanwhile.
func (s *secure) busy() time.Duration {
	return max(0, time.Duration(s.outer.took.Load()-s.inner.took.Load()))
}
