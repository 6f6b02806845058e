package queue

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

const ms = time.Millisecond

// timed is a packet and the time at which it is sent, or arrives.
type timed struct {
	p  link.Packet
	at time.Duration
}

// newLink returns a link of a rate with a queue, or fails the test. Wire is the size of the IP packet.
func newLink(t testing.TB, rate bitrate.Bitrate, d Discipline, drop func(link.Packet, link.Reason)) *link.Link {
	t.Helper()
	l, err := link.New(link.Options{Rate: rate, Queue: d.New, Drop: drop, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// run sends packets at their times and returns every arrival, in order.
func run(l *link.Link, packets []timed, until time.Duration) []timed {
	var got []timed
	deliver := func(p link.Packet, at time.Duration) { got = append(got, timed{p, at}) }
	for _, a := range packets {
		l.Advance(a.at, deliver)
		l.Send(a.p, a.at)
	}
	l.Advance(until, deliver)
	return got
}

// flood is n packets of the same kind, every gap.
func flood(p link.Packet, n int, start, gap time.Duration) []timed {
	var all []timed
	for i := range n {
		all = append(all, timed{p, start + time.Duration(i)*gap})
	}
	return all
}

// merge puts the packets in order of their times, those of one time in order of the lists.
func merge(lists ...[]timed) []timed {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	return all
}

// flow returns the hash of a flow between two hosts.
func flow(n int) uint64 {
	f := link.Flow{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("192.0.2.2"), FromPort: uint16(n), ToPort: 5201, Protocol: 6}
	return f.Hash()
}

// shareOf returns the bytes that arrived of each of the flows 0 to n-1.
func shareOf(got []timed, n int) []float64 {
	index := map[uint64]int{}
	for i := range n {
		index[flow(i)] = i
	}
	sums := make([]float64, n)
	for _, a := range got {
		if i, ok := index[a.p.Flow]; ok {
			sums[i] += float64(a.p.Wire)
		}
	}
	return sums
}

// jain is Jain's index of fairness: 1 where all are equal, 1/n where one has everything.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

// must parses a discipline.
func must(t testing.TB, text string) Discipline {
	t.Helper()
	d, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// extra returns a counter of the queue's report.
func extra(t testing.TB, q link.Queue, name string) float64 {
	t.Helper()
	for _, c := range q.(link.Reporter).Report().Extra {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("%s has no counter %q", q.(link.Reporter).Report().Kind, name)
	return 0
}

// bare returns a queue that counts its drops and marks by itself.
func bare(t testing.TB, d Discipline, rate bitrate.Bitrate) (link.Queue, *tally) {
	t.Helper()
	var c tally
	q, err := d.New(link.Env{Drop: func(p link.Packet, r link.Reason) { c.drops[r]++; c.last = p }, Mark: func() { c.marks++ }, Rate: rate, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return q, &c
}

type tally struct {
	drops [link.Reasons]int
	marks int
	last  link.Packet // that was dropped
}

func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
