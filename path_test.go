package bufferbloat

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
)

// bubbleClock is the clock of a synctest bubble.
type bubbleClock struct{}

func (bubbleClock) Now() time.Time { return time.Now() }

func (bubbleClock) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

func (bubbleClock) SleepUntil(ctx context.Context, t time.Time) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(time.Until(t)):
		return nil
	}
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

func TestRace(t *testing.T) {
	refused := errors.New("refused")
	type reply struct {
		after time.Duration
		err   error
	}
	silent := reply{time.Hour, nil}
	for _, c := range []struct {
		name    string
		replies []reply
		want    int
		took    time.Duration
	}{
		{"the first address answers", []reply{{50 * time.Millisecond, nil}, {0, nil}}, 0, 50 * time.Millisecond},
		{"no route to the first: the second is used at once", []reply{{0, refused}, {20 * time.Millisecond, nil}}, 1, 20 * time.Millisecond},
		{"the first is silent: the second is used after the stagger", []reply{silent, {20 * time.Millisecond, nil}}, 1, 320 * time.Millisecond},
		{"a slow first beats a slower second", []reply{{400 * time.Millisecond, nil}, {500 * time.Millisecond, nil}}, 0, 400 * time.Millisecond},
		{"all refuse", []reply{{0, refused}, {0, refused}}, -1, 0},
		{"only one, and it answers late", []reply{{6 * time.Second, nil}}, 0, 6 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			list := addrs("2001:db8::2", "192.0.2.2")[:len(c.replies)]
			start := time.Now()
			got, out := race(t.Context(), bubbleClock{}, list, func(ctx context.Context, a netip.Addr) (string, error) {
				r := c.replies[slices.Index(list, a)]
				if err := (bubbleClock{}).SleepUntil(ctx, time.Now().Add(r.after)); err != nil {
					return "", err
				}
				return a.String(), r.err
			})
			if took := time.Since(start); got != c.want || took != c.took {
				t.Errorf("%s: got address %d after %v, want %d after %v", c.name, got, took, c.want, c.took)
			}
			if got >= 0 && out.info != list[got].String() {
				t.Errorf("%s: got the information of %q, want that of %v", c.name, out.info, list[got])
			}
		})
	}
}

func TestRaceEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		got, _ := race(ctx, bubbleClock{}, addrs("192.0.2.2"), func(ctx context.Context, _ netip.Addr) (int, error) {
			return 0, bubbleClock{}.SleepUntil(ctx, time.Now().Add(time.Hour))
		})
		if took := time.Since(start); got != -1 || took != time.Second {
			t.Errorf("got %d after %v, want -1 after 1s", got, took)
		}
	})
}

func TestAlternate(t *testing.T) {
	got := alternate(addrs("2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::3"))
	want := addrs("2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3")
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
