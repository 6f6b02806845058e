package bufferbloat

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/probe"
)

// silence is a probe's transport to a target that never answers.
type silence struct{ closed, woken chan struct{} }

func (silence) Send(uint64) (time.Time, error) { return time.Now(), nil }

func (s silence) Receive() (probe.Reply, error) {
	select {
	case <-s.closed:
		return probe.Reply{}, net.ErrClosed
	case <-s.woken:
		return probe.Reply{}, os.ErrDeadlineExceeded
	}
}

func (s silence) Wake(at time.Time) error {
	time.AfterFunc(time.Until(at), func() {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	})
	return nil
}

func (s silence) Close() error { close(s.closed); return nil }

// Reports 74: 1000 probes a second to a target that never answers, for three hours where BLOAT_MEMORY is set; else for as long as the 64th part of the memory
// needs to fill. They leave up to 100 µs late, each by another time, as on a real host.
func TestHoursOfSilenceTakeNoMoreMemoryThanTheFirst(t *testing.T) {
	length, most := 2*time.Minute, mostHeld/64
	if os.Getenv("BLOAT_MEMORY") != "" {
		length, most = 3*time.Hour, mostHeld
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "scratch"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		r := newRecorder(time.Now(), nil)
		r.rec.packing, r.rec.shelf = true, &shelf{file: file, most: most}
		r.put(&entry{Series: &ProbeSeries{Name: "icmp"}})
		n := uint64(length / time.Millisecond)
		begin, whole := 0, 0
		_, err := probe.Run(t.Context(), t.Context(), bubbleClock{}, silence{make(chan struct{}), make(chan struct{}, 1)}, probe.Options{Interval: time.Millisecond}, time.Now(), n, func(s probe.Sample) {
			s.Sent += time.Duration(rnd.Int64N(int64(100 * time.Microsecond)))
			r.sample("icmp", s)
			if s.Seq%1000 == 999 {
				r.flush()
			}
			switch s.Seq {
			case n * 2 / 3: // what is held in memory is full by now
				begin = heap()
			case n - 1:
				whole = heap()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := r.finish()
		if err != nil {
			t.Fatal(err)
		}
		p := rec.Probes[0].packed
		bytes := 0
		for _, run := range p.runs {
			bytes += run.size()
		}
		if each := float64(bytes) / float64(n); each < 3 || each > 5 {
			t.Errorf("%.2f bytes for each lost probe, want 3 to 5", each)
		}
		if rec.shelf.end == 0 || rec.shelf.held > most+mostBlock {
			t.Errorf("%d of %d bytes are in the file, and %d held in memory", rec.shelf.end, bytes, rec.shelf.held)
		}
		t.Logf("%d lost probes: %d bytes, of which %d in the file; heap %d after two thirds, %d at the end", n, bytes, rec.shelf.end, begin, whole)
		if whole > begin+64<<10 {
			t.Errorf("the heap grew from %d to %d bytes in the last third", begin, whole)
		}
		seq := uint64(0)
		for s := range rec.Probes[0].All() {
			if s.Seq != seq || s.Outcome != probe.Lost || s.Due != time.Duration(seq)*time.Millisecond || s.Lateness() >= 100*time.Microsecond {
				t.Fatalf("probe %d came back as %+v", seq, s)
			}
			seq++
		}
		if seq != n {
			t.Errorf("%d probes come back of %d", seq, n)
		}
	})
}
