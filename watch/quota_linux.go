package watch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// group is a control group (cgroups(7)) with the CPU controller.
type group struct {
	dir string
	v1  bool
}

func findGroup() (Group, error) {
	none := fmt.Errorf("no quota of CPU time: %w", errors.ErrUnsupported)
	member, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Group{}, fmt.Errorf("read this process's control groups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Group{}, fmt.Errorf("read the mounts: %w", err)
	}
	tightest, found := group{}, 0.0
	for _, g := range groups(member, mounts) {
		if q, err := g.read(); err == nil && q.CPUs > 0 && (found == 0 || q.CPUs < found) {
			tightest, found = g, q.CPUs
		}
	}
	if found == 0 {
		return Group{}, none
	}
	return Group{tightest}, nil
}

// groups returns the control groups with the CPU controller that a process is in, from its own to the outermost that it can see, by
// /proc/self/cgroup and /proc/self/mountinfo. Where version 1 has the controller version 2 has not.
func groups(member, mounts []byte) []group {
	path, v1 := "", false
	for line := range strings.Lines(string(member)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "" && !v1:
			path = f[2]
		case has(f[1], "cpu"):
			path, v1 = f[2], true
		}
	}
	if path == "" {
		return nil
	}
	root, at := mountOf(mounts, v1)
	if at == "" {
		return nil
	}
	// In a container the mount begins at the container's own group, which the path may name from outside.
	below, inside := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
	if !inside || below != "" && below[0] != '/' || strings.Contains(below, "..") {
		below = ""
	}
	var list []group
	for dir := filepath.Join(at, below); ; dir = filepath.Dir(dir) {
		list = append(list, group{dir, v1})
		if dir == at || len(dir) <= len(at) {
			return list
		}
	}
}

// mountOf returns the root and the mount point of the file system of the CPU controller, or of version 2 (proc_pid_mountinfo(5)).
func mountOf(mounts []byte, v1 bool) (root, at string) {
	lines := bufio.NewScanner(bytes.NewReader(mounts))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		if v1 && g[0] == "cgroup" && has(g[2], "cpu") || !v1 && g[0] == "cgroup2" {
			return f[3], filepath.Clean(f[4])
		}
	}
	return "", ""
}

// has reports whether a list with commas has a word.
func has(list, word string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if s == word {
			return true
		}
	}
	return false
}

func (g group) read() (Quota, error) {
	var q Quota
	var err error
	if g.v1 {
		q.CPUs, err = g.limitV1()
	} else {
		q.CPUs, err = g.limitV2()
	}
	if err != nil {
		return Quota{}, err
	}
	stat, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		return Quota{}, fmt.Errorf("read the quota: %w", err)
	}
	return q, q.parseStat(stat)
}

func (g group) limitV1() (float64, error) {
	quota, err := os.ReadFile(filepath.Join(g.dir, "cpu.cfs_quota_us"))
	if err != nil {
		return 0, fmt.Errorf("read the quota: %w", err)
	}
	period, err := os.ReadFile(filepath.Join(g.dir, "cpu.cfs_period_us"))
	if err != nil {
		return 0, fmt.Errorf("read the quota: %w", err)
	}
	return parseLimit(strings.TrimSpace(string(quota)), strings.TrimSpace(string(period)))
}

func (g group) limitV2() (float64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, "cpu.max"))
	if errors.Is(err, os.ErrNotExist) { // the outermost group has none
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the quota: %w", err)
	}
	quota, period, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	return parseLimit(quota, period)
}

// parseLimit reads microseconds per microseconds; "max" (version 2) and -1 (version 1) are no limit, for which it returns 0.
func parseLimit(quota, period string) (float64, error) {
	if quota == "max" {
		return 0, nil
	}
	q, err1 := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err1 != nil || err2 != nil || p <= 0 {
		return 0, fmt.Errorf("quota of %q in %q microseconds: want two numbers", quota, period)
	}
	return float64(max(q, 0)) / float64(p), nil
}

// parseStat reads cpu.stat: throttled_usec in version 2, throttled_time in nanoseconds in version 1. Lines that it does not know are skipped.
func (q *Quota) parseStat(text []byte) error {
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 63)
		switch name {
		case "nr_periods":
			q.Periods = n
		case "nr_throttled":
			q.Throttled = n
		case "throttled_time":
			q.Stopped = time.Duration(n)
		case "throttled_usec":
			q.Stopped = time.Duration(min(n, 1<<62/1000)) * time.Microsecond
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("cpu.stat: %s: %w", name, err)
		}
	}
	return nil
}
