// Package load fills a path with bulk flows and says how much they really carried.
//
// This package holds the words that loaders share; the sub-packages speak the protocols.
package load

import (
	"fmt"
	"time"
)

// Direction is the way that a flow's payload goes, from the client's point of view.
type Direction uint8

// The directions.
const (
	Download Direction = iota + 1 // the server sends
	Upload                        // the client sends
)

func (d Direction) String() string {
	switch d {
	case Download:
		return "download"
	case Upload:
		return "upload"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// MarshalText returns the direction's name.
func (d Direction) MarshalText() ([]byte, error) {
	if d != Download && d != Upload {
		return nil, fmt.Errorf("%v is no direction", d)
	}
	return []byte(d.String()), nil
}

// UnmarshalText reads "download" or "upload".
func (d *Direction) UnmarshalText(b []byte) error {
	switch string(b) {
	case "download":
		*d = Download
	case "upload":
		*d = Upload
	default:
		return fmt.Errorf("direction %q: want download or upload", b)
	}
	return nil
}

// Counter says who counted a flow's bytes.
type Counter uint8

// The counters, best first: the first two are the receiver's own.
const (
	CountedByServer Counter = iota + 1 // the server's result, which it sent at the end (upload)
	CountedByReads                     // what this host read from its socket (download)
	CountedByAcks                      // what the server's stack acknowledged (upload without a result)
	NotCounted                         // nobody: the number is what this host handed to its own stack, and is no goodput
)

func (c Counter) String() string {
	switch c {
	case CountedByServer:
		return "server"
	case CountedByReads:
		return "reads"
	case CountedByAcks:
		return "acks"
	case NotCounted:
		return "none"
	}
	return ""
}

// MarshalText returns the counter's name, "" for the zero Counter.
func (c Counter) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a counter's name.
func (c *Counter) UnmarshalText(b []byte) error {
	for v := Counter(0); v <= NotCounted; v++ {
		if v.String() == string(b) {
			*c = v
			return nil
		}
	}
	return fmt.Errorf("counter %q: want server, reads, acks or none", b)
}

// Result is what one flow did. Its times are on the host's clock.
type Result struct {
	Bytes     uint64  // payload that reached the receiver, once
	CountedBy Counter // who says so
	// Connected is when the data connection stood. First and Last bound the time that data flowed: the first and the last
	// moment at which this host knew of delivered bytes (a read, an acknowledgement, the server's end of data). All are
	// zero where nothing flowed.
	Connected, First, Last time.Time
	// Stopped is when the flow's own time was up and it began to end, or when its data connection ended before that; after it come
	// only bytes already under way. A flow whose path died has its Last long before it, and a Warning.
	Stopped time.Time

	Retransmits       uint64 // by whichever end sent
	HasRetransmits    bool
	CongestionControl string // the sender's, "" where unknown
	RemoteDS          uint8  // the DS byte that the server says it sends; valid with HasRemoteDS
	HasRemoteDS       bool
	// ServerBytes is the server's own figure: received bytes for an upload, sent bytes (queued ones included) for a download.
	ServerBytes    uint64
	HasServerBytes bool
	ServerCPU      float64 // busy share of all the server's CPUs, 0..1; valid with HasServerCPU
	HasServerCPU   bool
	// ServerOwnCPU is the CPU time that the server program used in the test's time, in CPUs: 1.5 is one and a half of them. Valid with
	// HasServerOwnCPU.
	ServerOwnCPU    float64
	HasServerOwnCPU bool
	// Datagrams is what is known of a UDP flow's datagrams; nil for TCP.
	Datagrams *Datagrams
	// TLS is what encryption took; nil where there was none.
	TLS *TLS
	// Warning is something that weakens this flow's figure though it ran, "" if nothing: "the server sent no result".
	Warning string
}

// Goodput over First..Last is the reader's to compute; Duration is that span, 0 where nothing flowed.
func (r Result) Duration() time.Duration {
	if r.First.IsZero() || r.Last.Before(r.First) {
		return 0
	}
	return r.Last.Sub(r.First)
}

// TLS is what the encryption of a flow took at this end.
type TLS struct {
	Version   string        `json:"version"` // "TLS 1.3"
	Cipher    string        `json:"cipher"`  // "TLS_AES_128_GCM_SHA256"
	Handshake time.Duration `json:"handshake_ns"`
	// Busy is the time in TLS, the handshake aside and without waiting for the connection: processor time, and what other work took of it.
	Busy time.Duration `json:"busy_ns"`
}
