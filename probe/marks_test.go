package probe_test

import (
	"slices"
	"testing"
	"time"

	"bufferbloat/probe"
)

func TestMarksOfRepliesAreCounted(t *testing.T) {
	k := newTracked(t, anyTime)
	k.send(5)
	if got := k.Tally().Marks; got != nil {
		t.Errorf("before a reply: %v", got)
	}
	for seq, ds := range []uint8{0xb8, 0, 0xb8, 0x03} {
		k.Reply(probe.Reply{Seq: uint64(seq), At: k.at(5 * time.Second), DS: ds, HasDS: true}, k.at(5*time.Second))
	}
	k.Reply(probe.Reply{Seq: 4, At: k.at(5 * time.Second)}, k.at(5*time.Second))                                // of a stack that does not tell
	k.Reply(probe.Reply{Kind: probe.Stray, At: k.at(5 * time.Second), DS: 9, HasDS: true}, k.at(5*time.Second)) // not ours
	if got, want := k.Tally().Marks, []probe.Mark{{DS: 0, Count: 1}, {DS: 3, Count: 1}, {DS: 0xb8, Count: 2}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
