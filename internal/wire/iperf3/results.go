package iperf3

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Results are what one end says of a test.
type Results struct {
	// CPU times of the program, as shares of one CPU over the test; several threads can make more than 1.
	CPUTotal, CPUUser, CPUSystem float64
	Retransmits                  RetransmitsKnown
	Congestion                   string // of this end's sockets
	ServerText                   string // the server's report, where it was asked for and the server prints text
	ServerJSON                   json.RawMessage
	Streams                      []StreamResult
}

// RetransmitsKnown says whether an end knows how often it sent again.
type RetransmitsKnown int

// The cases.
const (
	OnlyReceives RetransmitsKnown = -1
	SendsBlindly RetransmitsKnown = 0 // it sends, and does not know
	SendsCounted RetransmitsKnown = 1
)

// StreamResult is what one end says of one stream.
type StreamResult struct {
	ID          int
	Bytes       uint64 // sent where this end sends, otherwise received; without what was omitted
	Retransmits int64  // -1 unknown
	Jitter      time.Duration
	Errors      int64 // datagrams lost, by the receiver
	Packets     int64 // datagrams sent; by the receiver: the highest sequence number
	// OmittedErrors and OmittedPackets are the part of Errors and Packets that was before the omitted time's end. Without HasOmitted they
	// are unknown, and with an omitted time nobody can tell what the other two count.
	OmittedErrors, OmittedPackets int64
	HasOmitted                    bool
	Start, End                    time.Duration // since the test's start, or since the end of the omitted time
}

// maxPercent bounds the CPU time of a program: ten thousand CPUs.
const maxPercent = 1e6

// maxStreams bounds the streams of one message: twice what any version lets a client ask for, in both directions.
const maxStreams = 512

// ParseResults reads the results' JSON text.
func ParseResults(b []byte) (Results, error) {
	o, err := parseObject("results", b)
	if err != nil {
		return Results{}, err
	}
	var out Results
	r := reading{o: o}
	percent := func(key string) float64 {
		f, err := o.number(key)
		if err == nil && !(math.Abs(f) <= maxPercent) {
			err = &FormatError{o.what, 0, fmt.Sprintf("%q is %g %%", key, f)}
		}
		return kept(&r, f/100, err)
	}
	out.CPUTotal, out.CPUUser, out.CPUSystem = percent("cpu_util_total"), percent("cpu_util_user"), percent("cpu_util_system")
	known, err := o.within("sender_has_retransmits", -1, -1, 1)
	out.Retransmits = RetransmitsKnown(kept(&r, known, err))
	out.Congestion, out.ServerText = r.text("congestion_used"), r.text("server_output_text")
	if v, ok := o.get("server_output_json"); ok {
		out.ServerJSON = v
	}
	if r.err != nil {
		return Results{}, r.err
	}
	list, ok := o.get("streams")
	if !ok {
		return Results{}, &FormatError{o.what, 0, `no "streams"`}
	}
	var streams []json.RawMessage
	if err := json.Unmarshal(list, &streams); err != nil {
		return Results{}, o.bad("streams", list, "a list")
	}
	if len(streams) > maxStreams {
		return Results{}, &FormatError{o.what, 0, fmt.Sprintf("%d streams, where at most %d are taken", len(streams), maxStreams)}
	}
	seen := map[int]bool{}
	for i, text := range streams {
		s, err := parseStream(text)
		if err != nil {
			return Results{}, fmt.Errorf("stream %d of the results: %w", i+1, err)
		}
		if seen[s.ID] {
			return Results{}, &FormatError{o.what, 0, fmt.Sprintf("stream %d twice", s.ID)}
		}
		seen[s.ID] = true
		out.Streams = append(out.Streams, s)
	}
	return out, nil
}

func parseStream(text json.RawMessage) (StreamResult, error) {
	o, err := parseObject("results", text)
	if err != nil {
		return StreamResult{}, err
	}
	for _, key := range [...]string{"id", "bytes"} {
		if _, ok := o.get(key); !ok {
			return StreamResult{}, &FormatError{o.what, 0, fmt.Sprintf("no %q", key)}
		}
	}
	r := reading{o: o}
	signed := func(key string, otherwise int64) int64 {
		n, err := o.integer(key, otherwise)
		return kept(&r, n, err)
	}
	var s StreamResult
	s.ID = int(r.number("id", math.MaxInt32))
	s.Bytes = uint64(r.number("bytes", 1<<62))
	s.Retransmits, s.Errors, s.Packets = signed("retransmits", -1), signed("errors", 0), signed("packets", 0)
	s.OmittedErrors, s.OmittedPackets = signed("omitted_errors", 0), signed("omitted_packets", 0)
	_, errs := o.get("omitted_errors")
	_, packets := o.get("omitted_packets")
	if s.HasOmitted = errs && packets; !s.HasOmitted {
		s.OmittedErrors, s.OmittedPackets = 0, 0
	}
	duration := func(key string) time.Duration {
		f, err := o.number(key)
		if err == nil && (f < 0 || f > maxCount) {
			err = &FormatError{o.what, 0, fmt.Sprintf("%q is %g s", key, f)}
		}
		if err != nil {
			return kept(&r, time.Duration(0), err)
		}
		return seconds(f)
	}
	s.Jitter, s.Start, s.End = duration("jitter"), duration("start_time"), duration("end_time")
	return s, r.err
}

// Stream returns the result of the stream with an id.
func (r Results) Stream(id int) (StreamResult, bool) {
	for _, s := range r.Streams {
		if s.ID == id {
			return s, true
		}
	}
	return StreamResult{}, false
}

// AppendTo appends the message with its length.
func (r Results) AppendTo(b []byte) []byte {
	w := writer{b: []byte{'{'}}
	w.number("cpu_util_total", 100*r.CPUTotal)
	w.number("cpu_util_user", 100*r.CPUUser)
	w.number("cpu_util_system", 100*r.CPUSystem)
	w.integer("sender_has_retransmits", int64(r.Retransmits))
	w.text("congestion_used", r.Congestion)
	w.text("server_output_text", r.ServerText)
	if len(r.ServerJSON) > 0 {
		w.key("server_output_json")
		w.b = append(w.b, bytes.TrimSpace(r.ServerJSON)...)
	}
	w.key("streams")
	w.b = append(w.b, '[')
	for i, s := range r.Streams {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = append(w.b, '{')
		s.write(&w)
		w.b = append(w.b, '}')
	}
	return appendMessage(b, append(w.b, ']', '}'))
}

func (s StreamResult) write(w *writer) {
	w.integer("id", int64(s.ID))
	w.integer("bytes", int64(s.Bytes))
	w.integer("retransmits", s.Retransmits)
	w.number("jitter", s.Jitter.Seconds())
	w.integer("errors", s.Errors)
	w.integer("packets", s.Packets)
	if s.HasOmitted {
		w.integer("omitted_errors", s.OmittedErrors)
		w.integer("omitted_packets", s.OmittedPackets)
	}
	w.number("start_time", s.Start.Seconds())
	w.number("end_time", s.End.Seconds())
}
