package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount gives this process's mount namespace a hosts file in which the ends have names, and its own view of the processes.
func (l *Lab) mount(names []string) error {
	// Nothing of what follows may reach the machine's own mounts.
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cut the mounts off from those outside: %w", err)
	}
	// Refused in a container that hides parts of /proc. The old view still serves; only process numbers are those outside.
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err := mountHosts(hosts(names)); err != nil {
		return err
	}
	l.facts.Names = true
	return nil
}

func hosts(names []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	for _, line := range []struct {
		ip    any
		names []string
	}{{ClientIPv4, []string{"client"}}, {ClientIPv6, []string{"client"}}, {ServerIPv4, names}, {ServerIPv6, names}} {
		if len(line.names) > 0 {
			fmt.Fprintf(&b, "%v\t%s\n", line.ip, strings.Join(line.names, " "))
		}
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		fmt.Fprintf(&b, "127.0.1.1\t%s\n", name)
	}
	return b.String()
}

// mountHosts puts a file with this text over /etc/hosts. It is in memory, and gone with the mount namespace.
func mountHosts(text string) error {
	const target = "/etc/hosts"
	dir := os.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("mount a file system in memory: %w", err)
	}
	file := filepath.Join(dir, "hosts")
	err := os.WriteFile(file, []byte(text), 0o644)
	if err == nil {
		if err = unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
			err = fmt.Errorf("put a file over %s: %w", target, err)
		}
	}
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}
