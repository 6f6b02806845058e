// Package statefile keeps small files that outlive a process and that several processes may change: locked meanwhile, and replaced whole.
package statefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"bufferbloat/internal/host"
)

const (
	lockTimeout = 5 * time.Second
	lockPoll    = 20 * time.Millisecond
)

// ErrLocked says that another process holds a lock.
var ErrLocked = errors.New("another process holds it")

// Lock takes the lock that the file at path stands for, making the file where it is missing, and waits up to 5 s for another process to give it back;
// then the error wraps ErrLocked. The lock ends with unlock, or with the process.
func Lock(ctx context.Context, clock host.Clock, path string) (unlock func() error, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for end := clock.Now().Add(lockTimeout); ; {
		err = tryLock(file)
		if err == nil {
			return file.Close, nil // closing gives the lock back
		}
		if !errors.Is(err, ErrLocked) || clock.Now().After(end) {
			break
		}
		if err = clock.SleepUntil(ctx, clock.Now().Add(lockPoll)); err != nil {
			break
		}
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
}

// Replace writes v as JSON beside path and then puts it in path's place, so that whoever reads path, or is killed meanwhile, has the old content or
// the new.
func Replace(path string, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*.tmp")
	if err != nil {
		return err
	}
	_, err = file.Write(b.Bytes())
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}

// Read returns a file's content, which must not be longer than most bytes.
func Read(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s: more than %d bytes", path, most)
	}
	return b, err
}
