package queue

import (
	"fmt"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// Limits of a FIFO.
const (
	MaxFIFO    = 1 << 30 // bytes
	maxPackets = 1 << 20
)

// What Linux gives an Ethernet device: its transmit queue length, and the frame that bfifo multiplies it with.
const (
	txQueueLen = 1000
	frame      = 1514
)

// BFIFO is a first-in first-out queue with a limit in bytes, which drops what does not fit (Linux's bfifo). The packet in transmission is
// not in the queue, so that the longest delay is that of the limit and one packet.
type BFIFO struct {
	Limit int           // bytes of Packet.Wire; 0 means 1000 x 1514, as in Linux
	Time  time.Duration // instead of Limit: the bytes that the link's rate carries in so long
}

func (o *BFIFO) describe() (string, []parameter) {
	return "bfifo", []parameter{depth(&o.Limit, &o.Time, txQueueLen*frame)}
}

// Check implements Discipline.
func (o BFIFO) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o BFIFO) String() string { return write(o) }

// Capacity implements Discipline.
func (o BFIFO) Capacity(wire int) int { o, _ = complete(o); return o.Limit }

// New implements Discipline.
func (o BFIFO) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	limit := o.Limit
	if o.Time != 0 {
		if limit, err = bytesOf(o.Time, e.Rate); err != nil {
			return nil, fmt.Errorf("bfifo limit %w", err)
		}
	}
	return &fifo{core: newCore(e), kind: "bfifo", packets: maxPackets, bytes: limit}, nil
}

// bytesOf returns the bytes that rate carries in d.
func bytesOf(d time.Duration, rate bitrate.Bitrate) (int, error) {
	if rate == 0 {
		return 0, fmt.Errorf("%v: a link of unlimited rate needs a limit in bytes", d)
	}
	bytes := d.Seconds() * float64(rate) / 8
	if bytes < frame || bytes > MaxFIFO {
		return 0, fmt.Errorf("%v: at %v that is %.0f bytes: want %d (one packet) to %d", d, rate, bytes, frame, MaxFIFO)
	}
	return int(bytes), nil
}

// PFIFO is a first-in first-out queue with a limit in packets (Linux's pfifo).
type PFIFO struct {
	Limit int // packets; 0 means 1000, the transmit queue length that Linux gives an Ethernet device
}

func (o *PFIFO) describe() (string, []parameter) {
	return "pfifo", []parameter{packets("limit", &o.Limit, txQueueLen, 1, maxPackets)}
}

// Check implements Discipline.
func (o PFIFO) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o PFIFO) String() string { return write(o) }

// Capacity implements Discipline.
func (o PFIFO) Capacity(wire int) int { o, _ = complete(o); return ofPackets(o.Limit, wire) }

// New implements Discipline.
func (o PFIFO) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	return &fifo{core: newCore(e), kind: "pfifo", packets: o.Limit, bytes: MaxFIFO}, nil
}

type fifo struct {
	core
	kind           string
	packets, bytes int // limits
	line           chain
}

func (q *fifo) Enqueue(p link.Packet, _ time.Duration) {
	if q.Len() >= q.packets || q.Bytes()+p.Wire > q.bytes {
		q.refuse(p, link.Tail)
		return
	}
	q.push(&q.line, p)
}

func (q *fifo) Dequeue(time.Duration) (link.Packet, bool) { return q.pop(&q.line) }

// Report implements link.Reporter.
func (q *fifo) Report() link.Report { return link.Report{Kind: q.kind} }

// PFIFOFast is three FIFOs, of which the first that holds a packet is served (Linux's pfifo_fast, until 2014 or so the default of every
// device). The band is that of the DS byte in the meaning of RFC 1349, which Linux keeps: minimum delay goes to band 0, maximum
// throughput and minimum cost to band 2, and the rest to band 1.
type PFIFOFast struct {
	Limit int // packets in each band, as Linux has it since 4.16; 0 means 1000
}

func (o *PFIFOFast) describe() (string, []parameter) {
	return "pfifo_fast", []parameter{packets("limit", &o.Limit, txQueueLen, 1, maxPackets)}
}

// Check implements Discipline.
func (o PFIFOFast) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o PFIFOFast) String() string { return write(o) }

// Capacity implements Discipline.
func (o PFIFOFast) Capacity(wire int) int { o, _ = complete(o); return ofPackets(3*o.Limit, wire) }

// New implements Discipline.
func (o PFIFOFast) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	return &pfifoFast{core: newCore(e), limit: o.Limit}, nil
}

type pfifoFast struct {
	core
	limit int
	bands [3]chain
}

// bands maps bits 1 to 4 of the DS byte to a band: the priority that Linux derives from them, through its default priority map.
var bands = [16]uint8{1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1}

func band(ds uint8) uint8 { return bands[ds&0x1e>>1] }

func (q *pfifoFast) Enqueue(p link.Packet, _ time.Duration) {
	b := &q.bands[band(p.DS)]
	if b.n >= q.limit {
		q.refuse(p, link.Tail)
		return
	}
	q.push(b, p)
}

func (q *pfifoFast) Dequeue(time.Duration) (link.Packet, bool) {
	for i := range q.bands {
		if p, ok := q.pop(&q.bands[i]); ok {
			return p, true
		}
	}
	return link.Packet{}, false
}

// Report implements link.Reporter.
func (q *pfifoFast) Report() link.Report {
	return link.Report{Kind: "pfifo_fast", Extra: []link.Counter{number("band0_packets", q.bands[0].n),
		number("band1_packets", q.bands[1].n), number("band2_packets", q.bands[2].n)}}
}
