package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
)

// netperfKeys are the output keys of -k and -o. Those that begin with TIME_ are ours: they weigh each transaction by the time since the one
// before it.
var netperfKeys = []string{
	"THROUGHPUT", "THROUGHPUT_UNITS", "ELAPSED_TIME", "PROTOCOL", "DIRECTION", "TRANSPORT_MSS",
	"LOCAL_TRANSPORT_RETRANS", "REMOTE_TRANSPORT_RETRANS", "LOCAL_CONG_CONTROL", "REMOTE_CONG_CONTROL",
	"LOCAL_SOCKET_TOS", "REMOTE_SOCKET_TOS", "LOCAL_SEND_SIZE", "LOCAL_RECV_SIZE", "REMOTE_SEND_SIZE", "REMOTE_RECV_SIZE",
	"LOCAL_BYTES_SENT", "LOCAL_BYTES_RECVD", "REMOTE_BYTES_SENT", "REMOTE_BYTES_RECVD",
	"LOCAL_SEND_THROUGHPUT", "REMOTE_RECV_THROUGHPUT",
	"LSS_SIZE_END", "LSR_SIZE_END", "RSS_SIZE_END", "RSR_SIZE_END",
	"LOCAL_CPU_UTIL", "REMOTE_CPU_UTIL", "REMOTE_CPU_COUNT",
	"LOCAL_BYTES_XFERD", "REMOTE_BYTES_XFERD", "LOCAL_RECV_THROUGHPUT", "SOCKET_TYPE", "COMMAND_LINE", "RESULT_BRAND",
	"CONFIDENCE_LEVEL", "CONFIDENCE_INTERVAL", "CONFIDENCE_ITERATION", "THROUGHPUT_CONFID",
	"REQUEST_SIZE", "RESPONSE_SIZE", "BURST_SIZE", "TRANSACTION_RATE", "RT_LATENCY",
	"MIN_LATENCY", "MEAN_LATENCY", "P50_LATENCY", "P90_LATENCY", "P99_LATENCY", "MAX_LATENCY", "STDDEV_LATENCY",
	"TIME_P50_LATENCY", "TIME_P90_LATENCY", "TIME_P99_LATENCY", "TIME_LOST", "TRANSACTIONS_LOST", "RESPONSES_DUPLICATE",
}

// asksServer reports whether something is printed that only a server tells whose kind is known.
func (f *netperfFlags) asksServer() bool {
	return slices.ContainsFunc(f.keys, func(key string) bool {
		return key == "REMOTE_TRANSPORT_RETRANS" || key == "REMOTE_CONG_CONTROL" || key == "REMOTE_CPU_COUNT"
	})
}

// netperfFigures are what a test found, as it is printed.
type netperfFigures struct {
	throughput float64 // in the units that were asked for
	sending    float64 // of datagrams
	elapsed    time.Duration
	protocol   string
	direction  string
	response   wire.Response
	results    wire.Results // valid with hasResults
	hasResults bool
	layout     wire.Layout
	info       host.TCPInfo // of the local end; valid with hasInfo
	hasInfo    bool
	retrans    int64 // of the local end, -1 unknown
	sent       uint64
	received   uint64
	sendSize   int
	recvSize   int
	cpu        float64
	hasCPU     bool
	rate       float64 // transactions per second
	rtts       *netperf.RTTs
	lost       uint64
	twice      uint64
	unsent     uint64
	warning    string
	tests      int     // whose mean the rates are
	width      float64 // of the interval that the mean lies in, as a share of it; valid where more than one test was asked for
}

// leastElapsed is the time below which the rate of a flow that ends after its bytes is that of TCP's begin.
const leastElapsed = 500 * time.Millisecond

// stream fills in the figures of a flow.
func (m *netperfFigures) stream(n *netperfRun, flow *netperf.Flow, r load.Result) {
	m.elapsed = max(0, r.Last.Sub(r.Connected)) // which says more of a short transfer than from its first acknowledgement on
	m.protocol, m.direction, m.response = "TCP", "Send", flow.Response()
	m.warn(r.Warning)
	if n.units > 0 && m.elapsed < leastElapsed {
		m.warn(fmt.Sprintf("the bytes took %v only, less than %v: too short for a rate", m.elapsed.Round(time.Microsecond), leastElapsed))
	}
	m.results, m.hasResults = flow.Results()
	m.layout = flow.Server().Layout
	m.cpu, m.hasCPU = n.localCPU()
	m.retrans = -1
	if m.hasInfo && m.info.HasRetransmits {
		m.retrans = int64(m.info.Retransmits)
	}
	if m.elapsed > 0 {
		m.throughput = n.rate(float64(r.Bytes)*8/m.elapsed.Seconds(), 0)
	}
	if n.test == "TCP_MAERTS" {
		m.direction, m.received, m.recvSize = "Receive", r.Bytes, pump.ChunkSize
		if n.localRecv > 0 {
			m.recvSize = min(n.localRecv, pump.ChunkSize)
		}
		return
	}
	m.sent, m.sendSize = flow.Sent(), pump.ChunkSize
	if n.localSend > 0 {
		m.sendSize = min(n.localSend, pump.ChunkSize)
	}
	if r.HasRetransmits {
		m.retrans = int64(r.Retransmits)
	}
}

// transactions fills in the figures of a test of transactions. A transaction that did not end in time counts with its time.
func (m *netperfFigures) transactions(n *netperfRun, t *netperf.Transactions, r netperf.TransactionResult) {
	m.elapsed = r.Last.Sub(r.First) + r.Waiting
	m.protocol, m.direction, m.response = "TCP", "Send|Recv", t.Response()
	m.warn(r.Warning)
	switch n.kind() {
	case netperf.UDPRR:
		m.protocol = "UDP"
	case netperf.TCPCRR:
		m.direction = "Connect|Send|Recv"
	}
	m.results, m.hasResults = t.Results()
	m.layout = t.Server().Layout
	m.info, m.hasInfo = t.TCPInfo()
	m.cpu, m.hasCPU = n.localCPU()
	m.retrans = -1
	if m.hasInfo && m.info.HasRetransmits {
		m.retrans = int64(m.info.Retransmits)
	}
	request, response := uint64(max(1, n.requestSize)), uint64(max(1, n.responseSize))
	m.sent, m.received = (r.Transactions+r.Lost)*request, r.Transactions*response
	if m.elapsed > 0 {
		m.rate = float64(r.Transactions) / m.elapsed.Seconds()
		m.throughput = n.rate(m.rate*8*float64(request+response), m.rate)
	}
	m.rtts, m.lost, m.twice = r.RTTs, r.Lost, r.Duplicates
}

// datagrams fills in the figures of a stream of datagrams. What counts is what came.
func (m *netperfFigures) datagrams(n *netperfRun, r netperf.DatagramResult) {
	m.elapsed = r.Last.Sub(r.First)
	m.protocol, m.direction, m.warning, m.retrans = "UDP", "Send", r.Warning, -1
	m.cpu, m.hasCPU = n.localCPU()
	m.sent, m.unsent, m.sendSize = r.Sent*uint64(r.Size), r.Unsent, r.Size
	m.response = wire.Response{SendSize: -1, RecvSize: int32(r.Size), DS: -1, RecvBuffer: -1, SendBuffer: -1}
	if r.HasRemoteDS {
		m.response.DS = int32(r.RemoteDS)
	}
	m.results = wire.Results{RxBytes: r.Bytes, RxCalls: uint32(r.Received), RecvBuffer: -1, SendBuffer: -1, Retransmits: -1}
	m.hasResults = r.HasReceived
	if m.elapsed > 0 {
		m.throughput = n.rate(float64(r.Bytes)*8/m.elapsed.Seconds(), 0)
		m.sending = n.rate(float64(m.sent)*8/m.elapsed.Seconds(), 0)
	}
}

// text is what a test prints at its end.
func (n *netperfRun) text(m *netperfFigures) string {
	switch {
	case n.csv:
		return n.csvText(m)
	case n.columns:
		return n.columnText(m)
	case n.keys != nil:
		var b strings.Builder
		for _, key := range n.keys {
			fmt.Fprintf(&b, "%s=%s\n", key, n.value(m, key))
		}
		return b.String()
	case n.verbosity == 0:
		brand := ""
		if !n.header {
			brand = n.brand
		}
		return fmt.Sprintf("%7s %s\n", decimalText(m.throughput), brand)
	}
	return n.table(m)
}

func (n *netperfRun) csvText(m *netperfFigures) string {
	values := make([]string, len(n.keys))
	for i, key := range n.keys {
		values[i] = n.value(m, key)
	}
	line := strings.Join(values, ",") + "\n"
	if n.header {
		line = strings.Join(n.keys, ",") + "\n" + line
	}
	return line
}

// columnText is the output with a column for each key.
func (n *netperfRun) columnText(m *netperfFigures) string {
	var head, line strings.Builder
	for _, key := range n.keys {
		value := n.value(m, key)
		width := max(len(key), len(value))
		fmt.Fprintf(&head, "%-*s ", width, key)
		fmt.Fprintf(&line, "%-*s ", width, value)
	}
	if !n.header {
		head.Reset()
	} else {
		head.WriteByte('\n')
	}
	return head.String() + line.String() + n.trailer() + "\n"
}

// table is the usual output.
func (n *netperfRun) table(m *netperfFigures) string {
	var b strings.Builder
	if n.header {
		fmt.Fprintf(&b, "%s to %s (%v) port %d", n.test, n.host, n.client.Addr.Addr(), n.client.Addr.Port())
		if n.most > 1 {
			fmt.Fprintf(&b, " : +/-%.3f%% @ %d%% conf.", 100*m.width/2, n.level)
		}
		b.WriteByte('\n')
	}
	local := m.info
	if !m.hasInfo {
		local.SendBuffer, local.ReceiveBuffer = -1, -1
	}
	remoteRecv, remoteSend := m.results.RecvBuffer, m.results.SendBuffer
	switch {
	case n.kind() != 0:
		if n.header {
			b.WriteString("Send   Receive Request  Response Time     Rate\nbuffer buffer  bytes    bytes    seconds  " + n.unitsName() + "/s\n\n")
		}
		fmt.Fprintf(&b, "%-6d %-7d %-8d %-8d %-8.2f %-8s %s\n", local.SendBuffer, local.ReceiveBuffer, max(1, n.requestSize), max(1, n.responseSize),
			m.elapsed.Seconds(), decimalText(m.throughput), n.trailer())
		fmt.Fprintf(&b, "%-6d %-7d\n", remoteSend, remoteRecv)
	case n.test == "UDP_STREAM":
		if n.header {
			b.WriteString("Socket  Message  Time     Datagrams        Throughput\nbuffer  bytes    seconds  passed  refused  " + n.unitsName() + "/s\n\n")
		}
		fmt.Fprintf(&b, "%-7d %-8d %-8.2f %-7d %-8d %s %s\n", -1, m.sendSize, m.elapsed.Seconds(), m.sent/uint64(max(1, m.sendSize)), m.unsent, decimalText(m.sending),
			n.trailer())
		fmt.Fprintf(&b, "%-7d %-8s %-8.2f %-7d %-8s %s\n\n", m.results.RecvBuffer, "", m.elapsed.Seconds(), m.results.RxCalls, "", decimalText(m.throughput))
	default:
		recv, send, size := int(remoteRecv), local.SendBuffer, m.sendSize
		if n.test == "TCP_MAERTS" {
			recv, send, size = local.ReceiveBuffer, int(remoteSend), int(m.response.SendSize)
		}
		if n.header {
			b.WriteString("Receive Send    Message  Time     Throughput\nbuffer  buffer  bytes    seconds  " + n.unitsName() + "/s\n\n")
		}
		fmt.Fprintf(&b, "%-7d %-7d %-8d %-8.2f %s %s\n", recv, send, size, m.elapsed.Seconds(), decimalText(m.throughput), n.trailer())
	}
	if n.verbosity > 1 {
		n.more(&b, m)
	}
	return b.String()
}

// decimalText prints a rate: with two decimals, or with as many as show a small one that is not 0.
func decimalText(v float64) string {
	decimals := 2
	if v > 0 && v < 0.1 {
		decimals = min(2-int(math.Floor(math.Log10(v))), 15)
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// trailer ends a line of figures without headers.
func (n *netperfRun) trailer() string {
	if n.header {
		return ""
	}
	return n.brand
}

// more says what a table has no column for.
func (n *netperfRun) more(b *strings.Builder, m *netperfFigures) {
	if m.rtts == nil || m.rtts.N() == 0 {
		return
	}
	fmt.Fprintf(b, "\nMicroseconds      Min     50%%     90%%     99%%     Max\n")
	for _, row := range []struct {
		name string
		of   func(float64) (time.Duration, bool)
	}{{"by transactions", m.rtts.Quantile}, {"by time", m.rtts.TimeQuantile}} {
		fmt.Fprintf(b, "%-15s", row.name)
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
			text := "-"
			if d, ok := row.of(q); ok {
				text = fmt.Sprintf("%.0f", micros(d))
			}
			fmt.Fprintf(b, " %7s", text)
		}
		b.WriteString("\n")
	}
	if m.lost > 0 {
		fmt.Fprintf(b, "%d requests had no response in time, %.1f%% of the time was spent waiting for them\n", m.lost, 100*m.rtts.TimeLost())
	}
	if m.twice > 0 {
		fmt.Fprintf(b, "%d responses came twice\n", m.twice)
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// value is the text of an output key; what is not known is -1, or empty where it is a name.
func (n *netperfRun) value(m *netperfFigures, key string) string {
	for _, of := range []func(*netperfFigures, string) (string, bool){n.latency, n.confidenceValue} {
		if text, ok := of(m, key); ok {
			return text
		}
	}
	switch key {
	case "THROUGHPUT":
		return decimalText(m.throughput)
	case "THROUGHPUT_UNITS":
		return n.unitsName() + "/s"
	case "LOCAL_SEND_THROUGHPUT":
		if m.protocol == "UDP" && m.rtts == nil {
			return decimalText(m.sending)
		}
		return "-1.00"
	case "REMOTE_RECV_THROUGHPUT":
		if m.direction == "Send" {
			return decimalText(m.throughput)
		}
		return "-1.00"
	case "LOCAL_RECV_THROUGHPUT":
		if m.direction == "Receive" {
			return decimalText(m.throughput)
		}
		return "-1.00"
	case "SOCKET_TYPE":
		if m.protocol == "UDP" {
			return "Datagram"
		}
		return "Stream"
	case "COMMAND_LINE":
		return n.line
	case "RESULT_BRAND":
		return n.brand
	case "ELAPSED_TIME":
		return fmt.Sprintf("%.2f", m.elapsed.Seconds())
	case "PROTOCOL":
		return m.protocol
	case "DIRECTION":
		return m.direction
	case "LOCAL_CPU_UTIL":
		if m.hasCPU {
			return fmt.Sprintf("%.2f", m.cpu)
		}
		return "-1.00"
	case "REMOTE_CPU_UTIL":
		if m.measuredRemoteCPU() {
			return fmt.Sprintf("%.2f", m.results.CPUPercent)
		}
		return "-1.00"
	case "LOCAL_SOCKET_TOS":
		return n.localTOS(m)
	case "REMOTE_SOCKET_TOS":
		if n.remoteDS == 0 && m.response.DS == -1 {
			return "0x00" // it was not asked to set what every socket has
		}
		return fmt.Sprintf("0x%.2x", uint32(m.response.DS))
	case "LOCAL_CONG_CONTROL":
		return m.info.CongestionControl
	case "REMOTE_CONG_CONTROL":
		if m.hasResults && m.layout != wire.UnknownLayout && m.protocol == "TCP" {
			return printableName(m.results.Congestion)
		}
		return ""
	}
	return fmt.Sprint(n.count(m, key))
}

// confidenceValue is the value of a key about how well the mean of several tests is known; widths are of the whole interval.
func (n *netperfRun) confidenceValue(m *netperfFigures, key string) (string, bool) {
	one := n.most == 1
	switch {
	case key == "CONFIDENCE_ITERATION":
		return fmt.Sprint(m.tests), true
	case key != "CONFIDENCE_LEVEL" && key != "CONFIDENCE_INTERVAL" && key != "THROUGHPUT_CONFID":
		return "", false
	case one && key == "CONFIDENCE_LEVEL":
		return "-1", true
	case one:
		return "-1.000", true
	case key == "CONFIDENCE_LEVEL":
		return fmt.Sprint(n.level), true
	case key == "CONFIDENCE_INTERVAL":
		return fmt.Sprintf("%.3f", n.width), true
	}
	return fmt.Sprintf("%.3f", 100*m.width), true
}

// printableName leaves out what is no part of an algorithm's name.
func printableName(s string) string {
	return strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return -1
	}, s)
}

func (m *netperfFigures) measuredRemoteCPU() bool {
	return m.hasResults && m.response.Flags&wire.FlagCPU != 0 && m.results.CPUPercent >= 0 && m.results.CPUPercent <= 100
}

func (n *netperfRun) localTOS(m *netperfFigures) string {
	switch {
	case n.localDS < 0:
		return "0xffffffff"
	case m.hasInfo && m.info.HasDS:
		return fmt.Sprintf("0x%.2x", m.info.DS)
	}
	return fmt.Sprintf("0x%.2x", n.localDS)
}

// count is the value of a key that is a whole number.
func (n *netperfRun) count(m *netperfFigures, key string) int64 {
	known := func(ok bool, v int64) int64 {
		if ok {
			return v
		}
		return -1
	}
	switch key {
	case "TRANSPORT_MSS":
		return known(m.hasInfo && m.info.SendMSS > 0, int64(m.info.SendMSS))
	case "LOCAL_TRANSPORT_RETRANS":
		return m.retrans
	case "REMOTE_TRANSPORT_RETRANS":
		return known(m.hasResults && m.layout != wire.UnknownLayout && m.protocol == "TCP", int64(m.results.Retransmits))
	case "LOCAL_SEND_SIZE":
		return int64(m.sendSize)
	case "LOCAL_RECV_SIZE":
		return int64(m.recvSize)
	case "REMOTE_SEND_SIZE":
		return int64(m.response.SendSize)
	case "REMOTE_RECV_SIZE":
		return int64(m.response.RecvSize)
	case "LOCAL_BYTES_SENT":
		return int64(m.sent)
	case "LOCAL_BYTES_RECVD":
		return int64(m.received)
	case "LOCAL_BYTES_XFERD":
		return int64(m.sent + m.received)
	case "REMOTE_BYTES_XFERD":
		return known(m.hasResults, int64(m.results.TxBytes+m.results.RxBytes))
	case "REMOTE_BYTES_SENT":
		return known(m.hasResults, int64(m.results.TxBytes))
	case "REMOTE_BYTES_RECVD":
		return known(m.hasResults, int64(m.results.RxBytes))
	case "LSS_SIZE_END":
		return known(m.hasInfo, int64(m.info.SendBuffer))
	case "LSR_SIZE_END":
		return known(m.hasInfo, int64(m.info.ReceiveBuffer))
	case "RSS_SIZE_END":
		return known(m.hasResults, int64(m.results.SendBuffer))
	case "RSR_SIZE_END":
		return known(m.hasResults, int64(m.results.RecvBuffer))
	case "REMOTE_CPU_COUNT":
		return known(m.measuredRemoteCPU() && m.layout != wire.UnknownLayout, int64(m.results.CPUs))
	case "REQUEST_SIZE":
		return known(n.kind() != 0, int64(max(1, n.requestSize)))
	case "RESPONSE_SIZE":
		return known(n.kind() != 0, int64(max(1, n.responseSize)))
	case "BURST_SIZE":
		return int64(n.burst)
	case "RESPONSES_DUPLICATE":
		return int64(m.twice)
	}
	return int64(m.lost) // TRANSACTIONS_LOST
}

// latency is the value of a key about the times of transactions, in microseconds.
func (n *netperfRun) latency(m *netperfFigures, key string) (string, bool) {
	rtts := m.rtts
	if rtts == nil {
		rtts = &netperf.RTTs{}
	}
	var d time.Duration
	ok := rtts.N() > 0
	switch key {
	case "MIN_LATENCY":
		d = rtts.Min()
	case "MAX_LATENCY":
		d = rtts.Max()
	case "MEAN_LATENCY", "RT_LATENCY": // where netperf divides by the rate for the second
		d, ok = rtts.Mean()
	case "STDDEV_LATENCY":
		d, ok = rtts.Deviation()
	case "P50_LATENCY":
		d, ok = rtts.Quantile(0.5)
	case "P90_LATENCY":
		d, ok = rtts.Quantile(0.9)
	case "P99_LATENCY":
		d, ok = rtts.Quantile(0.99)
	case "TIME_P50_LATENCY":
		d, ok = rtts.TimeQuantile(0.5)
	case "TIME_P90_LATENCY":
		d, ok = rtts.TimeQuantile(0.9)
	case "TIME_P99_LATENCY":
		d, ok = rtts.TimeQuantile(0.99)
	case "TIME_LOST":
		if m.rtts == nil {
			return "-1.00", true
		}
		return fmt.Sprintf("%.4f", rtts.TimeLost()), true
	case "TRANSACTION_RATE":
		if m.rtts == nil {
			return "-1.00", true
		}
		return decimalText(m.rate), true
	default:
		return "", false
	}
	if !ok {
		return "-1.00", true
	}
	return fmt.Sprintf("%.2f", micros(d)), true
}

// tcpInfoText is what is printed of the stack's knowledge of a connection, in the form that readers of netperf expect: names and numbers, times
// in microseconds.
func tcpInfoText(i host.TCPInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tcpi_rtt %d tcpi_min_rtt %d tcpi_snd_mss %d tcpi_snd_cwnd %d\n", i.RTT.Microseconds(), i.MinRTT.Microseconds(), i.SendMSS,
		i.CongestionWindow)
	if i.HasRetransmits {
		fmt.Fprintf(&b, "tcpi_total_retrans %d\n", i.Retransmits)
	}
	if i.HasBytesAcked {
		fmt.Fprintf(&b, "tcpi_bytes_acked %d\n", i.BytesAcked)
	}
	return b.String()
}
