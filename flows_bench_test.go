package bufferbloat_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/netperf"
)

// manyFlows is a load of n flows, half of them each way, paced where they go up so that a loopback is not the limit.
func manyFlows(n int, server bufferbloat.Server) bufferbloat.Plan {
	var flows []bufferbloat.FlowPlan
	for i := range n {
		f := bufferbloat.FlowPlan{Name: fmt.Sprint("flow ", i+1), Direction: load.Direction(1 + i%2)}
		if f.Direction == load.Upload {
			f.Rate = 100_000
		}
		flows = append(flows, f)
	}
	p := one(3*time.Second, flows...)
	p.Server, p.Probes[0].Kind = server, bufferbloat.TCP
	return p
}

// footprint is what a run takes in the middle of its load, above what was taken before it.
type footprint struct {
	before runtime.MemStats
	heap   atomic.Int64
	stacks atomic.Int64
	routes atomic.Int64
}

func (f *footprint) look(p bufferbloat.Progress) {
	if p.Kind != bufferbloat.Load || p.Elapsed < time.Second || p.Finished {
		return
	}
	var now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&now)
	f.heap.Store(max(f.heap.Load(), int64(now.HeapAlloc)-int64(f.before.HeapAlloc)))
	f.stacks.Store(max(f.stacks.Load(), int64(now.StackInuse)-int64(f.before.StackInuse)))
	f.routes.Store(max(f.routes.Load(), int64(runtime.NumGoroutine())))
}

func (f *footprint) report(b *testing.B, n int, rec *bufferbloat.Recording) {
	carried := 0
	for _, fl := range rec.Flows {
		if fl.Result.Bytes > 0 {
			carried++
		}
	}
	b.ReportMetric(float64(f.heap.Load())/float64(n), "heap-B/flow")
	b.ReportMetric(float64(f.stacks.Load())/float64(n), "stack-B/flow")
	b.ReportMetric(float64(f.routes.Load())/float64(n), "goroutines/flow")
	b.ReportMetric(float64(pprof.Lookup("threadcreate").Count()), "threads")
	b.ReportMetric(float64(carried)/float64(n), "carried")
}

// BenchmarkFlowsInTheLab says what a flow takes, of both ends and the emulated stacks between them; ns/flow is for three seconds of load.
func BenchmarkFlowsInTheLab(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var f footprint
			var rec *bufferbloat.Recording
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&f.before)
				r := rig{link: lab.Config{Down: 100_000_000, Up: 100_000_000, RTT: 20 * time.Millisecond}, netperf: netperf.Options{MaxTests: 2000, MaxTestsPerAddress: 2000},
					progress: func(p bufferbloat.Progress, _ func()) { f.look(p) }}
				var err error
				if rec, err = r.run(b, b.Context(), manyFlows(n, bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112})); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/flow")
			f.report(b, n, rec)
		})
	}
}

// BenchmarkFlowsOverLoopback says what a flow takes over the kernel's stack, of both ends together, and how long it takes to open one.
func BenchmarkFlowsOverLoopback(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var f footprint
			var rec *bufferbloat.Recording
			var opening time.Duration
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&f.before)
				began := time.Now()
				rec = overLoopback(b, n, &f, func() { opening += time.Since(began) })
			}
			b.ReportMetric(float64(opening.Nanoseconds())/float64(b.N*n), "open-ns/flow")
			f.report(b, n, rec)
		})
	}
}

func overLoopback(b *testing.B, n int, f *footprint, begun func()) *bufferbloat.Recording {
	serving, stop := context.WithCancel(b.Context())
	defer stop()
	var server errgroup.Group
	at := make(chan netip.AddrPort, 1)
	server.Go(func() error {
		s := netperf.Server{Options: netperf.Options{MaxTests: 2000, MaxTestsPerAddress: 2000, Ready: func(bound []netip.AddrPort) { at <- bound[0] }}}
		return s.Serve(serving, host.NewKernel(), netip.MustParseAddrPort("127.0.0.1:0"))
	})
	bound := <-at
	first := true
	rec, err := bufferbloat.Run(b.Context(), manyFlows(n, bufferbloat.Server{Host: "127.0.0.1", NetperfPort: bound.Port(), IRTTPort: 2112}),
		bufferbloat.RunOptions{Progress: func(p bufferbloat.Progress) {
			if first {
				first = false
				begun()
			}
			f.look(p)
		}})
	if err != nil {
		b.Fatal(err)
	}
	stop()
	if err := server.Wait(); err != nil {
		b.Error(err)
	}
	return rec
}
