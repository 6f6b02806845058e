package statefile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/host"
)

func TestALockIsHadByOneAtATime(t *testing.T) {
	t.Parallel()
	clock, path := host.NewKernel(), filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), clock, path)
	if err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no more patience")
	clock.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	if _, err := Lock(impatient, clock, path); !errors.Is(err, why) {
		t.Errorf("the second lock: %v, want it to wait until its context ends", err)
	}
	clock.AfterFunc(50*time.Millisecond, func() { _ = unlock() })
	again, err := Lock(t.Context(), clock, path)
	if err != nil {
		t.Fatalf("after it was given back: %v", err)
	}
	if err := again(); err != nil {
		t.Error(err)
	}
	if _, err := Lock(t.Context(), clock, filepath.Join(path, "below")); err == nil {
		t.Error("a lock below a file: no error")
	}
}

func TestReplaceLeavesTheOldContentWhereTheNewCantBeMade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.json")
	for _, v := range []any{map[string]int{"a": 1}, map[string]int{"b": 2}} {
		if err := Replace(path, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := Replace(path, func() {}); err == nil {
		t.Error("a function was written as JSON")
	}
	if got, err := Read(path, 1000); err != nil || string(got) != "{\n  \"b\": 2\n}\n" {
		t.Errorf("got %q, %v, want the last content", got, err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v, want nothing left over", len(files), err)
	}
	if _, err := Read(path, 3); err == nil || !strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("too long: %v, want an error", err)
	}
}
