package iperf3

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

// FuzzParams: what is read, is sent and read again as the same, and within the limit of a message.
func FuzzParams(f *testing.F) {
	for _, name := range names(f) {
		r := bytes.NewReader(side(capture(f, name), "ctl", true))
		_, _ = io.CopyN(io.Discard, r, CookieSize)
		if b, err := ReadMessage(r, MaxParams); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte(`{"num":18446744073709551615,"time":1e9,"a":[[[[]]]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > MaxParams {
			return
		}
		p, err := ParseParams(b)
		if err != nil {
			return
		}
		if p.Omit < 0 || p.Time < 0 || p.Parallel < 0 || p.Size < 0 || p.Rate < 0 || p.KernelRate < 0 || p.Burst < 0 || p.Window < 0 || p.TOS < 0 {
			t.Fatalf("%q has a negative number: %+v", b, p)
		}
		text, err := ReadMessage(bytes.NewReader(p.AppendTo(nil)), 8*MaxParams)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParseParams(text)
		q.HasRate = p.HasRate // 0 is sent where there is none
		if err != nil || q != p {
			t.Errorf("%q is read as %+v, and again as %+v, %v", b, p, q, err)
		}
	})
}

// FuzzResults: what is read, is sent and read again with the same streams.
func FuzzResults(f *testing.F) {
	for _, name := range names(f) {
		for _, client := range []bool{false, true} {
			b := side(capture(f, name), "ctl", client)
			if i := bytes.Index(b, []byte(`{"cpu_util`)); i >= 4 {
				if text, err := ReadMessage(bytes.NewReader(b[i-4:]), MaxResults); err == nil {
					f.Add(text)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResults(b)
		if err != nil {
			return
		}
		text, err := ReadMessage(bytes.NewReader(r.AppendTo(nil)), MaxResults)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParseResults(text)
		if err != nil || len(q.Streams) != len(r.Streams) {
			t.Fatalf("%q is read as %+v, and again as %+v, %v", b, r, q, err)
		}
		for i, s := range r.Streams {
			again := q.Streams[i]
			for _, d := range [][2]time.Duration{{s.Jitter, again.Jitter}, {s.Start, again.Start}, {s.End, again.End}} {
				if diff := d[0] - d[1]; diff < -10*time.Microsecond || diff > 10*time.Microsecond { // 15 digits are sent
					t.Errorf("time %v is read again as %v", d[0], d[1])
				}
			}
			s.Jitter, s.Start, s.End, again.Jitter, again.Start, again.End = 0, 0, 0, 0, 0, 0
			if s != again {
				t.Errorf("%+v is read again as %+v", s, again)
			}
		}
	})
}

// FuzzMessage: nothing beyond the limit is read, and what is returned is what was sent.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}', 14})
	f.Add([]byte{0xfe, 0, 0, 0, 117, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 64
		r := bytes.NewReader(b)
		got, err := ReadMessage(r, limit)
		if used := len(b) - r.Len(); used > 4+limit {
			t.Errorf("%d bytes were read", used)
		}
		if err == nil && !bytes.Equal(appendMessage(nil, got), b[:4+len(got)]) {
			t.Errorf("%x is read as %x", b, got)
		}
	})
}

// FuzzDatagram: a header that is read, is written as the same bytes, and no sequence of headers makes a tally that contradicts itself.
func FuzzDatagram(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04"), true)
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x02\xff\xff\xff\xff"), false)
	f.Fuzz(func(t *testing.T, b []byte, wide bool) {
		var n Tally
		for took := uint64(0); len(b) > 0; {
			d, err := ParseDatagram(b, wide)
			if err != nil {
				return
			}
			head := make([]byte, HeaderSize(wide))
			d.Put(head, wide)
			if !bytes.Equal(head, b[:len(head)]) {
				t.Errorf("%x is read as %+v and written as %x", b[:len(head)], d, head)
			}
			if n.Take(d, 10, 0, wide) {
				took++
			}
			if n.Received != took || n.Bytes != 10*took || n.Reordered > n.Received || n.Lost()+n.Received < n.Highest {
				t.Fatalf("%d taken: %+v, lost %d", took, n, n.Lost())
			}
			b = b[len(head):]
		}
	})
}

// FuzzReport: what is read holds together.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"intervals":[{"streams":[{"start":0,"end":1,"bytes":1200,"packets":1,"lost_packets":0,"jitter_ms":0.1}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		spans, err := ParseReport(b, 1)
		if err != nil {
			return
		}
		for _, s := range spans[0] {
			if s.To < s.From || s.From < 0 || int64(s.Received) < 0 || s.Jitter < 0 {
				t.Errorf("%q is read as %+v", b, s)
			}
		}
	})
}

// FuzzLogin: the text of a token that is read, is the text that makes it.
func FuzzLogin(f *testing.F) {
	f.Add([]byte("user: mario\npwd:  rossi\nts:   1700000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLogin(b)
		if err != nil {
			return
		}
		again, err := parseLogin(l.text())
		if err != nil || again != l || strings.ContainsAny(l.User+l.Password, "\n") {
			t.Errorf("%q is read as %+v, and again as %+v, %v", b, l, again, err)
		}
	})
}

// FuzzUsers: a users file names nobody without a hash.
func FuzzUsers(f *testing.F) {
	f.Add([]byte("# comment\nmario,bf7a49a846d44b454a5d11e7acfaf13d138bbe0b7483aa3e050879700572709b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		users, err := ParseUsers(b)
		if err != nil {
			return
		}
		for name, hash := range users {
			if name == "" || len(hash) != 64 {
				t.Errorf("%q: %q", name, hash)
			}
		}
	})
}
