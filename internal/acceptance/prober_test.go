package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	probing "github.com/prometheus-community/pro-bing"

	"bufferbloat/internal/host"
	"bufferbloat/load"
	probes "bufferbloat/probe"
	"bufferbloat/probe/icmp"
	"bufferbloat/probe/irtt"
)

// What tells the probers apart on the wire: bytes of ICMP message, or of UDP payload.
const (
	ourEchoSize   = icmp.MessageSize
	proBingSize   = 48
	pingSize      = 56
	fpingSize     = 64
	stockIRTTSize = 100
	ourIRTTSize   = 120
)

// roundTrips are what a prober says, by sequence number.
type roundTrips map[uint32]time.Duration

// helperProber probes a target with everything of ours that a process can hold at once, and with pro-bing, beside so many bulk flows each way. The
// words are the target, how many probes of each kind, their interval, and the flows.
func helperProber(words []string) error {
	target, err := netip.ParseAddr(words[0])
	count, err1 := strconv.Atoi(words[1])
	interval, err2 := time.ParseDuration(words[2])
	flows, err3 := strconv.Atoi(words[3])
	if err != nil || err1 != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("%q: want a target, a count, an interval and flows", words)
	}
	ctx := context.Background()
	h := host.NewKernel()
	o := probes.Options{Interval: interval}
	echo, err := icmp.Dial(ctx, h, target, o)
	if err != nil {
		return err
	}
	udp, err := irtt.Dial(ctx, h, netip.AddrPortFrom(target, irtt.DefaultPort), o, irtt.Options{Length: ourIRTTSize})
	if err != nil {
		return err
	}
	stop, err := loadBeside(ctx, h, target, flows, time.Duration(count)*interval+3*time.Second)
	if err != nil {
		return err
	}
	said := map[string]roundTrips{}
	var mu sync.Mutex
	var group sync.WaitGroup
	start := h.Now().Add(time.Second)
	for name, t := range map[string]probes.Transport{"our ICMP": echo, "our irtt": udp} {
		trips := roundTrips{}
		said[name] = trips
		group.Go(func() {
			_, err := probes.Run(ctx, ctx, h, t, o, start, uint64(count), func(s probes.Sample) {
				if s.Outcome.HasRTT() {
					trips[uint32(s.Seq)] = s.RTT
				}
			})
			if err != nil {
				fmt.Fprintln(os.Stderr, name, err)
			}
		})
	}
	trips := roundTrips{}
	said["pro-bing"] = trips
	group.Go(func() {
		if err := proBing(target, count, interval, func(seq int, rtt time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			trips[uint32(seq)] = rtt
		}); err != nil {
			fmt.Fprintln(os.Stderr, "pro-bing", err)
		}
	})
	group.Wait()
	stop()
	for name, t := range map[string]interface{ SendStamps() (uint64, uint64) }{"our ICMP": echo, "our irtt": udp} {
		stack, all := t.SendStamps()
		fmt.Fprintf(os.Stderr, "%s: the kernel stamped %d of %d sends\n", name, stack, all)
	}
	return json.NewEncoder(os.Stdout).Encode(said)
}

func proBing(target netip.Addr, count int, interval time.Duration, heard func(int, time.Duration)) error {
	p, err := probing.NewPinger(target.String())
	if err != nil {
		return err
	}
	p.SetPrivileged(true)
	p.Size = proBingSize - 8
	p.Count, p.Interval = count, interval
	p.Timeout = time.Duration(count)*interval + 3*time.Second
	p.OnRecv = func(r *probing.Packet) { heard(r.Seq, r.Rtt) }
	return p.Run()
}

// loadBeside runs flows each way in this process. stop waits for their end.
func loadBeside(ctx context.Context, h host.Host, to netip.Addr, n int, length time.Duration) (stop func(), err error) {
	var group sync.WaitGroup
	for i := range 2 * n {
		f := protocols["netperf"].flow(h, netip.AddrPortFrom(to, protocols["netperf"].port), []load.Direction{load.Upload, load.Download}[i%2], length)
		if err := f.Open(ctx); err != nil {
			return nil, err
		}
		group.Go(func() {
			if _, err := f.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "bulk flow:", err)
			}
		})
	}
	return group.Wait, nil
}
