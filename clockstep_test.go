package bufferbloat_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/report"
	"bufferbloat/servers/irtt"
	"bufferbloat/servers/netperf"
)

// fiftyYears is what a router's clock is set by once it has found a time server.
const fiftyYears = 50 * 365 * 24 * time.Hour

// bootedRouter is the kernel with the clocks of a router that has just been switched on: the wall clock is at 1970 and is stepped in mid-run, and the
// monotonic clock goes on.
type bootedRouter struct {
	host.Host
	began time.Time
	step  time.Duration // after which the wall clock is stepped
}

func (h *bootedRouter) Now() time.Time {
	now := h.Host.Now()
	up := now.Sub(h.began)
	wall := time.Unix(0, 0).Add(up)
	if up >= h.step {
		wall = wall.Add(fiftyYears)
	}
	return withWall(now, wall)
}

// withWall is t with another wall clock reading beside its monotonic one. Package time has no way to make such a time, which the kernel makes each time that
// somebody sets the clock. The first word of a time.Time that has a monotonic reading holds a flag, the seconds since 1885 and the nanoseconds.
func withWall(t, wall time.Time) time.Time {
	const flag, from1885 = 1 << 63, 2682374400 // from 1885 to 1970
	word := (*uint64)(unsafe.Pointer(&t))
	if *word&flag == 0 {
		panic("no monotonic reading")
	}
	*word = flag | uint64(wall.Unix()+from1885)<<30 | uint64(wall.Nanosecond())
	return t
}

// Reports 22 and 28, for a program that begins with its host: nothing is reckoned from the wall clock, and a clock near its origin is a clock.
func TestAWallClockAt1970ThatIsSteppedBy50YearsChangesNothing(t *testing.T) {
	t.Parallel()
	h := &bootedRouter{Host: host.NewKernel(), began: time.Now(), step: 2500 * time.Millisecond}
	if a := h.Now(); a.Year() != 1970 || time.Since(a) > time.Minute {
		t.Fatalf("the clock shows %v, %v ago", a, time.Since(a))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var servers sync.WaitGroup
	defer func() { cancel(); servers.Wait() }()
	ports := make(chan []netip.AddrPort, 2)
	at := netip.MustParseAddrPort("127.0.0.1:0")
	np := netperf.Server{Options: netperf.Options{Ready: func(a []netip.AddrPort) { ports <- a }}}
	servers.Go(func() { _ = np.Serve(ctx, h, at) })
	control := (<-ports)[0].Port()
	up := irtt.Server{Options: irtt.Options{Ready: func(a []netip.AddrPort) { ports <- a }}}
	servers.Go(func() { _ = up.Serve(ctx, h, at) })
	plan := bufferbloat.Speedtest(bufferbloat.SpeedtestOptions{Server: bufferbloat.Server{Host: "127.0.0.1", NetperfPort: control, IRTTPort: (<-ports)[0].Port()},
		Idle: time.Second, Length: 2 * time.Second, Streams: 2, Interval: 50 * time.Millisecond, Probe: bufferbloat.IRTT})
	rec, err := bufferbloat.Run(ctx, plan, bufferbloat.RunOptions{Host: h})
	if err != nil {
		t.Fatal(err)
	}
	if h.Now().Year() != 2019 {
		t.Fatalf("after the run the clock shows %v", h.Now())
	}
	if rec.Started.Year() != 1970 {
		t.Errorf("the run is named by %v, want its start", rec.Started)
	}
	checkInvariants(t, rec)
	const long = 2 * time.Minute // whatever a busy machine does
	if rec.Ended <= 5*time.Second || rec.Ended > long {
		t.Errorf("the run took %v", rec.Ended)
	}
	for _, p := range report.New(rec).Phases {
		if d := p.End - p.Start; d < 0 || d > long {
			t.Errorf("%s took %v", p.Name, d)
		}
		for _, l := range p.Latency {
			if l.N > 0 && (l.Min < 0 || l.Max > long) || l.Lost > 0 {
				t.Errorf("%s, %s: %d of %d lost, %v to %v", p.Name, l.Series, l.Lost, l.N, l.Min, l.Max)
			}
		}
		for _, g := range p.Goodput {
			if !g.OK || g.Flowed != 2 || g.Direction != load.Upload && g.Direction != load.Download {
				t.Errorf("%s %v: %v of %d streams, %s", p.Name, g.Direction, g.Rate, g.Flowed, g.Why)
			}
		}
	}
}
