package testnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// owner is the process that made a namespace. The start time tells it from a later process with the same number.
type owner struct {
	pid     int
	started uint64 // clock ticks after boot
}

// prefix begins the names of all namespaces of this owner.
func (o owner) prefix() string { return fmt.Sprintf("bb-%d-%d-", o.pid, o.started) }

// parseOwner returns the owner of a namespace, or false where the name is none of ours.
func parseOwner(name string) (owner, bool) {
	parts := strings.Split(name, "-")
	if len(parts) != 5 || parts[0] != "bb" {
		return owner{}, false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil || pid <= 0 {
		return owner{}, false
	}
	ticks, err := strconv.ParseUint(parts[2], 10, 64)
	return owner{pid, ticks}, err == nil
}

// alive reports whether the owner still runs; in doubt it does.
func (o owner) alive() bool {
	ticks, err := started(o.pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return ticks == o.started
}

// started returns when a process began, in clock ticks after boot: field 22 of /proc/PID/stat (proc(5)), which is the 20th after
// the command's name in parentheses, the only field that may hold blanks.
func started(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: %d fields after the name, want 20", pid, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// sweep removes the namespaces of owners that no longer run.
func sweep() error {
	names, err := ours()
	var errs []error
	for _, name := range names {
		if o, ok := parseOwner(name); ok && !o.alive() {
			errs = append(errs, remove(name))
		}
	}
	return errors.Join(append(errs, err)...)
}

// ours lists the namespaces that this package made, by whichever process. Those with only a directory of files count too.
func ours() ([]string, error) {
	var names []string
	for _, dir := range []string{"/run/netns", filesOf("")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return names, err
		}
		for _, e := range entries {
			if _, ok := parseOwner(e.Name()); ok {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// filesOf is the directory of files that "ip netns exec" puts over those of /etc for one namespace.
func filesOf(space string) string { return "/etc/netns/" + space }

// remove ends the processes in a namespace of ours and deletes it with its devices. One that is gone already is no error.
func remove(space string) error {
	err := os.RemoveAll(filesOf(space))
	if _, statErr := os.Stat("/run/netns/" + space); errors.Is(statErr, fs.ErrNotExist) {
		return err
	}
	out, pidsErr := exec.Command("ip", "netns", "pids", space).Output()
	if pidsErr != nil {
		err = errors.Join(err, fmt.Errorf("list the processes in %s: %w", space, pidsErr))
	}
	for _, field := range strings.Fields(string(out)) {
		pid, atoiErr := strconv.Atoi(field)
		if atoiErr != nil || pid <= 1 || pid == os.Getpid() {
			continue // a test that entered the namespace with a thread of its own
		}
		if killErr := kill(pid); killErr != nil {
			err = errors.Join(err, fmt.Errorf("end process %d in %s: %w", pid, space, killErr))
		}
	}
	delErr := run("", "ip", "netns", "delete", space)
	if _, statErr := os.Stat("/run/netns/" + space); errors.Is(statErr, fs.ErrNotExist) {
		return err // another process's sweep was faster
	}
	return errors.Join(err, delErr)
}

// kill ends a process; one that is gone already is no error.
func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
