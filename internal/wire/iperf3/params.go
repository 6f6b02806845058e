package iperf3

import (
	"time"

	"bufferbloat/internal/bitrate"
)

// Protocol is what the data streams speak.
type Protocol uint8

// The protocols; the zero value is TCP.
const (
	TCP Protocol = iota
	UDP
	SCTP
)

func (p Protocol) String() string { return [...]string{"TCP", "UDP", "SCTP"}[p] }

// Params are what a client asks for. A zero field is left out of the message, where nothing else is said.
type Params struct {
	Protocol      Protocol
	Omit          time.Duration // at the start, not counted; whole seconds, always sent
	Time          time.Duration // after Omit; 0 is no limit; whole seconds, always sent
	Bytes         uint64        // after which the streams of one direction together end; 0 is no limit; always sent
	Blocks        uint64        // likewise, in blocks of Size
	Parallel      int           // streams in each direction; always sent
	Reverse       bool          // the server sends
	Bidirectional bool          // both send, Parallel streams each
	Size          int           // bytes of a block or datagram; 0 is the server's default

	Rate        bitrate.Bitrate // of each stream; 0 is no limit
	HasRate     bool            // Rate is sent though it is 0
	KernelRate  bitrate.Bitrate // of each stream, kept by the kernel
	PacingTimer time.Duration   // hint for old servers; whole microseconds, always sent
	Burst       int             // blocks between two looks at the pace
	Window      int             // bytes of socket buffers at both ends
	MSS         int
	NoDelay     bool
	TOS         int // whole DS byte, 0 to 255
	FlowLabel   int
	Congestion  string // congestion control by name

	Title, ExtraData string
	ServerOutput     bool // the server's report is wanted in the results
	Counters64       bool // datagrams have 64-bit sequence numbers
	Repeating        bool // payload of digits
	ZeroCopy         bool
	DontFragment     bool
	AuthToken        string
	ClientVersion    string        // "3.12"
	NamedStreams     bool          // each UDP stream is opened by a datagram with the test's cookie (Hello); stock servers pass this key over, and the next
	Wait             time.Duration // the longest time from here to the streams, where a server would give up before; whole seconds
}

// maxCount bounds numbers whose range the server is to judge: within it no unit overflows.
const maxCount = 1 << 31

// ParseParams reads the parameters' JSON text. Numbers that make no sense to anyone are errors; whether the others are within a server's
// limits is the server's to say. Keys that it does not know it passes over.
func ParseParams(b []byte) (Params, error) {
	o, err := parseObject("parameters", b)
	if err != nil {
		return Params{}, err
	}
	p := Params{
		Reverse: o.flag("reverse"), Bidirectional: o.flag("bidirectional"), NoDelay: o.flag("nodelay"),
		ServerOutput: o.flag("get_server_output"), Counters64: o.flag("udp_counters_64bit"), Repeating: o.flag("repeating_payload"),
		ZeroCopy: o.flag("zerocopy"), DontFragment: o.flag("dont_fragment"), NamedStreams: o.flag("named_streams"),
	}
	for i, key := range [...]string{"tcp", "udp", "sctp"} { // the last one counts, as in stock servers
		if o.flag(key) {
			p.Protocol = Protocol(i)
		}
	}
	r := reading{o: o}
	p.Omit = time.Duration(r.number("omit", maxCount)) * time.Second
	p.Time = time.Duration(r.number("time", maxCount)) * time.Second
	p.Bytes, p.Blocks = uint64(r.number("num", 1<<62)), uint64(r.number("blockcount", 1<<62))
	p.Parallel = int(r.or("parallel", 1, maxCount))
	p.Size = int(r.number("len", maxCount))
	_, p.HasRate = o.get("bandwidth")
	p.Rate, p.KernelRate = bitrate.Bitrate(r.number("bandwidth", 1<<62)), bitrate.Bitrate(r.number("fqrate", 1<<62))
	p.PacingTimer = time.Duration(r.number("pacing_timer", maxCount)) * time.Microsecond
	p.Burst, p.Window, p.MSS = int(r.number("burst", maxCount)), int(r.number("window", maxCount)), int(r.number("mss", maxCount))
	p.TOS, p.FlowLabel = int(r.number("tos", maxCount)), int(r.number("flowlabel", maxCount))
	p.Congestion, p.Title, p.ExtraData = r.text("congestion"), r.text("title"), r.text("extra_data")
	p.AuthToken, p.ClientVersion = r.text("authtoken"), r.text("client_version")
	p.Wait = time.Duration(r.number("streams_wait", maxCount)) * time.Second
	return p, r.err
}

// reading keeps the first error of several reads.
type reading struct {
	o   object
	err error
}

func (r *reading) or(key string, otherwise, most int64) int64 {
	n, err := r.o.within(key, otherwise, 0, most)
	return kept(r, n, err)
}

func (r *reading) number(key string, most int64) int64 { return r.or(key, 0, most) }

func (r *reading) text(key string) string {
	s, err := r.o.text(key)
	return kept(r, s, err)
}

func kept[T any](r *reading, v T, err error) T {
	if r.err == nil {
		r.err = err
	}
	return v
}

// AppendTo appends the message with its length.
func (p Params) AppendTo(b []byte) []byte {
	w := writer{b: []byte{'{'}}
	w.flag([...]string{"tcp", "udp", "sctp"}[p.Protocol], true)
	w.integer("omit", int64(p.Omit/time.Second))
	w.integer("time", int64(p.Time/time.Second))
	w.integer("num", int64(p.Bytes))
	w.integer("blockcount", int64(p.Blocks))
	w.integer("parallel", int64(p.Parallel))
	w.flag("reverse", p.Reverse)
	w.flag("bidirectional", p.Bidirectional)
	w.positive("len", int64(p.Size))
	if p.HasRate {
		w.integer("bandwidth", int64(p.Rate))
	} else {
		w.positive("bandwidth", int64(p.Rate))
	}
	w.positive("fqrate", int64(p.KernelRate))
	w.integer("pacing_timer", int64(p.PacingTimer/time.Microsecond))
	w.positive("burst", int64(p.Burst))
	w.positive("window", int64(p.Window))
	w.positive("MSS", int64(p.MSS))
	w.flag("nodelay", p.NoDelay)
	w.positive("TOS", int64(p.TOS))
	w.positive("flowlabel", int64(p.FlowLabel))
	w.text("congestion", p.Congestion)
	w.text("title", p.Title)
	w.text("extra_data", p.ExtraData)
	w.one("get_server_output", p.ServerOutput)
	w.one("udp_counters_64bit", p.Counters64)
	w.one("repeating_payload", p.Repeating)
	w.one("zerocopy", p.ZeroCopy)
	w.one("dont_fragment", p.DontFragment)
	w.text("authtoken", p.AuthToken)
	w.text("client_version", p.ClientVersion)
	w.flag("named_streams", p.NamedStreams)
	w.positive("streams_wait", int64(p.Wait/time.Second))
	return appendMessage(b, append(w.b, '}'))
}

// Sends reports how many streams each side opens the test with.
func (p Params) Sends() (client, server int) {
	switch {
	case p.Bidirectional:
		return p.Parallel, p.Parallel
	case p.Reverse:
		return 0, p.Parallel
	}
	return p.Parallel, 0
}

// StreamID returns the id of the stream that was opened as number i, counted from 0: 1, 3, 4, 5 and so on.
func StreamID(i int) int {
	if i == 0 {
		return 1
	}
	return i + 2
}
