package acceptance

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// arrival is how much TCP payload a device has received by a time of the wall clock, by the kernel's own count: its bytes less the headers of its packets,
// of which a large one of several segments has one set. Of what is no TCP segment with time stamps only a few bytes are left.
type arrival struct {
	at    time.Time
	bytes int64
}

// arrivals are in the order of their times.
type arrivals []arrival

// headers are those of Ethernet, IPv4 and TCP with time stamps.
const headers = 14 + 20 + 32

// watchArrivals reads what a device receives, each 50 ms, until the function that it returns is called.
func watchArrivals(t *testing.T, d *testnet.Device) (stop func() arrivals) {
	t.Helper()
	var file *os.File
	var err error
	d.Space.Inside(t, func() { file, err = os.Open("/proc/thread-self/net/dev") }) // which stays that of the namespace
	if err != nil {
		facility.Missing(t, "/proc/net/dev", err.Error())
	}
	var list arrivals
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer file.Close()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		b := make([]byte, 8<<10)
		for {
			began := time.Now()
			n, _ := file.ReadAt(b, 0)
			got, ok := receivedBy(b[:n], d.Name)
			if now := time.Now(); ok && now.Sub(began) < 2*time.Millisecond { // one that was interrupted may be from any time in between
				list = append(list, arrival{now.Round(0), got})
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() arrivals { close(done); reader.Wait(); return list }
}

// receivedBy returns the payload that a device has received, by the text of /proc/net/dev.
func receivedBy(text []byte, device string) (int64, bool) {
	for line := range bytes.Lines(text) {
		name, counts, ok := bytes.Cut(line, []byte(":"))
		if fields := bytes.Fields(counts); ok && string(bytes.TrimSpace(name)) == device && len(fields) > 1 {
			size, err1 := strconv.ParseInt(string(fields[0]), 10, 64)
			packets, err2 := strconv.ParseInt(string(fields[1]), 10, 64)
			return size - headers*packets, err1 == nil && err2 == nil
		}
	}
	return 0, false
}

// by returns the payload that had arrived by a time of a run, between two readings as if it came evenly.
func (a arrivals) by(rec *bufferbloat.Recording, at time.Duration) int64 {
	points := make([]bufferbloat.Point, len(a))
	for i, v := range a {
		points[i] = bufferbloat.Point{At: v.at.Sub(rec.Started), Bytes: uint64(max(0, v.bytes-a[0].bytes))}
	}
	return int64(delivered(points, at))
}

// longestHole is a time in which any hole in a flow is filled: a packet that was lost twice waits for the timer, which is 1 s at first.
const longestHole = 3 * time.Second

// behindHoles returns for each interval how much had arrived by its begin and was not delivered yet, because something before it was lost: what the device had
// more than the flows, less the least that this was in the time before, since what arrived twice and what is no flow's adds up.
func (a arrivals) behindHoles(rec *bufferbloat.Recording, start time.Duration, list intervals) []uint64 {
	more := make([]int64, len(list))
	had := int64(0)
	for i, n := range list {
		more[i] = a.by(rec, start+time.Duration(i)*interval) - had
		had += int64(n)
	}
	out := make([]uint64, len(list))
	for i := range list {
		before := more[max(0, i-int(longestHole/interval)) : i+1]
		out[i] = uint64(more[i] - slices.Min(before))
	}
	return out
}

func TestWhatWaitsBehindAHoleIsWhatArrivedAndWasNotDelivered(t *testing.T) {
	rec := &bufferbloat.Recording{Started: time.Unix(1000, 0)}
	at := func(i int) time.Time { return rec.Started.Add(time.Duration(i) * interval) }
	a := arrivals{{at(0), 500}, {at(1), 600}, {at(2), 700}, {at(3), 800}, {at(4), 910}} // 10 bytes are nobody's
	if got, want := a.behindHoles(rec, 0, intervals{100, 30, 170, 100}), []uint64{0, 0, 70, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	const text = "Inter-|   Receive\n face |bytes    packets\n    lo:     999      9    0\n  cl0: 15140 10 0 0 0 0 0 0 7 8\n"
	if got, ok := receivedBy([]byte(text), "cl0"); !ok || got != 15140-10*headers {
		t.Errorf("got %d, %v", got, ok)
	}
	if _, ok := receivedBy([]byte(text), "cl1"); ok {
		t.Error("a device that is not there has received something")
	}
}
