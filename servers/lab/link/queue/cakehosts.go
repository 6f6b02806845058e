package queue

// The set-associative hash of cake: a flow may lie in any of the eight places of its set, so that flows share a queue only when nine of
// them meet in one set.
const (
	cakeQueues = 1024
	cakeWays   = 8
)

// hosts counts the bulk flows of each host, by the same kind of hash.
type hosts struct {
	tags  [cakeQueues]uint32
	flows [cakeQueues]uint16 // that hold a reference to the place
	bulk  [cakeQueues]uint16 // of these, those that send more than their share
}

// place returns the place of a host, and takes a reference to it.
func (h *hosts) place(hash uint32) uint16 {
	first := int(hash % cakeQueues)
	set, way := first&^(cakeWays-1), first&(cakeWays-1)
	empty := -1
	for i := range cakeWays {
		k := set + (way+i)%cakeWays
		if h.flows[k] > 0 && h.tags[k] == hash {
			h.flows[k]++
			return uint16(k)
		}
		if empty < 0 && h.flows[k] == 0 {
			empty = k
		}
	}
	if empty < 0 {
		empty = first // two hosts share a place
	}
	h.tags[empty] = hash
	h.flows[empty]++
	return uint16(empty)
}

func (h *hosts) release(place uint16) { h.flows[place]-- }

// wayCounts are how the look-ups went.
type wayCounts struct{ direct, hits, misses, collisions uint64 }

// find returns the queue of a flow. A queue that no flow has is given to it, together with references to its hosts.
func (t *tin) find(flow uint64, from, to uint32) int {
	tag := uint32(flow) ^ uint32(flow>>32)
	first := int(tag % cakeQueues)
	if f := &t.flows[first]; f.tag == tag && f.set != idle {
		t.ways.direct++
		return first
	}
	set, way := first&^(cakeWays-1), first&(cakeWays-1)
	for i := range cakeWays {
		k := set + (way+i)%cakeWays
		if f := &t.flows[k]; f.tag == tag && f.set != idle {
			t.ways.hits++
			return k
		}
	}
	for i := range cakeWays {
		k := set + (way+i)%cakeWays
		if t.flows[k].set == idle {
			t.ways.misses++
			t.assign(k, tag, from, to)
			return k
		}
	}
	t.ways.collisions++
	t.count(&t.flows[first], -1)
	t.assign(first, tag, from, to)
	t.count(&t.flows[first], +1)
	return first
}

// assign gives queue k to a flow.
func (t *tin) assign(k int, tag, from, to uint32) {
	f := &t.flows[k]
	if f.set != idle {
		t.sources.release(f.from)
		t.targets.release(f.to)
	}
	f.tag, f.from, f.to = tag, t.sources.place(from), t.targets.place(to)
}

// count adds by to the bulk flows of f's hosts, where f is one.
func (t *tin) count(f *cakeFlow, by int) {
	if f.set == bulk {
		t.sources.bulk[f.from] += uint16(by)
		t.targets.bulk[f.to] += uint16(by)
	}
}
