package iperf3

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// record is one line of a capture.
type record struct {
	connection string
	fromClient bool
	payload    []byte
	end        string // FIN, RST or ""
}

var recordLine = regexp.MustCompile(`^(ctl|data\d+|busy\d+|udp\d+) ([CS]) \d+\.\d{6} +(FIN|RST|[0-9a-f]+)(?: +#.*)?$`)

// capture reads testdata/captures/NAME.hex: what stock programs sent each other.
func capture(t testing.TB, name string) []record {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "captures", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var list []record
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		m := recordLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("%s: %q is no record", name, line)
		}
		r := record{connection: m[1], fromClient: m[2] == "C"}
		if m[3] == "FIN" || m[3] == "RST" {
			r.end = m[3]
		} else if r.payload, err = hex.DecodeString(m[3]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list = append(list, r)
	}
	return list
}

// side returns all that one side sent on a connection.
func side(list []record, connection string, fromClient bool) []byte {
	var all []byte
	for _, r := range list {
		if r.connection == connection && r.fromClient == fromClient {
			all = append(all, r.payload...)
		}
	}
	return all
}

// names are the captures.
func names(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join("testdata", "captures", "*.hex"))
	if err != nil || len(list) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for i := range list {
		list[i] = strings.TrimSuffix(filepath.Base(list[i]), ".hex")
	}
	return list
}

func TestEverythingThatStockProgramsSayIsUnderstood(t *testing.T) {
	for _, name := range names(t) {
		list := capture(t, name)
		var cookie Cookie
		client := bytes.NewReader(side(list, "ctl", true))
		if _, err := io.ReadFull(client, cookie[:]); err != nil {
			t.Errorf("%s: cookie: %v", name, err)
			continue
		}
		for _, r := range list {
			if strings.HasPrefix(r.connection, "data") && r.fromClient && len(r.payload) == CookieSize && !cookie.Matches(Cookie(r.payload)) {
				t.Errorf("%s: the cookie on %s is another one", name, r.connection)
			}
		}
		understandClient(t, name, client)
		understandServer(t, name, bytes.NewReader(side(list, "ctl", false)))
	}
}

func understandClient(t *testing.T, name string, r *bytes.Reader) {
	b, err := ReadMessage(r, MaxParams)
	if err != nil {
		t.Errorf("%s: parameters: %v", name, err)
		return
	}
	p, err := ParseParams(b)
	if err != nil {
		t.Errorf("%s: parameters: %v", name, err)
		return
	}
	sent := p.AppendTo(nil)
	again, err := ReadMessage(bytes.NewReader(sent), MaxParams)
	if err != nil {
		t.Fatalf("%s: ours: %v", name, err)
	}
	if q, err := ParseParams(again); err != nil || q != p {
		t.Errorf("%s: %+v is sent and read again as %+v, %v", name, p, q, err)
	}
	for r.Len() > 0 {
		c, _ := r.ReadByte()
		s, err := ParseState(c)
		if err != nil {
			t.Errorf("%s: client: %v", name, err)
			return
		}
		if s == TestEnd && r.Len() > 0 {
			understandResults(t, name, r, p)
		}
	}
}

func understandServer(t *testing.T, name string, r *bytes.Reader) {
	for r.Len() > 0 {
		c, _ := r.ReadByte()
		s, err := ParseState(c)
		switch {
		case err != nil:
			t.Errorf("%s: server: %v", name, err)
			return
		case s == ServerError:
			if e := ReadError(r); e.Code == 0 || e.Code.Error() == "" {
				t.Errorf("%s: error %+v", name, e)
			}
		case s == ExchangeResults:
			understandResults(t, name, r, Params{})
		}
	}
}

func understandResults(t *testing.T, name string, r *bytes.Reader, p Params) {
	b, err := ReadMessage(r, MaxResults)
	if err != nil {
		t.Errorf("%s: results: %v", name, err)
		return
	}
	res, err := ParseResults(b)
	if err != nil {
		t.Errorf("%s: results: %v", name, err)
		return
	}
	if client, server := p.Sends(); p != (Params{}) && len(res.Streams) != client+server {
		t.Errorf("%s: results of %d streams, want %d", name, len(res.Streams), client+server)
	}
	for i, s := range res.Streams {
		if s.ID != StreamID(i) || s.Retransmits < -1 || s.End <= 0 {
			t.Errorf("%s: stream %d: %+v", name, i+1, s)
		}
	}
	again, err := ReadMessage(bytes.NewReader(res.AppendTo(nil)), MaxResults)
	if err != nil {
		t.Fatalf("%s: ours: %v", name, err)
	}
	if q, err := ParseResults(again); err != nil || len(q.Streams) != len(res.Streams) || q.Retransmits != res.Retransmits || q.ServerText != res.ServerText {
		t.Errorf("%s: %+v is sent and read again as %+v, %v", name, res, q, err)
	}
}

func TestWhatCertainCapturesSay(t *testing.T) {
	list := capture(t, "tcp-options-3.12")
	r := bytes.NewReader(side(list, "ctl", true))
	_, _ = io.CopyN(io.Discard, r, CookieSize)
	b, _ := ReadMessage(r, MaxParams)
	p, err := ParseParams(b)
	if err != nil || p.TOS != 184 || p.Congestion != "cubic" || !p.NoDelay || !p.Reverse || p.Title == "" || p.ExtraData == "" {
		t.Errorf("options: %+v, %v", p, err)
	}
	if e := serverError(t, "error-auth-3.12"); e.Code != NotAuthorised || e.Errno != 0 {
		t.Errorf("one integer alone: %+v", e)
	}
	if e := serverError(t, "error-window-3.12"); e.Code != 141 {
		t.Errorf("window: %+v", e)
	}
	if e := serverError(t, "error-ratelimit-3.21"); e.Code != RateLimit {
		t.Errorf("rate limit: %+v", e)
	}
	list = capture(t, "udp-upload-3.12")
	up, down := side(list, "udp0", true), side(list, "udp0", false)
	if _, ok := ParseHello(up[:4]); !ok || !IsWelcome(down[:4]) || Welcome(up[:4]) != [4]byte(down[:4]) {
		t.Errorf("UDP begins with %x, answered by %x", up[:4], down[:4])
	}
	if d, err := ParseDatagram(up[4:], false); err != nil || d.Seq != 1 || d.Sent <= 0 {
		t.Errorf("first datagram: %+v, %v", d, err)
	}
	wide := side(capture(t, "udp-upload-64bit-3.12"), "udp0", true)
	if d, err := ParseDatagram(wide[4:], true); err != nil || d.Seq != 1 {
		t.Errorf("first datagram with a wide counter: %+v, %v", d, err)
	}
}

// serverError returns the error that a server sent.
func serverError(t *testing.T, name string) *StateError {
	t.Helper()
	b := side(capture(t, name), "ctl", false)
	i := bytes.IndexByte(b, ServerError.Byte())
	if i < 0 {
		t.Fatalf("%s has no error", name)
	}
	return ReadError(bytes.NewReader(b[i+1:]))
}
