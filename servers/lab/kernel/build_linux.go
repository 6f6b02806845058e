package kernel

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/host"
	"bufferbloat/internal/thread"
)

// Device is the name of the one network device, besides lo, of each end.
const Device = "lab0"

// BuildOptions are what a lab needs beside its link.
type BuildOptions struct {
	// Forwarder is this program, started so that it calls Forward.
	Forwarder Program
	// Hosts are names for the server in the client's hosts file.
	Hosts []string
	// CongestionControl is the default of both ends' TCP; "" leaves the machine's own.
	CongestionControl string
	// RealTime asks for real-time scheduling of the forwarder, which keeps its delays true on a busy machine, where it is permitted. The rest of
	// the machine then gets what the forwarder leaves.
	RealTime bool
}

// Lab is a lab around this process, which is at its client's end, and all threads of it. Its methods may be called from any goroutine.
type Lab struct {
	realTime               bool
	facts                  Facts
	client, middle, server namespace
	children               children
	forwarder              *Process
	before                 uint64 // drops of the devices until the link began
	closing                sync.Once

	mu      sync.Mutex
	control *os.File // to the forwarder
	answers *json.Decoder
}

// orderTimeout bounds how long the forwarder may take to answer.
const orderTimeout = 5 * time.Second

// Build builds the lab that this process, which Enter started, is inside of; its link is at work when Build returns. What the machine lacks
// is a *MissingError. The caller must call Close.
func Build(ctx context.Context, o BuildOptions) (*Lab, error) {
	if os.Getpid() != 1 {
		return nil, errors.New("a lab is built by the process that Enter started")
	}
	l := &Lab{client: namespace{-1}, middle: namespace{-1}, server: namespace{-1}}
	if err := l.build(ctx, o); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context, o BuildOptions) error {
	l.realTime = o.RealTime
	l.facts.Privilege = privilege()
	if err := l.mount(o.Hosts); err != nil {
		l.note("names", err)
	}
	if err := l.namespaces(); err != nil {
		if l.facts.Privilege == asRoot {
			return &MissingError{Namespaces, err, ""}
		}
		return &MissingError{UserNamespaces, err, userNamespaceHint}
	}
	if err := l.settings(o); err != nil {
		return err
	}
	fds, err := l.devices()
	if err != nil {
		return err
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "packets")
		defer files[i].Close()
	}
	if err := l.startForwarder(o.Forwarder, files); err != nil {
		return err
	}
	if l.facts.Cost, err = measureCost(ctx); err != nil {
		l.note("the carrier's own delay", err)
	}
	if _, err := l.order(orderBegin); err != nil {
		return err
	}
	l.before, err = l.deviceDrops()
	return err
}

// deviceDrops returns what the devices of both ends dropped.
func (l *Lab) deviceDrops() (uint64, error) {
	var sum uint64
	for _, in := range []namespace{l.client, l.server} {
		err := in.do(func() error {
			n, err := deviceDrops(Device)
			sum += n
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// note keeps something that the lab has to do without.
func (l *Lab) note(what string, err error) {
	l.facts.Notes = append(l.facts.Notes, fmt.Sprintf("%s: %v", what, err))
}

const asRoot = "root"

// privilege tells root of the machine from root of a user namespace, by the extent of the user IDs (user_namespaces(7)).
func privilege() string {
	b, err := os.ReadFile("/proc/self/uid_map")
	if f := strings.Fields(string(b)); err == nil && len(f) == 3 && f[2] == "4294967295" {
		return asRoot
	}
	return "an unprivileged user namespace"
}

func (l *Lab) namespaces() error {
	var err error
	if l.client, err = thisNamespace(); err != nil {
		return err
	}
	if l.middle, err = newNamespace(); err != nil {
		return err
	}
	l.server, err = newNamespace()
	return err
}

// settings makes the two ends' kernels fit for measurements. A machine that refuses one of them is noted.
func (l *Lab) settings(o BuildOptions) error {
	_ = l.middle.do(func() error { return sysctl("net/ipv6/conf/default/disable_ipv6", "1") }) // fails where there is no IPv6 anyway
	for _, e := range []struct {
		name string
		in   namespace
	}{{"client", l.client}, {"server", l.server}} {
		err := e.in.do(func() error {
			for _, s := range [][]string{
				{"net/ipv4/tcp_no_metrics_save", "1"}, // or one connection's ssthresh is the next one's
				{"net/ipv4/tcp_rmem", "4096 131072 67108864"},
				{"net/ipv4/tcp_wmem", "4096 16384 67108864"},
				{"net/ipv4/ping_group_range", "0 2147483647", "0 0"}, // in a user namespace there is but one group
				{"net/ipv6/conf/default/accept_dad", "0"},
				{"net/ipv6/conf/default/accept_ra", "0"},
				{"net/ipv6/conf/default/addr_gen_mode", "1"}, // no link-local addresses, and no chatter about them on the link
			} {
				if err := sysctl(s[0], s[1:]...); err != nil && !(errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s[0], "net/ipv6")) {
					l.note(e.name, err)
				}
			}
			if err := setUp(loopback); err != nil {
				return fmt.Errorf("turn on lo: %w", err)
			}
			if o.CongestionControl == "" {
				return nil
			}
			if err := sysctl("net/ipv4/tcp_congestion_control", o.CongestionControl); err != nil {
				return fmt.Errorf("make %q the congestion control of the %s: %w; the kernel lets a namespace have those of "+
					"net.ipv4.tcp_allowed_congestion_control alone", o.CongestionControl, e.name, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const loopback = 1 // index of lo in every namespace

// The Ethernet addresses of the two ends, locally administered.
var clientMAC, serverMAC = [6]byte{2, 0, 0, 0, 2, 1}, [6]byte{2, 0, 0, 0, 2, 2}

// devices makes the two pairs and returns a packet socket at the far end of each: the client's, the server's.
func (l *Lab) devices() ([]int, error) {
	ends := []struct {
		far      string
		in       namespace
		mac      [6]byte
		own      [2]netip.Addr
		other    [2]netip.Addr
		otherMAC [6]byte
	}{
		{"client", l.client, clientMAC, [2]netip.Addr{ClientIPv4, ClientIPv6}, [2]netip.Addr{ServerIPv4, ServerIPv6}, serverMAC},
		{"server", l.server, serverMAC, [2]netip.Addr{ServerIPv4, ServerIPv6}, [2]netip.Addr{ClientIPv4, ClientIPv6}, clientMAC},
	}
	var fds []int
	for i, e := range ends {
		err := l.middle.do(func() error {
			fd, err := farEnd(end{e.far, [6]byte{2, 0, 0, 0, 3, byte(i + 1)}}, end{Device, e.mac}, e.in)
			fds = append(fds, fd)
			return err
		})
		// The far end is on by now, so that this one is ready as soon as it is turned on.
		if err == nil {
			err = e.in.do(func() error { return configure(e.own, e.other, e.otherMAC) })
		}
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("%s of the %s: %w", Device, e.far, err)
		}
	}
	return fds, nil
}

// farEnd makes a pair of devices, far in the calling thread's namespace, turns that one on and opens a packet socket on it.
func farEnd(far, near end, in namespace) (int, error) {
	if err := addVeth(far, near, in.fd); err != nil {
		return -1, &MissingError{Veth, fmt.Errorf("make a pair of devices: %w", err), "load the kernel module veth"}
	}
	device, err := net.InterfaceByName(far.name)
	if err == nil {
		err = setUp(device.Index)
	}
	if err != nil {
		return -1, fmt.Errorf("turn on its far end: %w", err)
	}
	fd, err := openPort(device.Index)
	if err != nil {
		return -1, &MissingError{PacketSockets, err, ""}
	}
	return fd, nil
}

// configure gives an end's device its addresses and says where the other end is, so that no packet waits for that.
func configure(own, other [2]netip.Addr, otherMAC [6]byte) error {
	device, err := net.InterfaceByName(Device)
	if err != nil {
		return err
	}
	if err := setUp(device.Index); err != nil {
		return fmt.Errorf("turn it on: %w", err)
	}
	for i, bits := range []int{24, 64} {
		err := addAddress(device.Index, netip.PrefixFrom(own[i], bits))
		if own[i].Is6() && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
			continue // no IPv6 in this kernel, or it is turned off
		}
		if err == nil {
			err = addNeighbour(device.Index, other[i], otherMAC)
		}
		if err != nil {
			return fmt.Errorf("address %v: %w", own[i], err)
		}
	}
	return nil
}

func (l *Lab) startForwarder(p Program, sockets []*os.File) error {
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	l.control, l.answers = ours, json.NewDecoder(ours)
	files := append([]*os.File{nil, nil, os.Stderr, theirs}, sockets...)
	p.Env = append(slices.Clip(p.Env), seldomGarbage)
	// All threads of the process inherit what this one has. Its link loop alone would not do: the others hold locks that it needs.
	return thread.Do(func() error {
		l.facts.RealTime = hurry(l.realTime) == nil
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // otherwise the kernel may put timers off by 50 microseconds
		l.forwarder, err = l.children.startInGroup(p, files)
		return err
	})
}

// seldomGarbage keeps the forwarder's garbage collector asleep while nothing but a pool of packets grows, which is no garbage.
const seldomGarbage = "GOGC=1000"

// errNoRealTime says that real-time scheduling was not asked for.
var errNoRealTime = errors.New("real-time scheduling was not asked for")

// hurry asks for real-time scheduling of the calling thread and what it starts. Where that is not wanted or not permitted, which is the
// error, it asks for the shortest time slice: whoever is content with little at a time is let in sooner (EEVDF, Linux 6.12; earlier ones
// ignore it).
//
// It is SCHED_RR, which takes turns among equals, and not SCHED_FIFO, which does not: the Go runtime has threads wait for each other without
// sleeping (its sweeper for another one's last span, for one), in the belief that the other runs. Under SCHED_FIFO the one that waits keeps the
// CPU for ever, where every other CPU has such a thread too.
func hurry(realTime bool) error {
	err := errNoRealTime
	if realTime {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: realTimePriority}, 0)
	}
	if err != nil {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Runtime: uint64(shortestSlice)}, 0)
	}
	return err
}

const shortestSlice = 100 * time.Microsecond

// realTimePriority is low among those of SCHED_RR, and above everything else.
const realTimePriority = 10

// order gives the forwarder an order and returns its answer.
func (l *Lab) order(o byte) (answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var a answer
	err := l.control.SetDeadline(host.NewKernel().Now().Add(orderTimeout))
	if err == nil {
		_, err = l.control.Write([]byte{o})
	}
	// A forwarder that cannot begin says why before it is asked.
	if derr := l.answers.Decode(&a); derr != nil {
		return a, fmt.Errorf("the lab's forwarder does not answer: %w", errors.Join(err, derr))
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// Failed is closed when the link is no longer at work: its forwarder is gone.
func (l *Lab) Failed() <-chan struct{} { return l.forwarder.Ended() }

// Facts returns what the lab found out while it was built.
func (l *Lab) Facts() Facts {
	f := l.facts
	f.Notes = slices.Clone(f.Notes)
	return f
}

// Stats asks the forwarder for the counters.
func (l *Lab) Stats() (Stats, error) {
	a, err := l.order(orderStats)
	if err != nil {
		return Stats{}, err
	}
	drops, err := l.deviceDrops()
	if err != nil {
		return Stats{}, err
	}
	a.Stats.Outside.Devices = drops - l.before
	return a.Stats, nil
}

// StartClient starts a program at the client's end, with these files as its standard input, output and error.
func (l *Lab) StartClient(p Program, files ...*os.File) (*Process, error) {
	return l.children.start(p, files)
}

// StartServer starts a program at the server's end, in a process group of its own.
func (l *Lab) StartServer(p Program, files ...*os.File) (*Process, error) {
	var started *Process
	err := l.server.do(func() (err error) {
		started, err = l.children.startInGroup(p, files)
		return err
	})
	return started, err
}

// Close ends the link. Programs that still run in the lab find no way out of it any more; they end with this process.
func (l *Lab) Close() error {
	l.closing.Do(func() {
		if l.control != nil {
			l.control.Close()
		}
		if l.forwarder != nil {
			l.forwarder.WaitOrKill(time.Second)
		}
		for _, n := range []namespace{l.client, l.middle, l.server} {
			n.close()
		}
	})
	return nil
}

// costProbes are enough for a median and a ninth decile; some go before them to find the path open and warm it.
const (
	costProbes = 50
	warmProbes = 5
	mayMiss    = 100
)

// measureCost measures the round-trip time to the server's end.
func measureCost(ctx context.Context) (Cost, error) {
	h := host.NewKernel()
	conn, err := h.DialEcho(ctx, ServerIPv4, host.Options{})
	if err != nil {
		return Cost{}, err
	}
	defer conn.Close()
	p := pinger{h: h, conn: conn}
	if id, ok := conn.Identifier(); ok {
		p.id = id
	}
	var rtts []time.Duration
	for missed := 0; len(rtts) < warmProbes+costProbes; {
		if err := h.SleepUntil(ctx, h.Now().Add(time.Millisecond)); err != nil {
			return Cost{}, err
		}
		rtt, err := p.ping(20 * time.Millisecond)
		if err == nil {
			rtts = append(rtts, rtt)
			continue
		}
		// The kernel may need a moment to open the devices, and the machine may be busy.
		if missed++; missed == mayMiss {
			return Cost{}, fmt.Errorf("ping the server through the lab, %d times: %w", mayMiss, err)
		}
	}
	rtts = rtts[warmProbes:]
	slices.Sort(rtts)
	return Cost{Probes: len(rtts), Min: rtts[0], Median: rtts[len(rtts)/2], P90: rtts[len(rtts)*9/10]}, nil
}

// pinger sends one echo request (RFC 792) after the other, over the wire.
type pinger struct {
	h    host.Host
	conn host.EchoConn
	id   uint16
	n    uint16
}

func (p *pinger) ping(patience time.Duration) (time.Duration, error) {
	const echoRequest = 8
	var request, reply [64]byte
	p.n++
	request[0] = echoRequest
	binary.BigEndian.PutUint16(request[4:], p.id)
	binary.BigEndian.PutUint16(request[6:], p.n)
	sent, err := p.conn.Send(request[:], netip.AddrPort{})
	if err != nil {
		return 0, err
	}
	if err := p.conn.SetReadDeadline(p.h.Now().Add(patience)); err != nil {
		return 0, err
	}
	for {
		d, err := p.conn.Receive(reply[:])
		if err != nil {
			return 0, err
		}
		if d.Rejected == nil && d.N >= 8 && binary.BigEndian.Uint16(reply[6:]) == p.n {
			return d.At.Sub(sent) - 2*wireDelay, nil
		}
	}
}

// Process is a program that the lab started.
type Process struct {
	process *os.Process
	ended   chan struct{}
	status  syscall.WaitStatus // valid after ended
}

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Status is its exit status once it has ended: 128+n where signal n ended it.
func (p *Process) Status() int { return exitStatus(p.status) }

// Signal sends it a signal; one that is gone needs none.
func (p *Process) Signal(s syscall.Signal) { _ = p.process.Signal(s) }

// WaitOrKill waits for its end, and brings it about after a while.
func (p *Process) WaitOrKill(d time.Duration) {
	h := host.NewKernel()
	ctx, cancel := host.WithTimeout(context.Background(), h, d)
	defer cancel()
	select {
	case <-p.ended:
		return
	case <-ctx.Done():
	}
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// children are the processes that this process, as the first of its process namespace, has to bury: those that it started and all
// orphans.
type children struct {
	mu      sync.Mutex
	waiting bool // a goroutine waits for processes to end
	known   map[int]*Process
}

func (c *children) start(p Program, files []*os.File) (*Process, error) {
	return c.startAs(p, files, nil)
}

// startInGroup keeps the terminal's signals from the process.
func (c *children) startInGroup(p Program, files []*os.File) (*Process, error) {
	return c.startAs(p, files, &syscall.SysProcAttr{Setpgid: true})
}

func (c *children) startAs(p Program, files []*os.File, attr *syscall.SysProcAttr) (*Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	process, err := os.StartProcess(p.path(), p.Args, &os.ProcAttr{Env: p.Env, Files: files, Sys: attr})
	if err != nil {
		return nil, err
	}
	started := &Process{process: process, ended: make(chan struct{})}
	if c.known == nil {
		c.known = map[int]*Process{}
	}
	c.known[process.Pid] = started
	if !c.waiting {
		c.waiting = true
		go c.bury()
	}
	return started, nil
}

// bury waits for processes until there is none left.
func (c *children) bury() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		c.mu.Lock()
		if err != nil {
			// A process that was started meanwhile would have been waited for, unless it ended between the two.
			c.waiting = len(c.known) > 0
			if again := c.waiting; !again {
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
			continue
		}
		if p := c.known[pid]; p != nil {
			delete(c.known, pid)
			p.status = syscall.WaitStatus(status)
			close(p.ended)
		}
		c.mu.Unlock()
	}
}
