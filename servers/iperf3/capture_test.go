package iperf3

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
)

// step is what a client did next in a capture, and what its server had said before.
type step struct {
	connection string
	send       []byte
	end        bool
	said       []byte // by the server on the control connection, since the step before
}

var recordLine = regexp.MustCompile(`^(ctl|data\d+|udp\d+) ([CS]) \d+\.\d{6} +(FIN|RST|[0-9a-f]+)(?: +#.*)?$`)

// steps reads a capture of a whole test.
func steps(t *testing.T, path string) (list []step) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var said []byte
	for line := range strings.Lines(string(text)) {
		m := recordLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		b, _ := hex.DecodeString(m[3]) // FIN and RST are no hex
		switch ended := m[3] == "FIN" || m[3] == "RST"; {
		case m[2] == "C":
			list = append(list, step{connection: m[1], send: b, end: ended, said: said})
			said = nil
		case m[1] == "ctl" && !ended:
			said = append(said, b...)
		}
	}
	return list
}

// TestOurServerAgainstWhatStockClientsSaid plays the client's side of captures, byte for byte, over the kernel, all at once.
func TestOurServerAgainstWhatStockClientsSaid(t *testing.T) {
	list, err := filepath.Glob(filepath.Join("..", "..", "internal", "wire", "iperf3", "testdata", "captures", "*.hex"))
	if err != nil || len(list) < 20 {
		t.Fatalf("%d captures, %v", len(list), err)
	}
	h := host.NewKernel()
	var group sync.WaitGroup
	for _, path := range list {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "busy") || strings.HasPrefix(name, "error") || strings.HasPrefix(name, "server-term") {
			continue // there the server has the last word
		}
		at, _ := serve(t, h, Options{}) // each its own: the cookies of two captures with UDP come from one address
		group.Go(func() {
			if err := (&player{T: t, at: at, conns: map[string]net.Conn{}}).play(steps(t, path)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	group.Wait()
}

// player is the client of a capture.
type player struct {
	*testing.T
	at     netip.AddrPort
	conns  map[string]net.Conn
	moving sync.WaitGroup
}

func (p *player) play(list []step) error {
	defer p.moving.Wait()
	defer func() {
		for _, c := range p.conns {
			c.Close()
		}
	}()
	for _, s := range list {
		if err := p.hear(s.said); err != nil {
			return err
		}
		conn, err := p.conn(s.connection)
		if err != nil {
			return err
		}
		if s.end {
			conn.Close()
			continue
		}
		if len(s.send) == 1 && s.send[0] == wire.TestEnd.Byte() {
			p.some()
		}
		if _, err := conn.Write(s.send); err != nil {
			return fmt.Errorf("%s: %w", s.connection, err)
		}
		if strings.HasPrefix(s.connection, "udp") && len(s.send) == 4 {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, 100)
			if n, err := conn.Read(b); err != nil || !wire.IsWelcome(b[:n]) {
				return fmt.Errorf("%s: the answer is %x, %v", s.connection, b[:n], err)
			}
		}
	}
	return nil
}

// conn returns a connection, which it opens where it is the first time that it is named.
func (p *player) conn(name string) (net.Conn, error) {
	if c := p.conns[name]; c != nil {
		return c, nil
	}
	network := "tcp"
	if strings.HasPrefix(name, "udp") {
		network = "udp"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, p.at.String())
	if err == nil {
		p.conns[name] = c
	}
	return c, err
}

// hear reads what the server of the capture had said: ours must say the same states, and results that can be read.
func (p *player) hear(said []byte) error {
	c := p.conns["ctl"]
	for r := bytes.NewReader(said); r.Len() > 0; {
		want, _ := r.ReadByte()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if want == 0 { // the first byte of a length
			_ = r.UnreadByte()
			if _, err := wire.ReadMessage(r, wire.MaxResults); err != nil {
				return fmt.Errorf("the capture: %w", err)
			}
			b, err := wire.ReadMessage(c, wire.MaxResults)
			if err == nil {
				_, err = wire.ParseResults(b)
			}
			if err != nil {
				return fmt.Errorf("results: %w", err)
			}
			continue
		}
		var b [1]byte
		if _, err := io.ReadFull(c, b[:]); err != nil || b[0] != want {
			return fmt.Errorf("the server says %v, %v; want %v", wire.State(int8(b[0])), err, wire.State(int8(want)))
		}
		switch wire.State(int8(want)) {
		case wire.TestRunning:
			p.carry()
		case wire.ServerError:
			if want, got := wire.ReadError(r), wire.ReadError(c); *got != *want {
				return fmt.Errorf("the server says %+v, want %+v", got, want)
			}
		}
	}
	return nil
}

// carry reads on all data connections, whether or not the server sends there.
func (p *player) carry() {
	for name, c := range p.conns {
		if name != "ctl" {
			p.moving.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
	}
}

// some writes a little on all data connections.
func (p *player) some() {
	for name, c := range p.conns {
		if strings.HasPrefix(name, "data") {
			_, _ = c.Write(make([]byte, 1000))
		}
	}
}
