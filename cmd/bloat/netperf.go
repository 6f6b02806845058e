package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	"bufferbloat/report"
	"bufferbloat/watch"
)

func (a *app) netperfCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "netperf [options] [-- test options]",
		Short: "Answer to netperf's own command line, for flent and for scripts",
		Long: `Runs a test against a netperf server as netperf would, with netperf's own options. Under the name netperf, by a link say, the program is this
command. docs/netperf.md says what differs.

  -H HOST[,FAMILY] -p PORT -4 -6     the server             -L ADDRESS[,FAMILY]     local address of all connections
  -t TEST                            TCP_STREAM, TCP_MAERTS, TCP_RR, TCP_CRR, UDP_RR, UDP_STREAM or omni
  -l N                               seconds, or with a minus sign bytes or transactions; 0: until it is interrupted
  -i MOST[,FEWEST] -I 99,5           tests until their mean lies with 99 % confidence in an interval of 5 % of it
  -D SECONDS                         interim results        -s SECONDS              pause before the data
  -f UNITS -P 0|1 -v 0|1|2 -B TEXT   units k m g K M G b B x; headers; detail; text behind the result
  -Y LOCAL[,REMOTE]                  DS bytes               -Z PHRASE               passphrase
  -T LOCAL[,REMOTE] -y ,REMOTE       CPUs to run on; the priority of the server's packets in its host
  -c -C                              CPU use of both ends   -F FILE -d -j -S        accepted, without effect
  -V -h                              version; help

Behind "--", options of the test:

  -H HOST -L ADDRESS -4 -6 -P ,PORT  where data goes, and from where
  -k KEYS -o KEYS -O KEYS            output as KEY=VALUE, CSV or columns; ? lists the keys
  -K LOCAL[,REMOTE]                  congestion control     -e SECONDS              timeout of a datagram
  -m LOCAL[,REMOTE] -M REMOTE[,LOCAL] -s SEND[,RECEIVE] -S SEND[,RECEIVE]   sizes of writes and reads; socket buffers here and there
  -r REQUEST[,RESPONSE] -b N         sizes of transactions; further ones in flight
  -d send|recv|rr -T tcp|udp -c      what an omni test does -D -R 1 -n -N           accepted: that is how it is done anyway`,
		DisableFlagParsing: true,
		RunE:               func(cmd *cobra.Command, words []string) error { return a.netperf(cmd, words) },
	}
}

// noEnd is the time that a test has which ends after its bytes or transactions; servers allow no longer one. forEver is longer than one without an
// end lasts.
const noEnd, forEver = time.Hour, 10_000 * time.Hour

// netperf carries out netperf's command line.
func (a *app) netperf(cmd *cobra.Command, words []string) error {
	f, err := parseNetperf(words)
	switch {
	case err != nil:
		return &usageError{fmt.Errorf("netperf: %w", err)}
	case f.help:
		return cmd.Help()
	case f.version:
		fmt.Fprintf(a.stdout, "bloat %s, which answers to netperf's command line\n", a.version)
		return nil
	case f.list:
		for _, key := range netperfKeys {
			fmt.Fprintln(a.stdout, key)
		}
		return nil
	}
	ctx, h := cmd.Context(), host.NewKernel()
	n := &netperfRun{netperfFlags: f, h: h, out: a.stdout, wall: a.now(), began: h.Now(), line: strings.Join(a.argv, " ")}
	switch {
	case n.endless:
		n.length = forEver
	case n.length == 0:
		n.length = noEnd
	}
	if n.pinLocal >= 0 {
		if err := runOn(n.pinLocal); err != nil {
			return &usageError{fmt.Errorf("netperf: -T %d: %w", n.pinLocal, err)}
		}
	}
	addrs, err := n.resolve(ctx)
	if err != nil {
		return err
	}
	var m netperfFigures
	for _, addr := range addrs { // a name may have an address of a family that leads nowhere from here
		n.client.Addr = netip.AddrPortFrom(addr, n.port)
		if m, err = n.tests(ctx); !errors.Is(err, netperf.ErrUnreachable) {
			break
		}
	}
	if err != nil {
		return err
	}
	if s := (*program.SignalError)(nil); errors.As(context.Cause(ctx), &s) && !n.endless {
		a.status = s.Status()
	}
	if m.warning != "" {
		fmt.Fprintf(a.stderr, "bloat: warning: %s\n", report.Printable(m.warning))
	}
	if m.hasInfo && os.Getenv("DUMP_TCP_INFO") != "" {
		fmt.Fprint(a.stderr, tcpInfoText(m.info))
	}
	_, err = io.WriteString(a.stdout, n.text(&m))
	return err
}

// measure runs the test.
func (n *netperfRun) measure(ctx context.Context) (netperfFigures, error) {
	switch {
	case n.test == "TCP_STREAM" || n.test == "TCP_MAERTS":
		return n.stream(ctx)
	case n.kind() != 0:
		return n.transactions(ctx)
	}
	return n.datagrams(ctx)
}

// netperfRun is one test.
type netperfRun struct {
	*netperfFlags
	h      host.Host
	out    io.Writer
	client *netperf.Client
	wall   time.Time // the wall clock at began on the host's
	began  time.Time
	lines  int    // of interim results so far
	line   string // as the user gave it
	cpus   watch.Times
}

// resolve finds the server's addresses, and where its data is to go if that is elsewhere.
func (n *netperfRun) resolve(ctx context.Context) ([]netip.Addr, error) {
	addrs, err := n.h.Resolve(ctx, n.host, n.family)
	if err != nil {
		return nil, err
	}
	n.client = &netperf.Client{Host: n.h, Server: n.host, Passphrase: n.passphrase, Ask: n.asksServer(), Adjust: n.adjust,
		Socket: host.Options{SendBuffer: n.sendBuf, ReceiveBuffer: n.recvBuf}}
	if n.source != "" {
		if n.client.Socket.Source, err = n.local(ctx, n.source); err != nil {
			return nil, err
		}
	}
	if n.dataSource != "" {
		if n.client.DataSource, err = n.local(ctx, n.dataSource); err != nil {
			return nil, err
		}
	}
	sameFamily := n.dataFamily == host.AnyFamily || n.dataFamily == n.family
	if n.dataHost == "" || n.dataHost == n.host && sameFamily {
		return addrs, nil
	}
	family := n.dataFamily
	if family == host.AnyFamily {
		family = n.family
	}
	data, err := n.h.Resolve(ctx, n.dataHost, family)
	if err != nil {
		return nil, err
	}
	if data[0] != addrs[0] {
		n.client.DataAddr = data[0]
	}
	return addrs, nil
}

// local resolves one of this host's own addresses.
func (n *netperfRun) local(ctx context.Context, name string) (netip.Addr, error) {
	addrs, err := n.h.Resolve(ctx, name, n.family)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("local address: %w", err)
	}
	return addrs[0], nil
}

// adjust asks a server for what only netperf's command line can ask.
func (n *netperfRun) adjust(r *wire.Request) {
	r.Affinity, r.Priority = int32(n.pinRemote), int32(n.remotePriority)
	for field, value := range map[*int32]int{&r.SendBuffer: n.remoteSendBuf, &r.RecvBuffer: n.remoteRecvBuf} {
		if value > 0 {
			*field = int32(value)
		}
	}
	if n.remoteRecv > 0 && n.test == "TCP_STREAM" {
		r.RecvSize = int32(n.remoteRecv)
	}
	if n.endless {
		r.Length = 0
	}
}

// code returns the code point of a DS byte, 0 where none was given.
func code(ds int) dscp.CodePoint {
	if ds < 0 {
		return 0
	}
	return dscp.FromByte(uint8(ds))
}

// patience is what the server is asked to allow for before the data.
func (n *netperfRun) patience() time.Duration { return max(n.pause, time.Nanosecond) }

// wait lets the time pass that -s asks for.
func (n *netperfRun) wait(ctx context.Context) error {
	if n.cpu {
		n.cpus, _ = watch.CPU()
	}
	if n.pause == 0 {
		return nil
	}
	return n.h.SleepUntil(ctx, n.h.Now().Add(n.pause))
}

// localCPU returns the busy share of this host's CPUs since wait, in percent, or false where it is not known.
func (n *netperfRun) localCPU() (float64, bool) {
	now, err := watch.CPU()
	if !n.cpu || err != nil {
		return 0, false
	}
	busy, _ := watch.Use(n.cpus, now)
	sum := 0.0
	for _, b := range busy {
		sum += b
	}
	return 100 * sum / float64(len(busy)), len(busy) > 0
}

// stream runs a bulk flow.
func (n *netperfRun) stream(ctx context.Context) (netperfFigures, error) {
	o := netperf.FlowOptions{Direction: load.Upload, Length: n.length, Bytes: n.units, Wait: n.patience(), DSCP: code(n.localDS),
		ServerDSCP: code(n.remoteDS), CongestionControl: n.localCC, ServerCongestionControl: n.remoteCC, DataPort: n.dataPort, ServerCPU: n.cpu,
		Size: n.localSend, Buffer: n.localRecv}
	if n.test == "TCP_MAERTS" {
		o.Direction, o.Size = load.Download, n.remoteSend
	}
	flow := n.client.NewFlow(o)
	if err := flow.Open(ctx); err != nil {
		return netperfFigures{}, err
	}
	if err := n.wait(ctx); err != nil {
		flow.Close()
		return netperfFigures{}, err
	}
	m := netperfFigures{}
	result, err := n.during(func() (load.Result, error) { return flow.Run(ctx) }, n.streamLines(flow, &m))
	if err != nil && !n.stands(ctx, err, result.Bytes > 0, &m) {
		return netperfFigures{}, err
	}
	m.stream(n, flow, result)
	return m, nil
}

// during runs a test in a goroutine and calls look meanwhile, as often as interim results are wanted, and once at the end.
func (n *netperfRun) during(run func() (load.Result, error), look func(last bool, bytes uint64)) (load.Result, error) {
	running, finished := context.WithCancel(context.Background())
	var result load.Result
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer finished()
		result, err = run()
	}()
	every := n.interim
	if every == 0 {
		every = 100 * time.Millisecond
	}
	start := n.h.Now()
	for k := 1; n.h.SleepUntil(running, start.Add(time.Duration(k)*every)) == nil; k++ {
		look(false, 0)
	}
	<-done
	if err == nil {
		look(true, result.Bytes)
	}
	return result, err
}

// streamLines returns what prints the interim results of a flow and keeps the last of what the stack tells of it.
func (n *netperfRun) streamLines(flow *netperf.Flow, m *netperfFigures) func(last bool, bytes uint64) {
	from, seen := n.h.Now(), uint64(0)
	return func(last bool, total uint64) {
		if info, ok := flow.TCPInfo(); ok {
			m.info, m.hasInfo = info, true
		}
		if n.interim == 0 {
			return
		}
		now := n.h.Now()
		bytes, _ := flow.Delivered()
		if last {
			bytes = total
		}
		moved := bytes - min(bytes, seen)
		if last && (moved == 0 || now.Sub(from) < n.interim/2) {
			return // a moment is too short for a rate
		}
		n.interimLine(n.rate(float64(moved)*8/now.Sub(from).Seconds(), 0), now.Sub(from), now)
		from, seen = now, max(bytes, seen)
	}
}

// transactions runs a test of transactions.
func (n *netperfRun) transactions(ctx context.Context) (netperfFigures, error) {
	o := netperf.TransactionOptions{Kind: n.kind(), Length: n.length, Count: n.units, RequestSize: n.requestSize, ResponseSize: n.responseSize,
		Burst: n.burst, Timeout: n.timeout, Wait: n.patience(), DSCP: code(n.localDS), ServerDSCP: code(n.remoteDS), CongestionControl: n.localCC,
		ServerCongestionControl: n.remoteCC, DataPort: n.dataPort}
	if o.Kind == netperf.UDPRR {
		o.CongestionControl, o.ServerCongestionControl = "", "" // which flent gives to all of its tests, and datagrams have none
	}
	t := n.client.NewTransactions(o)
	if err := t.Open(ctx); err != nil {
		return netperfFigures{}, err
	}
	if err := n.wait(ctx); err != nil {
		t.Close()
		return netperfFigures{}, err
	}
	var result netperf.TransactionResult
	_, err := n.during(func() (_ load.Result, err error) { result, err = t.Run(ctx); return load.Result{}, err }, n.transactionLines(t))
	m := netperfFigures{}
	if err != nil && !n.stands(ctx, err, result.Transactions > 0, &m) {
		return netperfFigures{}, err
	}
	m.transactions(n, t, result)
	return m, nil
}

// transactionLines returns what prints the interim results of transactions. An interval in which none ended goes on: what reads them divides by
// the rate.
func (n *netperfRun) transactionLines(t *netperf.Transactions) func(last bool, _ uint64) {
	var sum netperf.Interval
	return func(last bool, _ uint64) {
		if n.interim == 0 {
			return
		}
		i, ok := t.Sample()
		if !ok {
			return
		}
		if sum.From.IsZero() {
			sum = i
		} else {
			sum.To, sum.Transactions = i.To, sum.Transactions+i.Transactions
		}
		d := sum.To.Sub(sum.From)
		if sum.Transactions == 0 || d <= 0 || last && d < n.interim/2 {
			return
		}
		rate := float64(sum.Transactions) / d.Seconds()
		n.interimLine(n.rate(rate*8*float64(max(1, n.requestSize)+max(1, n.responseSize)), rate), d, sum.To)
		sum = netperf.Interval{}
	}
}

// datagrams runs a stream of datagrams.
func (n *netperfRun) datagrams(ctx context.Context) (netperfFigures, error) {
	if n.pause > 0 {
		return netperfFigures{}, &usageError{errors.New("netperf: -s: a stream of datagrams begins at once")}
	}
	if n.cpu {
		n.cpus, _ = watch.CPU()
	}
	o := netperf.DatagramOptions{Length: n.length, Size: n.localSend, DSCP: code(n.localDS), ServerDSCP: code(n.remoteDS), DataPort: n.dataPort}
	result, err := n.client.SendDatagrams(ctx, o)
	if err != nil {
		return netperfFigures{}, err
	}
	m := netperfFigures{}
	m.datagrams(n, result)
	return m, nil
}

// interimLine prints the result of one interval, which ended at a moment of the host's clock.
func (n *netperfRun) interimLine(value float64, d time.Duration, at time.Time) {
	ending := float64(n.wall.Add(at.Sub(n.began)).UnixMilli()) / 1000
	units := n.unitsName()
	switch k := n.lines; {
	case n.csv:
		fmt.Fprintf(n.out, "%7.2f,%s/s,%.3f,%.3f\n", value, units, d.Seconds(), ending)
	case n.keys != nil:
		fmt.Fprintf(n.out, "NETPERF_INTERIM_RESULT[%d]=%.2f\nNETPERF_UNITS[%d]=%s/s\nNETPERF_INTERVAL[%d]=%.3f\nNETPERF_ENDING[%d]=%.3f\n",
			k, value, k, units, k, d.Seconds(), k, ending)
	default:
		fmt.Fprintf(n.out, "Interim result: %7.2f %s/s over %.3f seconds ending at %.3f\n", value, units, d.Seconds(), ending)
	}
	n.lines++
}

// unit is the letter of the units that rates are printed in.
func (n *netperfRun) unit() byte {
	switch {
	case n.format != 0:
		return n.format
	case n.kind() != 0:
		return 'x'
	}
	return 'm'
}

func (n *netperfRun) unitsName() string {
	return map[byte]string{'k': "10^3bits", 'm': "10^6bits", 'g': "10^9bits", 'K': "KBytes", 'M': "MBytes", 'G': "GBytes", 'b': "10^0bits",
		'B': "Bytes", 'x': "Trans"}[n.unit()]
}

// rate returns bits per second in the units that are printed; units of transactions are per second as they are; check lets no others ask for them.
func (n *netperfRun) rate(bps, transactions float64) float64 {
	switch n.unit() {
	case 'x':
		return transactions
	case 'k':
		return bps / 1e3
	case 'm':
		return bps / 1e6
	case 'g':
		return bps / 1e9
	case 'K':
		return bps / 8 / (1 << 10)
	case 'M':
		return bps / 8 / (1 << 20)
	case 'G':
		return bps / 8 / (1 << 30)
	case 'B':
		return bps / 8
	}
	return bps
}
