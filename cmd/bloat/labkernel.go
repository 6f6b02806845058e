package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/host"
	"bufferbloat/servers/dns"
	"bufferbloat/servers/irtt"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/kernel"
	"bufferbloat/servers/lab/link"
	"bufferbloat/servers/netperf"
	"bufferbloat/servers/web"
)

// A lab of the kernel's own TCP is this program four times over, with the same command line: outside, where the user started it; at the
// client's and at the server's end; and as the link between them.
const (
	outsidePart = ""
	clientPart  = "client"
	serverPart  = "server"
	linkPart    = "link"

	// partVariable tells a process, in its environment, which part it is.
	partVariable = "BLOAT_LAB_PART"
)

// takePart returns the part that this process has, and keeps it from the processes that it starts.
func takePart() string {
	part := os.Getenv(partVariable)
	os.Unsetenv(partVariable)
	return part
}

// again is this program as another part.
func (a *app) again(part string) kernel.Program {
	return kernel.Program{Args: a.argv, Env: append(os.Environ(), partVariable+"="+part)}
}

// relayed are the signals that the process outside hands on.
var relayed = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// enterLab starts this program at the client's end of a lab, calls entered, and waits until it is over; the exit status is that of the
// process inside. A signal that the terminal has sent to shared is not handed on: whoever runs in there has it already.
func (a *app) enterLab(ctx context.Context, entered func(*kernel.Inside), shared bool) error {
	in, err := kernel.Enter(ctx, a.again(clientPart))
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, relayed...)
	defer signal.Stop(signals)
	early := context.Cause(ctx)
	a.uninterrupt()
	if s := (*program.SignalError)(nil); errors.As(early, &s) {
		in.Signal(s.Signal)
	}
	entered(in)
	ended := make(chan error, 1)
	go func() {
		var err error
		a.status, err = in.Wait()
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			typed := s == syscall.SIGINT || s == syscall.SIGQUIT
			if !(shared && typed && kernel.Foreground()) {
				in.Signal(s.(syscall.Signal))
			}
		}
	}
}

// inside is the part at the client's end, once its lab stands.
type inside struct {
	*kernel.Lab
	outside *kernel.Outside
	discard chan os.Signal
}

// buildLab makes the lab around this process, and the lab server at its other end. It tells the process outside how that went; an error is
// known there already. From then on signals reach this process only by way of the one outside, which are given to handle.
func (a *app) buildLab(ctx context.Context, congestionControl string, realTime bool, handle func(syscall.Signal)) (*inside, error) {
	outside, err := kernel.OpenOutside()
	if err != nil {
		return nil, err
	}
	l, err := kernel.Build(ctx, kernel.BuildOptions{Forwarder: a.again(linkPart), Hosts: []string{lab.Name, "server"}, CongestionControl: congestionControl,
		RealTime: realTime})
	if err == nil {
		err = a.startLabServer(l)
	}
	if rerr := outside.Report(l, err); err == nil {
		err = rerr
	}
	if err != nil {
		return nil, errors.Join(err, outside.Close())
	}
	in := &inside{l, outside, make(chan os.Signal, 1)}
	signal.Notify(in.discard, relayed...)
	a.uninterrupt()
	go outside.Signals(handle)
	return in, nil
}

func (in *inside) close() {
	in.Lab.Close()
	in.outside.Close()
	signal.Stop(in.discard)
}

// labReady is what the server's part prints when it serves.
const labReady = "ready\n"

// startLabServer starts the server's part and waits until it serves.
func (a *app) startLabServer(l *kernel.Lab) error {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer nothing.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = l.StartServer(a.again(serverPart), nothing, w, os.Stderr)
	w.Close()
	if err != nil {
		return fmt.Errorf("start the lab's server: %w", err)
	}
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if line, err := bufio.NewReader(r).ReadString('\n'); line != labReady {
		return fmt.Errorf("the lab's server did not get ready: %w", err)
	}
	return nil
}

// serveLab is the server's part: netperf, irtt and iperf3 at its end of the link, until the lab is over.
func (a *app) serveLab(ctx context.Context, netperfPort, irttPort, iperf3Port uint16) error {
	h := host.NewKernel()
	addrs, err := program.Addresses(ctx, h, nil, false, false, a.complain)
	if err != nil {
		return err
	}
	at := func(port uint16) []netip.AddrPort { return program.At(addrs, port) }
	var waiting sync.WaitGroup
	waiting.Add(4)
	ready := func([]netip.AddrPort) { waiting.Done() }
	group, ctx := errgroup.WithContext(ctx)
	apps := appFlags{dns: dns.Port, http: web.Port}
	if err := apps.serve(ctx, group, h, at, bufferbloat.MaxLength, func(string) func([]netip.AddrPort) { return ready }); err != nil {
		return err
	}
	group.Go(func() error {
		s := netperf.Server{Options: netperf.Options{Version: a.version, MaxTests: bufferbloat.MaxFlows, MaxTestsPerAddress: bufferbloat.MaxFlows, Ready: ready}}
		return s.Serve(ctx, h, at(netperfPort)...)
	})
	group.Go(func() error {
		s := irtt.Server{Options: irtt.Options{Ready: ready}}
		return s.Serve(ctx, h, at(irttPort)...)
	})
	if iperf3Port != 0 {
		waiting.Add(1)
		group.Go(func() error { return labIPerf3(ready).Serve(ctx, h, at(iperf3Port)...) })
	}
	go func() {
		waiting.Wait()
		io.WriteString(a.stdout, labReady)
	}()
	return group.Wait()
}

// forwardLab is the link's part.
func (f *labFlags) forwardLab(ctx context.Context) error {
	return kernel.Forward(ctx, func(drop func(link.Packet, link.Reason), clone func(any) any) (down, up *link.Link, err error) {
		config, err := f.config()
		if err == nil {
			_, down, up, err = config.Links(drop, clone)
		}
		return down, up, err
	})
}

// carrierText says which carrier this is.
func carrierText(facts kernel.Facts) string {
	text := "kernel TCP in namespaces, as " + facts.Privilege
	if facts.RealTime {
		text += ", real-time scheduling"
	}
	if c := facts.Cost; c.Known() {
		text += fmt.Sprintf(", own RTT %v", c.Median.Round(time.Microsecond))
	}
	return text
}

// runInKernelLab carries out plan from the client's end of a lab that is built around this process.
func (a *app) runInKernelLab(ctx context.Context, f *labFlags, plan bufferbloat.Plan, o bufferbloat.RunOptions) (*bufferbloat.Recording, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	in, err := a.buildLab(ctx, "", f.realTime, func(s syscall.Signal) {
		if ctx.Err() != nil {
			os.Exit(128 + int(s))
		}
		cancel(&program.SignalError{Signal: s})
	})
	if err != nil {
		return nil, errReported
	}
	defer in.close()
	d, err := f.links()
	if err != nil {
		return nil, err
	}
	d.Carrier = carrierText(in.Facts())
	o.Lab = labLink(d)
	if !in.Facts().Names {
		plan.Server.Host = kernel.ServerIPv4.String()
		for i := range plan.Others {
			plan.Others[i].Host = plan.Server.Host
		}
	}
	plan.Server.Family = cmp.Or(plan.Server.Family, 4) // as the other carriers do, so that the same payload fits into a packet
	for i := range plan.Others {
		plan.Others[i].Family = cmp.Or(plan.Others[i].Family, 4)
	}
	o.Doubts = func() []bufferbloat.Finding { return kernelDoubts(in.Stats()) }
	err = keepLabCounts(&o, func() (labTruth, error) {
		s, err := in.Stats()
		return kernelTruth(s), err
	})
	if err != nil {
		return nil, err
	}
	rec, err := bufferbloat.Run(ctx, plan, o)
	if s := (*program.SignalError)(nil); errors.As(context.Cause(ctx), &s) {
		a.interruptedBy = s
	}
	return rec, err
}

// kernelDoubts says what the lab saw that the run can't.
func kernelDoubts(s kernel.Stats, err error) []bufferbloat.Finding {
	if err != nil {
		return []bufferbloat.Finding{{Code: "lab_gone", Severity: bufferbloat.Voids, Text: fmt.Sprintf("the emulated link is gone, and its counters with it: %v", err)}}
	}
	found := labDoubts(&s.Lateness, 0)
	if s.Outside.Total() > 0 {
		found = append(found, bufferbloat.Finding{Code: "lab_drops", Severity: bufferbloat.Weakens, Text: outsideText(s.Outside)})
	}
	return found
}

// errReported is an error that the process outside has printed.
var errReported = errors.New("the lab could not be built")

// outsideText says what was lost that is not the link's loss.
func outsideText(o kernel.OutsideDrops) string {
	var parts []string
	for _, p := range []struct {
		n    uint64
		what string
	}{{o.Unread, "at the link's entrance"}, {o.Unsent, "at its exit"}, {o.Foreign, "of an unknown kind of offload"}, {o.Devices, "at the devices"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return "the kernel lost packets outside the emulated link (" + strings.Join(parts, ", ") + "): loss and throughput are not the link's alone"
}
