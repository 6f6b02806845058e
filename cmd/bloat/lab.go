package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat"
	"bufferbloat/internal/thrift"
	"bufferbloat/protocols"
	"bufferbloat/servers/irtt"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/netperf"
)

// links returns what the link will be like, or what is wrong with it.
func (f *labFlags) links() (lab.Description, error) {
	config, err := f.config()
	if err != nil {
		return lab.Description{}, err
	}
	d, _, _, err := config.Links(nil, func(handle any) any { return handle })
	return d, err
}

func labLink(d lab.Description) *bufferbloat.LabLink {
	return &bufferbloat.LabLink{Carrier: d.Carrier, Down: d.Down, Up: d.Up, RTT: d.RTT, Queue: d.Queue,
		BufferDown: d.BufferDown, BufferUp: d.BufferUp, Overhead: d.Overhead}
}

// slow reports whether the link has a direction that may be slow. Of a fast one that is known, and needs no trial.
func (f *labFlags) slow() bool {
	d, err := f.links()
	return err == nil && (d.Down > 0 && d.Down < bufferbloat.SlowRate || d.Up > 0 && d.Up < bufferbloat.SlowRate)
}

// run carries out plan on the kernel's network or, with --lab, on an emulated link that it sets up for as long as the run takes. speak is what o.Kinds was
// made of; an emulated link has certificates of its own.
func (f *labFlags) run(ctx context.Context, plan bufferbloat.Plan, o bufferbloat.RunOptions, speak protocols.Options) (*bufferbloat.Recording, error) {
	if !f.on() {
		thrift.ForgetCode()
		defer thrift.ForgetCode()
		return bufferbloat.Run(ctx, plan, o)
	}
	config, err := f.config()
	if err != nil {
		return nil, &usageError{err}
	}
	link, err := lab.New(config)
	if err != nil {
		return nil, &usageError{err}
	}
	defer link.Close()
	d := link.Describe()
	o.Host = link.Client()
	o.Lab = labLink(d)
	o.Lab.Carrier += f.why
	if f.virtual {
		o.NoCPU = "the run was in virtual time"
	}
	o.Doubts = func() []bufferbloat.Finding {
		s := link.Stats()
		return labDoubts(&s.Lateness, s.SocketDrops)
	}
	err = keepLabCounts(&o, func() (labTruth, error) { return processTruth(link), nil })
	if err != nil {
		return nil, err
	}
	return throughLab(ctx, link, plan, o, speak)
}

// processTruth is what a lab in this process counted.
func processTruth(l *lab.Lab) labTruth {
	s := l.Stats()
	down, up := l.QueueStats()
	t := labTruth{down: labSide{s.Down, down}, up: labSide{s.Up, up}, late: s.Lateness}
	t.lost("sockets", s.SocketDrops)
	return t
}

// maxLabLateness is how late an emulated link may be, in one packet of a hundred, before its delays are this machine's.
const maxLabLateness = 5 * time.Millisecond

// labDoubts says what a lab saw that its run can't: delay and loss that were not the link's. late is the distribution of how late the link
// delivered its packets.
func labDoubts(late interface {
	Quantile(p float64) (time.Duration, bool)
}, socketDrops uint64) (found []bufferbloat.Finding) {
	doubt := func(code, format string, args ...any) {
		found = append(found, bufferbloat.Finding{Code: code, Severity: bufferbloat.Weakens, Text: fmt.Sprintf(format, args...)})
	}
	if p99, ok := late.Quantile(0.99); ok && p99 > maxLabLateness {
		most, _ := late.Quantile(1)
		doubt("lab_late", "the emulated link delivered 1%% of its packets more than %v late, and one %v: this machine was too busy, and that is part of "+
			"the delays", p99.Round(time.Millisecond/10), most.Round(time.Millisecond/10))
	}
	if socketDrops > 0 {
		doubt("lab_socket_drops", "%d datagrams that the emulated link delivered were lost at a full socket: that much of the loss is not the link's",
			socketDrops)
	}
	return found
}

// throughLab runs plan from the lab's client against servers on its other host. The servers and the link end after the run, so that an interrupt
// still finds them there.
func throughLab(ctx context.Context, link *lab.Lab, plan bufferbloat.Plan, o bufferbloat.RunOptions,
	speak protocols.Options) (*bufferbloat.Recording, error) {
	outlive := context.WithoutCancel(ctx)
	driving, stopDriving := context.WithCancel(outlive)
	serving, stopServing := context.WithCancel(outlive)
	defer stopDriving()
	defer stopServing()
	both := func(port uint16) []netip.AddrPort {
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), port), netip.AddrPortFrom(netip.IPv6Unspecified(), port)}
	}
	ready := make(chan struct{}, 3+appServers)
	tell := func([]netip.AddrPort) { ready <- struct{}{} }
	var driver errgroup.Group
	driver.Go(func() error { return link.Run(driving) })
	servers, serving := errgroup.WithContext(serving)
	n := &netperf.Server{Options: netperf.Options{Version: o.Version, MaxTests: bufferbloat.MaxFlows, MaxTestsPerAddress: bufferbloat.MaxFlows, Ready: tell}}
	i := &irtt.Server{Options: irtt.Options{Ready: tell}}
	servers.Go(func() error { return n.Serve(serving, link.Server(), both(plan.Server.NetperfPort)...) })
	servers.Go(func() error { return i.Serve(serving, link.Server(), both(plan.Server.IRTTPort)...) })
	servers.Go(func() error { return labIPerf3(tell).Serve(serving, link.Server(), both(iperf3Port(plan.Server))...) })
	var rec *bufferbloat.Recording
	var err error
	if speak.Roots, err = serveApps(serving, servers, link.Server(), both, tell); err == nil {
		err = waitReady(serving, ready, 3+appServers)
	}
	if err == nil {
		o.Kinds = protocols.All(speak)
		rec, err = bufferbloat.Run(ctx, plan, o)
	}
	stopServing()
	if serr := servers.Wait(); serr != nil && rec == nil {
		err = fmt.Errorf("the lab's server: %w", serr)
	}
	stopDriving()
	return rec, errors.Join(err, driver.Wait())
}

// waitReady waits for n signals, or for ctx.
func waitReady(ctx context.Context, ready <-chan struct{}, n int) error {
	for range n {
		select {
		case <-ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
