package kernel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/host"
)

// Program is how to start this program again.
type Program struct {
	Path      string // its file; "" is this process's own
	Args, Env []string
}

func (p Program) path() string {
	if p.Path == "" {
		return "/proc/self/exe"
	}
	return p.Path
}

// outsideFile is what the process inside inherits: the connection to the one outside.
const outsideFile = 3

// buildTimeout bounds how long the process inside may take to build a lab.
const buildTimeout = 30 * time.Second

// Inside is the process at the client's end of a lab, as seen from outside.
type Inside struct {
	Facts   Facts
	PID     int
	control *os.File
	process *os.Process
	ended   chan struct{}
	state   *os.ProcessState // valid after ended, as is err
	err     error
}

// report is what the process inside says when its lab is built, or cannot be.
type report struct {
	Facts    Facts
	Facility Facility
	Reason   string
	Hint     string
}

// Enter starts p in new namespaces: in those that root may make, or else in a user namespace. There it is process 1, and has called Build
// and told the outcome to Outside when Enter returns. What the machine lacks is a *MissingError. Everything inside ends with that process,
// and that process with this one, however this one ends. The caller must call Wait.
func Enter(ctx context.Context, p Program) (*Inside, error) {
	const flags = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID
	var privileged error
	if os.Geteuid() == 0 {
		in, err := enter(ctx, p, &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL})
		var refused *startError
		if !errors.As(err, &refused) {
			return in, err
		}
		privileged = refused.err
	}
	in, err := enter(ctx, p, &syscall.SysProcAttr{
		Cloneflags:  flags | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	})
	if refused := (*startError)(nil); errors.As(err, &refused) {
		err = refused.err
		if privileged != nil {
			err = fmt.Errorf("%w; and as root: %w", err, privileged)
		}
		return nil, &MissingError{UserNamespaces, err, userNamespaceHint}
	}
	return in, err
}

const userNamespaceHint = "run as root, or permit user namespaces (sysctl user.max_user_namespaces, " +
	"kernel.apparmor_restrict_unprivileged_userns=0; in a container its seccomp profile)"

// startError says that the process inside could not be started.
type startError struct{ err error }

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

func enter(ctx context.Context, p Program, attr *syscall.SysProcAttr) (*Inside, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	in := &Inside{control: ours, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal that ends the process inside comes when the thread ends that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(in.ended)
		in.process, err = os.StartProcess(p.path(), p.Args, &os.ProcAttr{Env: p.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, theirs}, Sys: attr})
		started <- err
		if err == nil {
			in.state, in.err = in.process.Wait()
		}
	}()
	if err := <-started; err != nil {
		ours.Close()
		return nil, &startError{fmt.Errorf("start a process in new namespaces: %w", err)}
	}
	in.PID = in.process.Pid
	theirs.Close() // or the end of the process inside would not be the end of the connection
	if err := in.await(ctx); err != nil {
		in.process.Kill()
		<-in.ended
		ours.Close()
		return nil, err
	}
	return in, nil
}

// await waits for the report.
func (in *Inside) await(ctx context.Context) error {
	clock := host.NewKernel()
	if err := in.control.SetReadDeadline(clock.Now().Add(buildTimeout)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { in.control.SetReadDeadline(time.Unix(0, 1)) })()
	line, err := bufio.NewReader(in.control).ReadBytes('\n')
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return errors.New("the process inside the lab ended before the lab was built")
	case err != nil:
		return fmt.Errorf("wait for the lab: %w", err)
	}
	var r report
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("the lab's report: %w", err)
	}
	switch {
	case r.Facility != "":
		return &MissingError{r.Facility, errors.New(r.Reason), r.Hint}
	case r.Reason != "":
		return errors.New(r.Reason)
	}
	in.Facts = r.Facts
	return nil
}

// Signal hands a signal on to the process inside; see Outside.Signals.
func (in *Inside) Signal(s syscall.Signal) {
	_, _ = in.control.Write([]byte{byte(s)}) // who is gone needs no signal
}

// Wait waits until the process inside is gone, and all else inside with it, and returns its exit status: 128+n where signal n ended it.
func (in *Inside) Wait() (int, error) {
	<-in.ended
	in.control.Close()
	if in.err != nil {
		return 0, fmt.Errorf("wait for the process inside the lab: %w", in.err)
	}
	return exitStatus(in.state.Sys().(syscall.WaitStatus)), nil
}

func exitStatus(w syscall.WaitStatus) int {
	if w.Signaled() {
		return 128 + int(w.Signal())
	}
	return w.ExitStatus()
}

// pair returns two ends of a connection, ours known to the runtime's poller.
func pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control"), nil
}

// Outside is the connection of the process inside to the one that called Enter.
type Outside struct{ f *os.File }

// OpenOutside returns it. It is to be called once, and its error says that nobody called Enter.
func OpenOutside() (*Outside, error) {
	var st unix.Stat_t
	if os.Getpid() != 1 || unix.Fstat(outsideFile, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("this process was not started by that outside of the lab")
	}
	unix.CloseOnExec(outsideFile)
	if err := unix.SetNonblock(outsideFile, true); err != nil {
		return nil, err
	}
	return &Outside{os.NewFile(outsideFile, "outside")}, nil
}

// Report tells the outcome of Build, as it returned it.
func (o *Outside) Report(l *Lab, built error) error {
	var r report
	if m := (*MissingError)(nil); errors.As(built, &m) {
		r.Facility, r.Reason, r.Hint = m.Facility, m.Err.Error(), m.Hint
	} else if built != nil {
		r.Reason = built.Error()
	} else {
		r.Facts = l.Facts()
	}
	b, err := json.Marshal(r)
	if err == nil {
		_, err = o.f.Write(append(b, '\n'))
	}
	return err
}

// Signals calls f for each signal that the process outside hands on, until Close.
func (o *Outside) Signals(f func(syscall.Signal)) {
	b := make([]byte, 1)
	for {
		if n, err := o.f.Read(b); err != nil || n == 0 {
			return
		}
		f(syscall.Signal(b[0]))
	}
}

// Close ends the connection.
func (o *Outside) Close() error { return o.f.Close() }

// Foreground reports whether this process is in the group that the keys of its terminal send signals to.
func Foreground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
