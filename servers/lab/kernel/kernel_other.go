//go:build !linux

package kernel

import (
	"context"
	"errors"
	"os"
	"syscall"

	"bufferbloat/servers/lab/link"
)

// Device is the name of the one network device, besides lo, of each end.
const Device = "lab0"

// Program is how to start this program again.
type Program struct {
	Path      string
	Args, Env []string
}

// NewLinks makes the two directions of the link.
type NewLinks func(drop func(link.Packet, link.Reason), clone func(handle any) any) (down, up *link.Link, err error)

// BuildOptions are what a lab needs beside its link.
type BuildOptions struct {
	Forwarder         Program
	Hosts             []string
	CongestionControl string
	RealTime          bool
}

// Inside, Outside, Lab and Process exist on Linux alone.
type (
	Inside struct {
		Facts Facts
		PID   int
	}
	Outside struct{}
	Lab     struct{}
	Process struct{}
)

func unsupported() error {
	return &MissingError{Namespaces, errors.ErrUnsupported, "the lab with the kernel's own TCP needs Linux; the one inside the process runs everywhere"}
}

// Enter needs Linux.
func Enter(context.Context, Program) (*Inside, error) { return nil, unsupported() }

// Build needs Linux.
func Build(context.Context, BuildOptions) (*Lab, error) { return nil, unsupported() }

// Forward needs Linux.
func Forward(context.Context, NewLinks) error { return unsupported() }

// OpenOutside needs Linux.
func OpenOutside() (*Outside, error) { return nil, unsupported() }

// Signal does nothing.
func (*Inside) Signal(syscall.Signal) {}

// Wait needs Linux.
func (*Inside) Wait() (int, error) { return 0, unsupported() }

// Report needs Linux.
func (*Outside) Report(*Lab, error) error { return unsupported() }

// Signals does nothing.
func (*Outside) Signals(func(syscall.Signal)) {}

// Close does nothing.
func (*Outside) Close() error { return nil }

// Failed returns nil.
func (*Lab) Failed() <-chan struct{} { return nil }

// Facts returns none.
func (*Lab) Facts() Facts { return Facts{} }

// Stats needs Linux.
func (*Lab) Stats() (Stats, error) { return Stats{}, unsupported() }

// StartClient needs Linux.
func (*Lab) StartClient(Program, ...*os.File) (*Process, error) { return nil, unsupported() }

// StartServer needs Linux.
func (*Lab) StartServer(Program, ...*os.File) (*Process, error) { return nil, unsupported() }

// Close does nothing.
func (*Lab) Close() error { return nil }

// Ended returns nil.
func (*Process) Ended() <-chan struct{} { return nil }

// Status returns 0.
func (*Process) Status() int { return 0 }

// Signal does nothing.
func (*Process) Signal(syscall.Signal) {}

// Foreground returns false.
func Foreground() bool { return false }
