package queue

import (
	"math/rand/v2"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// Cake is the parts of Linux's cake ("Piece of CAKE", Hoeiland-Joergensen, Taht and Morton, 2018, and the manual page of tc-cake) that
// bear on latency and fairness:
//
//   - a shaper without bursts, on the size of a packet with the overhead of another link layer;
//   - tins by DSCP, each with a share of the rate above which it gives way to the others;
//   - in each tin 1024 queues in an 8-way set-associative hash, served by deficit round robin with sparse flows first, where the quantum of a
//     flow is divided by the bulk flows of its busiest host (triple-isolate);
//   - COBALT on every queue, which marks whatever can be marked;
//   - the ack filter: an acknowledgement in the queue is dropped when later ones behind it say the same. Of Linux's rules for what "the same"
//     is, only the simplest case is left: Packet.PureACK.
//
// A full buffer drops from the head of the longest queue. Not here: ingress mode and autorate, NAT look-up, washing, firewall marks,
// diffserv8 and precedence, splitting of GSO packets (the link has none), and the per-host "hosts" and "flowblind" modes. Bytes in the
// buffer are counted on the wire, not as memory of a kernel.
type Cake struct {
	Rate     bitrate.Bitrate // of the shaper; 0 means none
	Framing  string          // of the shaper, one of link.FramingNames; "" means "raw", Packet.Wire as it is
	RTT      time.Duration   // of the flows: COBALT's interval, whose twentieth is its target; 0 means 100 ms
	Diffserv string          // "diffserv3", "diffserv4" or "besteffort"; "" means "diffserv3"
	Isolate  string          // "triple-isolate", "dual-srchost", "dual-dsthost" or "flows"; "" means "triple-isolate"
	// Ack is "no-ack-filter", "ack-filter", which leaves two of those that a new one makes redundant, or "ack-filter-aggressive", which
	// leaves none; "" means "no-ack-filter".
	Ack    string
	Memory int // bytes; 0 means four times what Rate carries in RTT and at least 4 MiB, or 32 MiB without a rate
}

func (o *Cake) describe() (string, []parameter) {
	rate := speed("bandwidth", &o.Rate, 0)
	rateCheck := rate.check
	rate.check = func() error {
		if o.Rate == 0 {
			return nil
		}
		return rateCheck()
	}
	memory := defaultMemory
	if o.Rate > 0 {
		memory = int(min(max(float64(o.Rate)/8*max(o.RTT, codelInterval).Seconds()*4, 4<<20), maxMemory))
	}
	return "cake", []parameter{rate, choice("framing", &o.Framing, link.FramingNames()...),
		span("rtt", &o.RTT, codelInterval, 20*time.Microsecond, time.Minute),
		word(&o.Diffserv, "diffserv3", "diffserv4", "besteffort"),
		word(&o.Isolate, "triple-isolate", "dual-srchost", "dual-dsthost", "flows"),
		word(&o.Ack, "no-ack-filter", "ack-filter", "ack-filter-aggressive"),
		size("memlimit", &o.Memory, memory, frame, maxMemory)}
}

// word is one of some words that stand alone, of which the first is the default.
func word(v *string, names ...string) parameter {
	p := choice(names[0], v, names...)
	p.alone, p.others = true, names[1:]
	p.write = func() string { return *v }
	return p
}

// Check implements Discipline.
func (o Cake) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o Cake) String() string { return write(o) }

// Capacity implements Discipline.
func (o Cake) Capacity(wire int) int { o, _ = complete(o); return o.Memory }

// New implements Discipline.
func (o Cake) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &cake{core: newCore(e), o: o, random: newRandom(e.Seed, 15)}
	q.framing, _ = link.FramingOf(o.Framing)
	q.seed = q.random.Uint64()
	q.keep = 2
	if o.Ack == "ack-filter-aggressive" {
		q.keep = 0
	}
	for _, s := range sharesOf(o.Diffserv) {
		q.tins = append(q.tins, newTin(s, o))
	}
	return q, nil
}

// asCharged is the framing that leaves the size of a packet as the link has it, which is what Linux's "raw" does.
const asCharged = "raw"

// share is a tin: its name, and the divisor of the rate.
type share struct {
	name    string
	divisor int
}

// sharesOf returns the tins of a mode. Of those within their rate the last goes first, so that bulk, too, gets its sixteenth.
func sharesOf(diffserv string) []share {
	switch diffserv {
	case "besteffort":
		return []share{{"besteffort", 1}}
	case "diffserv4":
		return []share{{"besteffort", 1}, {"bulk", 16}, {"video", 2}, {"voice", 4}}
	}
	return []share{{"besteffort", 1}, {"bulk", 16}, {"voice", 4}}
}

// tinOf returns the tin of a packet.
func (q *cake) tinOf(ds uint8) int {
	switch code := ds >> 2; len(q.tins) {
	case 3:
		return int(diffserv3[code])
	case 4:
		return int(diffserv4[code])
	}
	return 0
}

// The tins of the 64 code points: LE and CS1 are bulk; TOS4, VA, EF, CS6 and CS7 are voice in diffserv3.
var (
	diffserv3 = [64]uint8{1: 1, 8: 1, 4: 2, 44: 2, 46: 2, 48: 2, 56: 2}
	diffserv4 = [64]uint8{1: 1, 8: 1, 4: 2, 16: 2, 18: 2, 20: 2, 22: 2, 24: 2, 26: 2, 28: 2, 30: 2, 34: 2, 36: 2, 38: 2,
		32: 3, 40: 3, 44: 3, 46: 3, 48: 3, 56: 3}
)

type cake struct {
	core
	o       Cake
	framing link.Framing
	random  *rand.Rand
	seed    uint64
	tins    []*tin
	turn    int // the tin whose turn it is, without a shaper
	keep    int // redundant acknowledgements that the filter leaves

	next      time.Duration // when the shaper lets a packet go
	remainder int64         // of the division in next, carried so that the rate is exact
}

// set is the rotation that a queue is in.
type set uint8

const (
	idle     set = iota // in none
	sparse              // has just begun to send
	waiting             // was sparse and is empty, but stays in the rotation of the bulk flows until its turn
	bulk                // sends more than its share
	decaying            // is empty, and its AQM has not come to rest
)

type cakeFlow struct {
	line       chain
	set        set
	list       uint8 // where it is listed, with set != idle
	tag        uint32
	from, to   uint16 // places of the hosts
	deficit    int
	cobalt     cobalt
	next, prev int32 // in the list; index of the flow + 1
}

// tin is a class of traffic.
type tin struct {
	share
	quantum int // of a flow
	weight  int // of the tin, without a shaper
	deficit int
	nanos   float64 // per byte, at the tin's rate
	next    time.Duration
	aqm     cobaltOptions

	flows     [cakeQueues]cakeFlow
	lists     [3]turns // newcomers, rotation and the decaying
	sparse    int
	bulk      int
	sources   hosts
	targets   hosts
	bytes     int
	ways      wayCounts
	drops     uint64
	marks     uint64
	acks      uint64
	unanswers int // flows that BLUE is at work on
	sojourn   time.Duration
}

// The lists of a tin.
const (
	newcomers = iota
	rotation
	decayed
)

func newTin(s share, o Cake) *tin {
	t := &tin{share: s, quantum: frame, weight: frame * 16 / s.divisor}
	target := o.RTT / 20
	t.aqm = cobaltOptions{target: target, interval: o.RTT}
	if o.Rate == 0 {
		return t
	}
	rate := float64(o.Rate) / float64(s.divisor)
	t.nanos = 8e9 / rate
	t.quantum = max(min(int(rate/8)>>12, frame), 300)
	t.aqm.packet = time.Duration(t.nanos * frame)
	t.aqm.target = max(t.aqm.packet*3/2, target)
	t.aqm.interval = max(o.RTT+t.aqm.target-target, 2*t.aqm.target)
	return t
}

// append puts flow i at the end of a list.
func (t *tin) append(list uint8, i int32) {
	f, l := &t.flows[i-1], &t.lists[list]
	f.list, f.next, f.prev = list, none, l.tail
	if l.tail == none {
		l.head = i
	} else {
		t.flows[l.tail-1].next = i
	}
	l.tail = i
}

// remove takes flow i out of its list.
func (t *tin) remove(i int32) {
	f := &t.flows[i-1]
	l := &t.lists[f.list]
	if f.prev == none {
		l.head = f.next
	} else {
		t.flows[f.prev-1].next = f.next
	}
	if f.next == none {
		l.tail = f.prev
	} else {
		t.flows[f.next-1].prev = f.prev
	}
}

// become moves f to another set, and keeps the counts of flows.
func (t *tin) become(f *cakeFlow, s set) {
	switch f.set {
	case sparse, waiting:
		t.sparse--
	case bulk:
		t.bulk--
		t.count(f, -1)
	}
	if s == idle {
		t.sources.release(f.from)
		t.targets.release(f.to)
	}
	f.set = s
	switch s {
	case sparse, waiting:
		t.sparse++
	case bulk:
		t.bulk++
		t.count(f, +1)
	}
}

// allowance is the quantum of f: that of the tin, divided by the bulk flows of its busiest host.
func (q *cake) allowance(t *tin, f *cakeFlow) int {
	load := uint16(1)
	if q.o.Isolate == "triple-isolate" || q.o.Isolate == "dual-srchost" {
		load = max(load, t.sources.bulk[f.from])
	}
	if q.o.Isolate == "triple-isolate" || q.o.Isolate == "dual-dsthost" {
		load = max(load, t.targets.bulk[f.to])
	}
	if load == 1 {
		return t.quantum
	}
	// The remainder is given at random, so that many flows of one host get what is theirs on average.
	return int(float64(t.quantum)/float64(load) + q.random.Float64())
}

// price is what p costs in the shaper and in the rounds.
func (q *cake) price(p *link.Packet) int {
	if q.o.Framing == asCharged {
		return p.Wire
	}
	return q.framing.Wire(p.Size)
}

func (q *cake) Enqueue(p link.Packet, now time.Duration) {
	t := q.tins[q.tinOf(p.DS)]
	i := t.find(scramble(p.Flow^q.seed), p.From, p.To)
	f := &t.flows[i]
	if t.bytes == 0 {
		t.next = max(t.next, now) // a shaper that was idle saves nothing up
		if q.Len() == 0 {
			q.next = max(q.next, now)
		}
	}
	q.push(&f.line, p)
	t.bytes += p.Wire
	if p.PureACK && q.o.Ack != "no-ack-filter" {
		q.filter(t, f)
	}
	switch f.set {
	case idle, decaying:
		if f.set == decaying {
			t.remove(int32(i + 1))
		}
		t.become(f, sparse)
		t.append(newcomers, int32(i+1))
		f.deficit = q.allowance(t, f)
	case waiting:
		t.become(f, bulk)
	}
	for q.Bytes() > q.o.Memory {
		q.overflow(now)
	}
}

// filter drops the oldest acknowledgement of f that the newest makes redundant, where enough others are left.
func (q *cake) filter(t *tin, f *cakeFlow) {
	newest := q.nodes[f.line.tail].p
	oldest, redundant := none, 0
	for i := f.line.head; i != f.line.tail; i = q.nodes[i].next {
		p := &q.nodes[i].p
		if p.PureACK && p.Flow == newest.Flow && int32(newest.ACK-p.ACK) > 0 {
			if redundant == 0 {
				oldest = i
			}
			redundant++
		}
	}
	if redundant > q.keep {
		p := q.remove(&f.line, oldest)
		t.bytes -= p.Wire
		t.acks++
		q.env.Drop(p, link.Filtered)
	}
}

// overflow drops the head of the queue with the most bytes of all tins.
func (q *cake) overflow(now time.Duration) {
	var t *tin
	var f *cakeFlow
	for _, candidate := range q.tins {
		if candidate.bytes == 0 {
			continue
		}
		for _, l := range candidate.lists {
			for i := l.head; i != none; i = candidate.flows[i-1].next {
				if g := &candidate.flows[i-1]; f == nil || g.line.bytes > f.line.bytes {
					t, f = candidate, g
				}
			}
		}
	}
	p, _ := q.pop(&f.line)
	t.bytes -= p.Wire
	t.drops++
	if f.cobalt.overflowed(&t.aqm, now) {
		t.unanswers++
	}
	q.env.Drop(p, link.Overflow)
}

func (q *cake) Dequeue(now time.Duration) (link.Packet, bool) {
	if q.o.Rate != 0 && q.next > now && q.Len() > 0 {
		q.overlimits++
		return link.Packet{}, false
	}
	for q.Len() > 0 {
		t := q.choose(now)
		p, ok := q.serve(t, now)
		if ok {
			return p, true
		}
	}
	return link.Packet{}, false
}

// Wake implements link.Shaper.
func (q *cake) Wake(now time.Duration) (time.Duration, bool) {
	return q.next, q.o.Rate != 0 && q.Len() > 0
}

// choose returns the tin to serve; one holds packets. With a shaper it is the last of those that are within their rate,
// or else the one that is within it first. Without one, the tins take turns by their weights.
func (q *cake) choose(now time.Duration) *tin {
	if q.o.Rate == 0 {
		for {
			t := q.tins[q.turn]
			if t.bytes > 0 && t.deficit > 0 {
				return t
			}
			if t.bytes > 0 {
				t.deficit += t.weight
			}
			q.turn = (q.turn + 1) % len(q.tins)
		}
	}
	var best *tin
	for _, t := range q.tins {
		switch {
		case t.bytes == 0:
		case best == nil, t.next <= now, t.next <= best.next:
			best = t
		}
	}
	return best
}

// serve takes a packet from a tin; it returns false where the queue that was served held none.
func (q *cake) serve(t *tin, now time.Duration) (link.Packet, bool) {
	q.decay(t, now)
	i := q.pick(t)
	if i == none {
		return link.Packet{}, false
	}
	f := &t.flows[i-1]
	for {
		p, ok := q.pop(&f.line)
		if !ok {
			q.rest(t, f, i, now)
			return link.Packet{}, false
		}
		t.bytes -= p.Wire
		t.sojourn = now - p.Entered
		drop, mark := f.cobalt.judge(t.sojourn, t.bulk, p.ECT(), &t.aqm, now, q.random)
		if drop && f.line.n > 0 { // the last one may be marked, but not dropped
			t.drops++
			q.env.Drop(p, link.AQM)
			continue
		}
		if mark {
			t.marks++
			p = q.mark(p)
		}
		q.charge(t, f, q.price(&p), now)
		return p, true
	}
}

// decay looks after one of the empty queues whose AQM has not come to rest.
func (q *cake) decay(t *tin, now time.Duration) {
	if i := t.lists[decayed].head; i != none {
		q.rest(t, &t.flows[i-1], i, now)
	}
}

// pick returns the flow to serve, none where no flow takes part.
func (q *cake) pick(t *tin) int32 {
	for {
		i := t.lists[newcomers].head
		if i == none {
			if i = t.lists[rotation].head; i == none {
				return none
			}
		}
		f := &t.flows[i-1]
		if f.deficit > 0 {
			return i
		}
		if f.set == sparse {
			if f.line.n > 0 {
				t.become(f, bulk)
			} else {
				t.become(f, waiting)
			}
		}
		f.deficit += q.allowance(t, f)
		t.remove(i)
		t.append(rotation, i)
	}
}

// rest is told that flow i was found empty.
func (q *cake) rest(t *tin, f *cakeFlow, i int32, now time.Duration) {
	if f.cobalt.emptied(&t.aqm, now) {
		t.unanswers--
	}
	t.remove(i)
	if f.cobalt.rest(now) {
		t.become(f, idle)
		return
	}
	t.become(f, decaying)
	t.append(decayed, i)
}

// charge lets the flow, the tin and the shaper pay.
func (q *cake) charge(t *tin, f *cakeFlow, bytes int, now time.Duration) {
	f.deficit -= bytes
	if q.o.Rate == 0 {
		t.deficit -= bytes
		return
	}
	own := time.Duration(t.nanos * float64(bytes))
	if t.next < now {
		t.next += own
	} else {
		t.next = max(t.next, now+own)
	}
	need := int64(bytes)*token + q.remainder
	q.next += time.Duration(need / int64(q.o.Rate))
	q.remainder = need % int64(q.o.Rate)
}

// Report implements link.Reporter.
func (q *cake) Report() link.Report {
	r := link.Report{Kind: "cake", Overlimits: q.overlimits}
	for _, t := range q.tins {
		for _, c := range []link.Counter{number("backlog", t.bytes), nanos("target_ns", t.aqm.target), nanos("delay_ns", t.sojourn),
			number("drops", t.drops), number("marks", t.marks), number("ack_drop", t.acks), number("sparse_flows", t.sparse),
			number("bulk_flows", t.bulk), number("unresponsive_flows", t.unanswers), number("way_directs", t.ways.direct),
			number("way_hits", t.ways.hits), number("way_misses", t.ways.misses), number("way_collisions", t.ways.collisions)} {
			c.Name = strings.Join([]string{t.name, c.Name}, "_")
			r.Extra = append(r.Extra, c)
		}
	}
	return r
}
