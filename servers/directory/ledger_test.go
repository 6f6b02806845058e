package directory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newLedger(t *testing.T) *Ledger {
	return &Ledger{Dir: filepath.Join(t.TempDir(), "state", "bloat"), Clock: host.NewKernel()}
}

func server(runs int) *Entry {
	name := "a.example"
	return &Entry{ID: "a", Host: &name, Policy: "be gentle", MaxRunsPerDay: &runs}
}

func TestTheLedgerCountsOverProcessesAndDays(t *testing.T) {
	t.Parallel()
	l, e := newLedger(t), server(3)
	for i := range 3 {
		again := Ledger{Dir: l.Dir, Clock: l.Clock} // as another process
		c, err := again.Begin(t.Context(), e, noon.Add(time.Duration(i)*time.Hour))
		if want := (Count{Today: i + 1, Ever: i + 1, Untold: i == 0}); err != nil || c != want {
			t.Errorf("run %d: %+v, %v, want %+v", i+1, c, err, want)
		}
	}
	var refused *RefusedError
	if _, err := l.Begin(t.Context(), e, noon.Add(23*time.Hour)); !errors.As(err, &refused) || !strings.Contains(err.Error(), "allows no more") {
		t.Errorf("a fourth run within 24 hours: %v, want a refusal", err)
	}
	c, err := l.Begin(t.Context(), e, noon.Add(24*time.Hour))
	if want := (Count{Today: 3, Ever: 4}); err != nil || c != want {
		t.Errorf("24 hours after the first: %+v, %v, want %+v", c, err, want)
	}
	e.Policy = "be gentler"
	if c, err := l.Count(t.Context(), e, noon.Add(48*time.Hour)); err != nil || c != (Count{Ever: 4, Untold: true}) {
		t.Errorf("with another policy: %+v, %v, want it untold", c, err)
	}
	other := "b.example"
	if c, err := l.Begin(t.Context(), &Entry{ID: "b", Host: &other}, noon); err != nil || c.Today != 1 {
		t.Errorf("another server: %+v, %v, want a count of its own", c, err)
	}
}

func TestWhereNoNumberIsNamedTheProgramHasItsOwn(t *testing.T) {
	t.Parallel()
	l, e := newLedger(t), server(0)
	e.MaxRunsPerDay = nil
	for range DefaultRunsPerDay {
		if _, err := l.Begin(t.Context(), e, noon); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Begin(t.Context(), e, noon); err == nil || !strings.Contains(err.Error(), "this program makes no more") {
		t.Errorf("got %v, want a refusal that calls the number ours", err)
	}
}

func TestARunCountsAlsoWhereTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	l, e := newLedger(t), server(1)
	if _, err := l.Begin(t.Context(), e, noon); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(t.Context(), e, noon.Add(-3*time.Hour)); err == nil {
		t.Error("a clock that was set back makes room for a second run")
	}
}

func TestABrokenLedgerIsNoCountOfZero(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"cut off": `{"schema":"bloat/uses/1","hosts":{"a.exam`, "empty": "", "of another kind": `{"schema":"bloat/result/1"}`,
		"a null": `{"schema":"bloat/uses/1","hosts":{"a.example":null}}`,
	} {
		l := newLedger(t)
		if err := os.MkdirAll(l.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.path(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Begin(t.Context(), server(3), noon); err == nil || !strings.Contains(err.Error(), l.path()) {
			t.Errorf("%s: %v, want an error that names the file", name, err)
		}
		if got, err := os.ReadFile(l.path()); err != nil || string(got) != text {
			t.Errorf("%s: the file holds %q, %v now, want it untouched", name, got, err)
		}
	}
}

func TestTogetherNoMoreRunsBeginThanMay(t *testing.T) {
	t.Parallel()
	dir, began := newLedger(t).Dir, make(chan error, 20)
	var group sync.WaitGroup
	for range cap(began) {
		group.Go(func() {
			l := Ledger{Dir: dir, Clock: host.NewKernel()}
			_, err := l.Begin(context.Background(), server(7), noon)
			began <- err
		})
	}
	group.Wait()
	close(began)
	good := 0
	for err := range began {
		var refused *RefusedError
		switch {
		case err == nil:
			good++
		case !errors.As(err, &refused):
			t.Error(err)
		}
	}
	if good != 7 {
		t.Errorf("%d runs began, want 7", good)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
	if len(left) > 0 || err != nil {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestAFolderThatCantBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := Ledger{Dir: filepath.Join(file, "bloat"), Clock: host.NewKernel()}
	if _, err := l.Begin(t.Context(), server(1), noon); err == nil {
		t.Error("got no error")
	}
}

func TestTheGapIsExponentialWithinItsBounds(t *testing.T) {
	t.Parallel()
	g, random := Gap{Mean: 21600, Min: 2160, Max: 54000}, rand.New(rand.NewPCG(1, 2))
	seen := map[time.Duration]int{}
	sum := time.Duration(0)
	const n = 20000
	for range n {
		d := g.Wait(random)
		if d < 36*time.Minute || d > 15*time.Hour {
			t.Fatalf("a gap of %v, want 36 min to 15 h", d)
		}
		seen[d]++
		sum += d
	}
	// The bounds cut both tails: E = min + mean (exp(-min/mean) - exp(-max/mean)) = 2160 + 21600 (exp(-0.1) - exp(-2.5)) s = 19931 s.
	if got := (sum / n).Seconds(); got < 19500 || got > 20400 {
		t.Errorf("the mean is %.0f s, want about 19931 s", got)
	}
	if len(seen) < n/2 {
		t.Errorf("only %d different gaps of %d", len(seen), n)
	}
}

func FuzzParseUses(f *testing.F) {
	f.Add([]byte(`{"schema":"bloat/uses/1","hosts":{"a.example":{"runs":2,"last":["2026-03-01T12:00:00Z"],"told":"00"}}}`))
	f.Add([]byte(`{"schema":"bloat/uses/1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseUses(b)
		if err != nil {
			return
		}
		for name, u := range all.Hosts {
			e := &Entry{ID: "a", Host: &name}
			if c := u.count(e, noon); c.Today < 0 || c.Today > len(u.Last) {
				t.Errorf("%s: %+v", fmt.Sprintf("%q", b), c)
			}
			_ = u.next(1, noon)
		}
	})
}
