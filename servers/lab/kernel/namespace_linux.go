package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/thread"
)

// namespace is a network namespace. It lives as long as the descriptor, and what is in it.
type namespace struct{ fd int }

// newNamespace makes an empty one.
func newNamespace() (n namespace, err error) {
	err = thread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		n, err = thisNamespace()
		return err
	})
	return n, err
}

// thisNamespace returns that of the calling thread.
func thisNamespace() (namespace, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return namespace{-1}, fmt.Errorf("hold a network namespace: open /proc/thread-self/ns/net: %w", err)
	}
	return namespace{fd}, nil
}

// do calls f on a thread in the namespace and waits for it. Sockets that f opens and processes that it starts belong there for good.
func (n namespace) do(f func() error) error {
	return thread.Do(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return f()
	})
}

func (n namespace) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
	}
}

// sysctl sets one of the settings of the calling thread's namespace to the first value that the kernel takes.
func sysctl(name string, values ...string) error {
	var err error
	for _, v := range values {
		if err = os.WriteFile(filepath.Join("/proc/sys", name), []byte(v), 0); err == nil {
			return nil
		}
	}
	return err
}

// deviceDrops returns the packets that a device of the calling thread's namespace dropped, in both directions.
func deviceDrops(name string) (uint64, error) {
	const file = "/proc/thread-self/net/dev"
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("count the drops of %s: %w", name, err)
	}
	for line := range strings.Lines(string(b)) {
		device, counters, ok := strings.Cut(strings.TrimSpace(line), ":")
		fields := strings.Fields(counters)
		if !ok || device != name || len(fields) < 12 {
			continue
		}
		received, err1 := strconv.ParseUint(fields[3], 10, 64)
		sent, err2 := strconv.ParseUint(fields[11], 10, 64)
		if err1 != nil || err2 != nil {
			break
		}
		return received + sent, nil
	}
	return 0, fmt.Errorf("count the drops of %s: no such line in %s", name, file)
}
