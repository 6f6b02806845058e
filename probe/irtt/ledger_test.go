package irtt

import (
	"math/rand/v2"
	"slices"
	"testing"

	"bufferbloat/probe"
)

// handled is what a simulated server did with one request.
type handled struct {
	seq    int64
	count  uint32
	window uint64
}

// simulate sends n requests through a path that loses and reorders, with a server that keeps its window well or as the stock server
// does, and returns the replies that arrive in the order of arrival, and which requests reached the server.
func simulate(r *rand.Rand, n int, stock bool) (replies []handled, reached []bool) {
	arrivals := shuffled(r, n)
	reached = make([]bool, n)
	window, last := uint64(0), int64(-1)
	var all []handled
	for i, seq := range arrivals {
		reached[seq] = true
		if stock {
			switch {
			case seq > last:
				window = window<<(seq-last) | 1
			default:
				window = 1
			}
			last = seq
		} else {
			window = 0
			for k := int64(0); k < windowSize && k <= seq; k++ {
				if reached[seq-k] {
					window |= 1 << k
				}
			}
		}
		all = append(all, handled{seq, uint32(i + 1), window})
	}
	for _, i := range shuffled(r, len(all)) {
		replies = append(replies, all[i])
	}
	return replies, reached
}

// shuffled returns the numbers below n with some lost and some late by up to 8 places.
func shuffled(r *rand.Rand, n int) []int64 {
	type due struct {
		n  int64
		at float64
	}
	var order []due
	for i := range int64(n) {
		if r.Float64() < 0.1 {
			continue
		}
		at := float64(i)
		if r.Float64() < 0.05 {
			at += 8 * r.Float64()
		}
		order = append(order, due{i, at})
	}
	slices.SortStableFunc(order, func(a, b due) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	var out []int64
	for _, d := range order {
		out = append(out, d.n)
	}
	return out
}

func TestVerdictsAreTrue(t *testing.T) {
	const requests = 300
	for _, stock := range []bool{false, true} {
		r := rand.New(rand.NewPCG(1, 2))
		lies, directed, unanswered := 0, 0, 0
		for range 300 {
			replies, reachedServer := simulate(r, requests, stock)
			answered := make([]bool, requests)
			verdicts := make(map[uint64]probe.Verdict)
			l := newLedger()
			for _, h := range replies {
				answered[h.seq] = true
				// About 4 requests are under way up when a reply is heard.
				for _, v := range l.reply(h.seq, h.window, h.count, min(h.seq+4+8, requests-1)) {
					if old, ok := verdicts[v.Seq]; ok && old.Reached {
						t.Fatalf("stock %v: request %d was told of again after it was told to have reached the server", stock, v.Seq)
					}
					verdicts[v.Seq] = v
					if v.Reached && !reachedServer[v.Seq] {
						t.Errorf("stock %v: request %d is told to have reached the server, and has not", stock, v.Seq)
					}
				}
			}
			for seq := range requests - 2*windowSize { // the rest has no later windows
				if answered[seq] {
					continue
				}
				unanswered++
				if v, ok := verdicts[uint64(seq)]; ok {
					directed++
					if v.Reached != reachedServer[seq] {
						lies++
					}
				}
			}
		}
		// The stock server can lose a late request from its window before a reply has told of it: a verdict that was true when it was given
		// is then never corrected.
		if allowed := directed / 1000; lies > allowed || !stock && lies > 0 {
			t.Errorf("stock %v: %d of %d verdicts about unanswered requests are wrong", stock, lies, directed)
		}
		if directed < unanswered*9/10 {
			t.Errorf("stock %v: %d of %d unanswered requests got a direction, want at least 9 of 10", stock, directed, unanswered)
		}
	}
}

func TestLedgerWithoutInformationTellsNothing(t *testing.T) {
	for _, c := range []struct {
		claim  string
		window uint64
		count  uint32
	}{
		{"neither window nor count", 0, 0},
		{"a window with bit 0 clear", 0b10, 0},
		{"a window without a count", 0b1, 0},
		{"a count above what the window shows", 0b1, 2},
	} {
		l := newLedger()
		if got := l.reply(5, c.window, c.count, 9); len(got) != 0 {
			t.Errorf("%s: verdicts %v, want none", c.claim, got)
		}
	}
}

// A server counts what reaches it in 32 bits, duplicates included.
func TestTheServersCountMayWrap(t *testing.T) {
	l := newLedger()
	l.count = 1<<32 - 3 // of a long series whose latest reply was to request 99
	for n := range int64(100) {
		l.advance(n)
		l.learn(n)
	}
	count, window := l.count, uint64(1<<64-1)
	lost := []probe.Verdict(nil)
	for n := int64(100); n < 110; n++ {
		if window <<= 1; n == 103 {
			continue // it does not reach the server
		}
		window |= 1
		count++
		for _, v := range l.reply(n, window, count, n) {
			if !v.Reached {
				lost = append(lost, v)
			}
		}
	}
	if len(lost) != 1 || lost[0].Seq != 103 || count != 6 {
		t.Errorf("told to be missing: %v, at a count of %d; want 103 alone, at 6", lost, count)
	}
}
