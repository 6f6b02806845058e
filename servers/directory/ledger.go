package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/statefile"
)

// LedgerSchema names the version of the file that counts runs.
const LedgerSchema = "bloat/uses/1"

const (
	day      = 24 * time.Hour
	keepRuns = 7 * day
)

// Ledger counts this host's uses of public servers in a file, for all processes of its user. The file is replaced whole, so that one that is
// killed meanwhile leaves the old count or the new one. Its methods may be called from any goroutine.
type Ledger struct {
	Dir   string     // where the file lies; it is made with its parents where it is missing
	Clock host.Clock // bounds the waits for other processes
}

// uses is the file's content.
type uses struct {
	Schema string           `json:"schema"`
	Hosts  map[string]*used `json:"hosts"`
}

// used is what one server has seen of this host.
type used struct {
	Runs int         `json:"runs"` // ever
	Last []time.Time `json:"last"` // when the runs of the last days began
	Told string      `json:"told"` // hash of the policy that its user was shown last
}

// Count says how often a server was used.
type Count struct {
	Today  int // within 24 hours
	Ever   int
	Untold bool // its user has not seen the policy as it is now
}

// Begin counts a run that begins now, or returns a *RefusedError where there have been enough in the last 24 hours. now is the wall clock. Any
// other error says why the file can't be kept; then a public server may not be used, because nobody counts.
func (l *Ledger) Begin(ctx context.Context, e *Entry, now time.Time) (Count, error) {
	var c Count
	err := l.change(ctx, func(all *uses) error {
		u := all.Hosts[e.Key()]
		if u == nil {
			u = &used{}
			all.Hosts[e.Key()] = u
		}
		c = u.count(e, now)
		if limit, said := e.RunsPerDay(); c.Today >= limit {
			whose := "this program makes no more, where an operator names no number"
			if said {
				whose = "its operator allows no more"
			}
			return e.refuse("%d runs in the last 24 hours; %s; the next may begin at %s", c.Today, whose,
				u.next(limit, now).Local().Format("2006-01-02 15:04"))
		}
		u.Runs++
		u.Last = append(u.Last, now.UTC().Round(0))
		u.Last = slices.DeleteFunc(u.Last, func(t time.Time) bool { return apart(now, t) > keepRuns })
		u.Told = policyHash(e)
		c.Today, c.Ever = c.Today+1, u.Runs
		return nil
	})
	return c, err
}

// Tell marks a server's policy as shown, without a run: Untold in the result says whether it was not.
func (l *Ledger) Tell(ctx context.Context, e *Entry) (Count, error) {
	c := Count{Untold: true}
	if all, err := l.read(); err != nil {
		return c, err
	} else if u := all.Hosts[e.Key()]; u != nil && u.Told == policyHash(e) {
		return Count{Ever: u.Runs}, nil
	}
	return c, l.change(ctx, func(all *uses) error {
		u := all.Hosts[e.Key()]
		if u == nil {
			u = &used{}
			all.Hosts[e.Key()] = u
		}
		u.Told, c.Ever = policyHash(e), u.Runs
		return nil
	})
}

// Count returns how often a server was used, without a use.
func (l *Ledger) Count(ctx context.Context, e *Entry, now time.Time) (Count, error) {
	all, err := l.read()
	if err != nil {
		return Count{}, err
	}
	if u := all.Hosts[e.Key()]; u != nil {
		return u.count(e, now), nil
	}
	return Count{Untold: true}, ctx.Err()
}

func (u *used) count(e *Entry, now time.Time) Count {
	c := Count{Ever: u.Runs, Untold: u.Told != policyHash(e)}
	for _, t := range u.Last {
		if apart(now, t) < day {
			c.Today++
		}
	}
	return c
}

// next is when fewer than limit runs are in the last 24 hours.
func (u *used) next(limit int, now time.Time) time.Time {
	var recent []time.Time
	for _, t := range u.Last {
		if apart(now, t) < day {
			recent = append(recent, t)
		}
	}
	slices.SortFunc(recent, time.Time.Compare)
	if limit == 0 || len(recent) < limit {
		return now.Add(day)
	}
	return recent[len(recent)-limit].Add(day)
}

// apart is the time between two readings of the wall clock, which may have been set back.
func apart(a, b time.Time) time.Duration { return a.Sub(b).Abs() }

func policyHash(e *Entry) string {
	sum := sha256.Sum256([]byte(e.Policy))
	return hex.EncodeToString(sum[:8])
}

func (l *Ledger) path() string { return filepath.Join(l.Dir, "uses.json") }

// change reads the file, changes it and writes it, while no other process does. An error of f leaves the file as it was.
func (l *Ledger) change(ctx context.Context, f func(*uses) error) (err error) {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return fmt.Errorf("keep the count of runs: %w", err)
	}
	unlock, err := statefile.Lock(ctx, l.Clock, filepath.Join(l.Dir, "uses.lock"))
	if err != nil {
		return fmt.Errorf("keep the count of runs: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	all, err := l.read()
	if err != nil {
		return err
	}
	if err := f(all); err != nil {
		return err
	}
	if err := statefile.Replace(l.path(), all); err != nil {
		return fmt.Errorf("keep the count of runs: %w", err)
	}
	return nil
}

// read returns the file's content. A file that can't be understood is an error and no count of 0.
func (l *Ledger) read() (*uses, error) {
	b, err := statefile.Read(l.path(), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return &uses{Schema: LedgerSchema, Hosts: map[string]*used{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the count of runs: %w", err)
	}
	all, err := parseUses(b)
	if err != nil {
		return nil, fmt.Errorf("read the count of runs in %s: %w; mend it, or move it away once 24 hours have passed", l.path(), err)
	}
	return all, nil
}

func parseUses(b []byte) (*uses, error) {
	var all uses
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	if all.Schema != LedgerSchema {
		return nil, fmt.Errorf("schema %q: want %q", all.Schema, LedgerSchema)
	}
	if all.Hosts == nil {
		all.Hosts = map[string]*used{}
	}
	for name, u := range all.Hosts {
		if u == nil || u.Runs < 0 {
			return nil, fmt.Errorf("no count for %q", name)
		}
	}
	return &all, nil
}
