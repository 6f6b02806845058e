package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"bufferbloat"
	"bufferbloat/report"
)

// repeated are keys that iperf3 writes once for each UDP stream into one object; none of them is read here.
var repeated = []string{"sock_bufsize", "sndbuf_actual", "rcvbuf_actual"}

// checkJSON reads b as exactly one JSON document in which no object has a key twice: decoders take the last one without a word, and with it goes, for
// example, a direction. Keys are compared without case, as the decoder does.
func checkJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	type level struct {
		keys  map[string]bool // nil in an array
		isKey bool
	}
	var stack []level
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) && len(stack) == 0 {
			return fmt.Errorf("no JSON")
		}
		if err != nil {
			return jsonError(b, err, d.InputOffset())
		}
		top := len(stack) - 1
		if top >= 0 && stack[top].keys != nil && stack[top].isKey {
			if key, ok := t.(string); ok {
				low := strings.ToLower(key)
				if stack[top].keys[low] && !slices.Contains(repeated, low) {
					return &Error{Offset: d.InputOffset(), Text: key,
						Why: "the object has this key twice, and one of the two values would be lost; old iperf3 writes so with --bidir: measure each direction by itself, or with iperf3 3.8 or later"}
				}
				stack[top].keys[low] = true
				stack[top].isKey = false
				continue
			}
		}
		if delim, ok := t.(json.Delim); ok {
			switch delim {
			case '{':
				stack = append(stack, level{keys: map[string]bool{}, isKey: true})
				continue
			case '[':
				stack = append(stack, level{})
				continue
			}
			stack = stack[:top]
			top--
		}
		if top < 0 {
			return after(b, d.InputOffset())
		}
		stack[top].isKey = stack[top].keys != nil
	}
}

// after complains of what follows the document.
func after(b []byte, end int64) error {
	rest := bytes.TrimLeft(b[end:], " \t\r\n\x00")
	if len(rest) == 0 {
		return nil
	}
	text, _, _ := strings.Cut(string(rest[:min(len(rest), 300)]), "\n")
	e := &Error{Offset: int64(len(b) - len(rest)), Text: text, Why: "something follows the JSON document"}
	switch {
	case rest[0] == '{':
		e.Why = "a second JSON document follows the first; which of them holds is not told"
	case bytes.HasPrefix(rest, []byte("iperf3: error")):
		e.Why = "iperf3 ended with an error, so its figures do not stand"
	}
	return e
}

// jsonError turns the decoder's complaint into one with place and text.
func jsonError(b []byte, err error, at int64) error {
	// The decoder's offsets are those of the value that it was at; those of a whole document are true.
	if whole := json.Unmarshal(b, new(json.RawMessage)); whole != nil {
		err = whole
	}
	e := &Error{Offset: at, Why: err.Error()}
	if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
		e.Offset = max(0, s.Offset-1)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || err.Error() == "unexpected end of JSON input" {
		return &Error{Offset: int64(len(b)), Why: "the JSON ends in the middle: the file was cut off"}
	}
	at = min(e.Offset, int64(len(b)))
	start := max(bytes.LastIndexByte(b[:at], '\n')+1, int(at)-80)
	end := min(len(b), int(at)+40)
	if i := bytes.IndexByte(b[at:end], '\n'); i >= 0 {
		end = int(at) + i
	}
	e.Text = strings.TrimSpace(string(b[start:end]))
	low := strings.ToLower(string(b[max(start, int(at)-12):end]))
	if strings.Contains(low, "nan") || strings.Contains(low, "inf") {
		e.Why = "nan and inf are no JSON; old iperf3 writes them where it divides by nothing, and with them the file says nothing that can be relied on"
	}
	return e
}

// readJSON reads the JSON of irtt or of iperf3.
func readJSON(b []byte) (*report.Result, *bufferbloat.Recording, error) {
	if err := checkJSON(b); err != nil {
		return nil, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var top map[string]json.RawMessage
	if err := d.Decode(&top); err != nil {
		return nil, nil, jsonError(b, err, d.InputOffset())
	}
	switch {
	case top["round_trips"] != nil || top["stats"] != nil && top["config"] != nil:
		return readIRTT(b)
	case top["start"] != nil && (top["end"] != nil || top["error"] != nil):
		return readIperf3(b)
	}
	return nil, nil, ErrUnknown
}

// decode fills v from b, which checkJSON has passed.
func decode(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
		return &Error{Offset: t.Offset, Why: fmt.Sprintf("%s is a %s, which it can't be", t.Field, t.Value)}
	}
	return err
}
