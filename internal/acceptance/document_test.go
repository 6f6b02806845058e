package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
)

// document is the part of the JSON result that the tests look at, declared from what a user is promised and not from the program.
type document struct {
	Schema   string  `json:"schema"`
	Version  string  `json:"version"`
	Status   int     `json:"status"`
	Error    *string `json:"error"`
	Phases   []phase `json:"phases"`
	Probes   []probe `json:"probes"`
	Findings []struct {
		Code     string `json:"code"`
		Severity string `json:"severity"`
		Text     string `json:"text"`
	} `json:"findings"`
}

type phase struct {
	Name      string         `json:"name"`
	From      *time.Duration `json:"from_ns"`
	To        *time.Duration `json:"to_ns"`
	UnderLoad bool           `json:"under_load"`
	Goodput   []struct {
		Direction string           `json:"direction"`
		Goodput   *bitrate.Bitrate `json:"goodput_bps"`
		Reason    *string          `json:"reason"`
	} `json:"goodput"`
	Latency []struct {
		Primary bool           `json:"primary"`
		Median  *time.Duration `json:"rtt_median_ns"`
		P90     *time.Duration `json:"rtt_p90_ns"`
		Reason  *string        `json:"reason"`
	} `json:"latency"`
}

type probe struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Count struct {
		Due        int `json:"due"`
		Sent       int `json:"sent"`
		Received   int `json:"received"`
		Late       int `json:"late"`
		Lost       int `json:"lost"`
		LostUp     int `json:"lost_up"`
		LostDown   int `json:"lost_down"`
		Unsent     int `json:"unsent"`
		Unfinished int `json:"unfinished"`
		Invalid    int `json:"invalid"`
	} `json:"count"`
	Duplicates int `json:"duplicates"`
}

// parse reads the one JSON document that b must hold.
func parse(t *testing.T, b []byte) document {
	t.Helper()
	var d document
	decoder := json.NewDecoder(bytes.NewReader(b))
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("stdout is no JSON document: %v:\n%s", err, b)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("stdout holds more than one JSON document:\n%s", b)
	}
	if d.Schema != "bloat/result/1" {
		t.Fatalf("schema %q, want bloat/result/1", d.Schema)
	}
	return d
}

// phase returns the load phase of that name and fails the test where no load stood in it.
func (d document) phase(t *testing.T, name string) *phase {
	t.Helper()
	for i := range d.Phases {
		if p := &d.Phases[i]; p.Name == name && p.UnderLoad && p.From != nil && p.To != nil {
			return p
		}
	}
	t.Fatalf("no load stood in a phase %q: %+v; findings %+v", name, d.Phases, d.Findings)
	return nil
}

// holds reports whether the phase's statistics look at an offset from the run's start.
func (p *phase) holds(at time.Duration) bool { return at >= *p.From && at < *p.To }

// figures returns the goodput and the median loaded RTT of a phase with one direction.
func (p *phase) figures(t *testing.T) (bitrate.Bitrate, time.Duration) {
	t.Helper()
	if len(p.Goodput) != 1 || p.Goodput[0].Direction != p.Name || p.Goodput[0].Goodput == nil {
		t.Fatalf("phase %q: goodput %+v, want the figure of one direction", p.Name, p.Goodput)
	}
	for _, l := range p.Latency {
		if l.Primary && l.Median != nil {
			return *p.Goodput[0].Goodput, *l.Median
		}
	}
	t.Fatalf("phase %q: no median of the primary series: %+v", p.Name, p.Latency)
	return 0, 0
}
