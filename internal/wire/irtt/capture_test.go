package irtt

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bufferbloat/internal/wire/irtt/hmacmd5"
)

// datagram is one line of a capture.
type datagram struct {
	fromClient bool
	payload    []byte
	note       string
}

var captureLine = regexp.MustCompile(`^([CS]) (\d+\.\d{6}) ([0-9a-f]+)(?: +#(.*))?$`)

// captures returns the datagrams of all captures by the name of their file, without its end.
func captures(t testing.TB) map[string][]datagram {
	t.Helper()
	files, err := filepath.Glob("testdata/captures/*.hex")
	if err != nil || len(files) != 23 {
		t.Fatalf("found %d captures, want 23: %v", len(files), err)
	}
	all := make(map[string][]datagram)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "#") {
				continue
			}
			m := captureLine.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("%s: strange line %q", file, line)
			}
			b, err := hex.DecodeString(m[3])
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all[name] = append(all[name], datagram{m[1] == "C", b, strings.TrimSpace(m[4])})
		}
	}
	return all
}

// TestEveryCapturedDatagramSurvivesTheRoundTrip replays whole sessions: an echo's fields are those of its open reply.
func TestEveryCapturedDatagramSurvivesTheRoundTrip(t *testing.T) {
	total := 0
	for name, session := range captures(t) {
		fields := make(map[Token]Fields)
		for i, d := range session {
			total++
			got, err := recode(d, fields)
			if err != nil {
				t.Errorf("%s, datagram %d (%s): %v", name, i, d.note, err)
			} else if !bytes.Equal(got, d.payload) {
				t.Errorf("%s, datagram %d (%s):\n%x parses and encodes to\n%x", name, i, d.note, d.payload, got)
			}
		}
	}
	if total != 600 {
		t.Errorf("replayed %d datagrams, want 600", total)
	}
}

// recode parses d and encodes the result, with the HMAC of d. It adds to fields what an open reply agrees on.
func recode(d datagram, fields map[Token]Fields) ([]byte, error) {
	f, err := ParseHeader(d.payload)
	if err != nil {
		return nil, err
	}
	if f&FlagReply != 0 == d.fromClient {
		return nil, &ParseError{3, "reply flag from the wrong end"}
	}
	var b []byte
	switch {
	case f&FlagOpen != 0:
		o, err := ParseOpen(d.payload)
		if err != nil {
			return nil, err
		}
		fields[o.Token] = o.Params.Fields()
		b = o.AppendTo(nil)
	case f&(FlagClose|FlagReply) == FlagClose:
		c, err := ParseClose(d.payload)
		if err != nil {
			return nil, err
		}
		b = c.AppendTo(nil)
	default:
		short, _, err := ParseEcho(d.payload, 0)
		if err != nil {
			return nil, err
		}
		e, payload, err := ParseEcho(d.payload, fields[short.Token])
		if err != nil {
			return nil, err
		}
		b = append(e.AppendTo(nil, fields[short.Token]), payload...)
	}
	if f&FlagHMAC != 0 {
		copy(b[hmacOffset:hmacOffset+hmacSize], d.payload[hmacOffset:])
	}
	return b, nil
}

func TestCapturedHMACsVerifyAndOthersDoNot(t *testing.T) {
	right, all := NewAuthenticator(hmacmd5.New([]byte("swordfish"))), captures(t)
	verified := 0
	for _, name := range []string{"session-hmac-0.9.0", "session-hmac-0.9.2"} {
		for i, d := range all[name] {
			if !right.Verify(d.payload) {
				t.Errorf("%s, datagram %d: its HMAC does not verify", name, i)
				continue
			}
			verified++
			again := bytes.Clone(d.payload)
			clear(again[hmacOffset : hmacOffset+hmacSize])
			if right.Sign(again); !bytes.Equal(again, d.payload) {
				t.Errorf("%s, datagram %d: signed, it is %x, want %x", name, i, again, d.payload)
			}
			again[len(again)-1] ^= 1
			if right.Verify(again) {
				t.Errorf("%s, datagram %d: it verifies with a bit changed", name, i)
			}
		}
	}
	if verified != 224 {
		t.Errorf("%d HMACs verified, want 224", verified)
	}
	for i, d := range all["wrong-hmac-0.9.0"] {
		if right.Verify(d.payload) {
			t.Errorf("wrong-hmac-0.9.0, datagram %d: another key's HMAC verifies", i)
		}
		if !NewAuthenticator(hmacmd5.New([]byte("wrong"))).Verify(d.payload) {
			t.Errorf("wrong-hmac-0.9.0, datagram %d: its own key does not verify it", i)
		}
	}
	if right.Verify(all["session-0.9.0"][0].payload) {
		t.Error("a datagram without an HMAC verifies")
	}
}
