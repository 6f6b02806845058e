package foreign

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// The lines of ping. Words may be translated; what is read is what all languages keep.
var (
	pingHeader = newPattern(`^PING6? ?([^ (]+)? ?\(([^ )]*)`)
	pingStamp  = newPattern(`^\[(\d{1,12}\.\d{1,9})\] `)
	// A reply begins with its size and ends with its time; a suffix in brackets says what is odd about it.
	pingReply = newPattern(`^\d+ .*?(icmp_seq|icmp_req|seq)=(\d{1,10})\b.*?([=<]) ?(\d+(?:[.,]\d+)?) ?ms(?: \((.*)\))?\s*$`)
	pingFrom  = newPattern(`^\d+ \S+ \S+ ([0-9A-Fa-f.:]+?):? `)
	// An error of a router: "From 192.0.2.1 icmp_seq=1 Destination Host Unreachable".
	pingError    = newPattern(`^[^\d\s]\S* (\S+?):?(?: \((\S+?)\):?)? icmp_seq=(\d{1,10}) (\S.*)$`)
	pingErrorBSD = newPattern(`^\d+ bytes from (\S+?)(?: \((\S+?)\))?: ([A-Z][a-z].*)$`)
	// "no answer yet for icmp_seq=3", "Request timeout for icmp_seq 3": an answer may still come.
	pingWaiting = newPattern(`^\D*icmp_seq[= ](\d{1,10})$`)
	pingClosing = newPattern(`^\d+ [^%]*, ?[^%]*\d%`)
	pingTimes   = newPattern(`^(?:rtt|round-trip) min/avg/max(?:/[a-z]+)? = ([\d.,]+)/([\d.,]+)/([\d.,]+)(?:/([\d.,]+))? ms`)
	// What BSD and inetutils print of the packet that an error quotes.
	pingDump  = newPattern(`^(?:Vr HL TOS|IP Hdr Dump|ICMP: type|\s*[0-9a-f]{4} [0-9a-f]{4}|\s+\d\s+\d\s+[0-9a-f]{2}\s)`)
	pingSoFar = newPattern(`^\d+/\d+ \S+, \d+%`)
)

func isPing(s string) bool {
	return pingHeader.MatchString(s) || pingReply.MatchString(pingStamp.ReplaceAllString(s, "")) ||
		pingClosing.MatchString(s) && strings.Contains(s, "packet") || pingError.MatchString(pingStamp.ReplaceAllString(s, ""))
}

// pingText is a text of ping as far as it was read.
type pingText struct {
	host, address string
	header        bool
	iputils       bool // its header: the others have a colon after the address
	busybox       bool // "seq=" in place of "icmp_seq="

	last     int64 // sequence number, unwrapped
	seen     bool
	high     int64
	replies  map[int64]pingReplied
	waiting  int
	order    int64 // the highest sequence number answered so far
	tally    probe.Tally
	closing  *closing
	times    []time.Duration // min, avg, max of the closing lines
	step     time.Duration   // coarsest resolution of the replies
	below    int             // replies that only say "below 1 ms"
	unsent   int
	firstBad string // first send error
	redirect int
}

type pingReplied struct {
	rtt   time.Duration
	at    time.Duration // of the reply
	hasAt bool
}

// closing is the closing line.
type closing struct {
	line
	sent, received, duplicates, errors int
}

func readPing(lines []line) (*report.Result, *bufferbloat.Recording, error) {
	p := &pingText{replies: map[int64]pingReplied{}, order: -1, high: -1}
	for _, l := range lines {
		if err := p.line(l); err != nil {
			return nil, nil, err
		}
	}
	return p.result()
}

// line takes one line.
func (p *pingText) line(l line) error {
	text := strings.TrimRight(l.text, " \t")
	stamp, hasStamp := time.Duration(0), false
	if m := pingStamp.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		v, _ := number(m[1]) // the pattern has digits and a point
		stamp, hasStamp = time.Duration(math.Round(v*1e6))*1000, v < 9e9
	}
	switch {
	case strings.Trim(text, ".\bE ") == "": // nothing, or the dots of a flood
		return nil
	case pingHeader.MatchString(text):
		return p.open(l, text)
	case strings.HasPrefix(text, "--- ") || strings.HasPrefix(text, "PING ") || pingSoFar.MatchString(text) || pingDump.MatchString(text):
		return nil
	case pingReply.MatchString(text):
		return p.reply(l, text, stamp, hasStamp)
	case pingTimes.MatchString(text):
		return p.summary(l, text)
	case pingClosing.MatchString(text):
		return p.close(l, text)
	case pingErrorBSD.MatchString(text):
		m := pingErrorBSD.FindStringSubmatch(text)
		p.refused(m[1], m[2], m[3])
		return nil
	case pingError.MatchString(text):
		m := pingError.FindStringSubmatch(text)
		if err := p.sequence(l, m[3]); err != nil {
			return err
		}
		p.refused(m[1], m[2], m[4])
		return nil
	case pingWaiting.MatchString(text):
		p.waiting++
		return p.sequence(l, pingWaiting.FindStringSubmatch(text)[1])
	case strings.HasPrefix(text, "ping") || strings.HasPrefix(text, "Warning:"):
		return p.complaint(l, text)
	case strings.Contains(text, "time of day goes back"):
		return nil
	}
	return l.bad("not a line of ping's output")
}

func (p *pingText) open(l line, text string) error {
	if p.header {
		return l.bad("a second ping begins here; give each its own file")
	}
	m := pingHeader.FindStringSubmatch(text)
	p.header, p.host = true, m[1]
	if a, err := netip.ParseAddr(m[2]); err == nil {
		p.address = a.String()
	}
	if a, err := netip.ParseAddr(p.host); err == nil {
		p.address = a.String()
	}
	p.iputils = !strings.Contains(text, "): ") && !strings.HasPrefix(text, "PING6")
	return nil
}

// complaint takes what ping prints to its other stream.
func (p *pingText) complaint(l line, text string) error {
	low := strings.ToLower(text)
	switch {
	case strings.Contains(low, "warning") || strings.Contains(low, "sock") || strings.Contains(low, "time of day goes back"):
		return nil
	case strings.Contains(low, "send"):
		p.unsent++
		if p.firstBad == "" {
			p.firstBad = text
		}
		return nil
	}
	return l.bad("ping itself failed")
}

// sequence notes that the probe of this number was sent, and returns it unwrapped in p.last: the field has 16 bits.
func (p *pingText) sequence(l line, digits string) error {
	n, ok := number(digits)
	if !ok || n > math.MaxUint32 {
		return l.bad("no sequence number")
	}
	seq := int64(n)
	if p.seen && seq < 1<<16 {
		for seq < p.last-1<<15 {
			seq += 1 << 16
		}
	}
	if p.seen && seq > p.high+maxSamples || !p.seen && seq > maxSamples {
		return l.bad("sequence number %d is far beyond those before it", seq)
	}
	p.last, p.seen, p.high = seq, true, max(p.high, seq)
	return nil
}

func (p *pingText) reply(l line, text string, stamp time.Duration, hasStamp bool) error {
	m := pingReply.FindStringSubmatch(text)
	p.busybox = p.busybox || m[1] == "seq"
	rtt, step, ok := msec(m[4])
	if !ok {
		return l.bad("no time that a reply can have")
	}
	if err := p.sequence(l, m[2]); err != nil {
		return err
	}
	if a := pingFrom.FindStringSubmatch(text); a != nil && p.address == "" {
		if addr, err := netip.ParseAddr(a[1]); err == nil {
			p.address = addr.String()
		}
	}
	suffix := strings.ToLower(m[5])
	switch {
	case strings.Contains(suffix, "dup"):
		p.tally.Duplicates++
		return nil
	case strings.Contains(suffix, "checksum"):
		p.tally.Corrupt++
		return nil
	case suffix != "" && suffix != "truncated" && suffix != "different address" && suffix != "different address!":
		return l.bad("what stands in brackets is not known, so neither is whether this counts as a reply")
	}
	if _, again := p.replies[p.last]; again {
		p.tally.Duplicates++
		return nil
	}
	if p.last < p.order {
		p.tally.Reordered++
	}
	if m[3] == "<" {
		p.below++
	}
	p.order = max(p.order, p.last)
	p.step = max(p.step, step)
	p.replies[p.last] = pingReplied{rtt, stamp, hasStamp}
	return nil
}

// refused counts an error reply. A redirect is none: the packet goes on its way.
func (p *pingText) refused(by, address, what string) {
	if strings.HasPrefix(what, "Redirect") {
		p.redirect++
		return
	}
	p.tally.Rejected++
	if p.tally.FirstError == "" {
		p.tally.FirstError = clip(what)
	}
	if address == "" {
		address = by
	}
	if a, err := netip.ParseAddr(address); err == nil && !slices.Contains(p.tally.RejectedBy, a) && len(p.tally.RejectedBy) < 8 {
		p.tally.RejectedBy = append(p.tally.RejectedBy, a)
	}
}

var (
	fieldCount = newPattern(`^(\d+)( |$)`)
	fieldPlus  = newPattern(`^\+?(\d+) (duplicates?|errors?|corrupted)$`)
	fieldLoss  = newPattern(`(\d+(?:[.,]\d+)?) ?%`)
	fieldTime  = newPattern(`^\S+ \d+ ?ms$`)
	fieldLate  = newPattern(`^\d+ packets? out of wait time$`)
)

// close takes "10 packets transmitted, 10 received, +2 duplicates, +1 errors, 0% packet loss, time 9005ms".
func (p *pingText) close(l line, text string) error {
	if p.closing != nil {
		return l.bad("a second closing line; give each ping its own file")
	}
	c := &closing{line: l}
	loss := -1.0
	text, _, _ = strings.Cut(text, " -- ") // "somebody's printing up packets!"
	for i, field := range strings.Split(text, ", ") {
		ok := false
		switch {
		case i < 2:
			if m := fieldCount.FindStringSubmatch(field); m != nil {
				n := 0
				n, ok = count(m[1])
				if i == 0 {
					c.sent = n
				} else {
					c.received = n
				}
			}
		case fieldPlus.MatchString(field):
			m := fieldPlus.FindStringSubmatch(field)
			n := 0
			n, ok = count(m[1])
			switch {
			case strings.HasPrefix(m[2], "dup"):
				c.duplicates = n
			case strings.HasPrefix(m[2], "err"):
				c.errors = n
			}
		case loss < 0 && fieldLoss.MatchString(field):
			loss, ok = number(fieldLoss.FindStringSubmatch(field)[1])
		case fieldTime.MatchString(field), fieldLate.MatchString(field), strings.HasPrefix(field, "pipe "):
			ok = true
		}
		if !ok {
			return l.bad("%q is not understood", clip(field))
		}
	}
	if c.received <= c.sent && c.sent > 0 && loss >= 0 && math.Abs(loss-100*float64(c.sent-c.received)/float64(c.sent)) > 1 {
		return l.bad("the line contradicts itself: %d of %d received is not a loss of %v%%", c.received, c.sent, loss)
	}
	p.closing = c
	return nil
}

func (p *pingText) summary(l line, text string) error {
	m := pingTimes.FindStringSubmatch(text)
	for _, s := range m[1:4] {
		d, step, ok := msec(s)
		if !ok {
			return l.bad("%q is no time", clip(s))
		}
		p.times = append(p.times, d)
		if len(p.replies) == 0 {
			p.step = max(p.step, step)
		}
	}
	if t := p.times; len(t) != 3 || t[0] > t[1] || t[1] > t[2] {
		return l.bad("want one line of min, avg and max in this order")
	}
	return nil
}

func (p *pingText) program() string {
	switch {
	case p.busybox:
		return "BusyBox ping"
	case p.header && p.iputils:
		return "iputils ping"
	case p.header:
		return "BSD or inetutils ping"
	}
	return "ping"
}

// base is the sequence number of the first probe: 1 for iputils, 0 for the others.
func (p *pingText) base() int64 {
	zero := p.busybox || p.header && !p.iputils
	for seq := range p.replies {
		zero = zero || seq == 0
	}
	if zero {
		return 0
	}
	return 1
}

// result puts the replies on the schedule that their numbers tell, and what is missing among them.
func (p *pingText) result() (*report.Result, *bufferbloat.Recording, error) {
	c := p.closing
	if c == nil && !p.seen {
		return nil, nil, fmt.Errorf("no reply, no error and no closing line: ping was stopped before it had anything to say: %w", ErrUnknown)
	}
	target := clip(p.host)
	if target == "" {
		target = p.address
	}
	out := &pings{source: report.Source{Program: p.program(), Host: target}}
	if c != nil && len(p.replies) == 0 && c.received > 0 && int(p.tally.Rejected) < c.received {
		r, err := p.quiet(out)
		return r, nil, err
	}
	sent, err := p.sent()
	if err != nil {
		return nil, nil, err
	}
	base := p.base()
	samples := make([]probe.Sample, sent)
	at, has := make([]time.Duration, sent), make([]bool, sent)
	for i := range samples {
		s := &samples[i]
		s.Seq, s.Due, s.Sent, s.Outcome = uint64(i), time.Duration(i), time.Duration(i), probe.Lost
		if reply, ok := p.replies[base+int64(i)]; ok {
			s.Outcome, s.RTT = probe.Received, reply.rtt
			at[i], has[i] = reply.at-reply.rtt, reply.hasAt
		}
	}
	series := bufferbloat.ProbeSeries{Name: "ping", Kind: "icmp", Target: target, Address: p.address, Primary: true, Samples: samples, Tally: p.tally}
	if interval, ok := place(samples, at, has); ok {
		out.timed, series.Interval = true, interval.Round(100*time.Microsecond)
		first := slices.Index(has, true)
		out.started = wall(at[first]-samples[first].Sent, out)
	}
	out.series, out.resolution = []bufferbloat.ProbeSeries{series}, []time.Duration{p.step}
	p.findings(out, sent)
	r, rec := out.result()
	return r, rec, nil
}

// year2001 tells stamps that count from 1970 from those that count from when the machine started.
const year2001 = 978307200 * time.Second

// wall is the wall clock's time of a stamp, zero with a finding where it counts from another moment.
func wall(stamp time.Duration, out *pings) time.Time {
	if stamp < year2001 {
		out.findings = append(out.findings, finding("stamps_from_boot", bufferbloat.Weakens,
			"the time stamps count from when the machine was started, not from 1970: the spacing of the probes is kept, the date is not known"))
		return time.Time{}
	}
	return time.Unix(0, int64(stamp)).UTC()
}

// sent is how many probes there were.
func (p *pingText) sent() (int, error) {
	n := int64(0)
	if p.seen {
		n = p.high - p.base() + 1
	}
	c := p.closing
	if c == nil {
		return int(min(n, maxSamples)), nil
	}
	switch {
	case n > int64(c.sent):
		return 0, c.bad("there is a line about probe %d of %d", n, c.sent)
	case c.received > len(p.replies)+int(p.tally.Rejected) && c.received > len(p.replies)+int(p.tally.Duplicates):
		return 0, c.bad("there are only %d reply lines: the text is not whole", len(p.replies))
	case c.received < len(p.replies):
		return 0, c.bad("there are %d reply lines", len(p.replies))
	case c.duplicates != int(p.tally.Duplicates) && c.duplicates > 0:
		return 0, c.bad("there are %d lines of duplicates", p.tally.Duplicates)
	}
	return c.sent, nil
}

func (p *pingText) findings(out *pings, sent int) {
	add := func(code string, severity bufferbloat.Severity, format string, args ...any) {
		out.findings = append(out.findings, finding(code, severity, format, args...))
	}
	if p.closing == nil {
		add("no_closing_line", bufferbloat.Weakens, "the closing line is missing: probes without a reply after the last line are not known and not counted")
	} else {
		trailing := 0
		for base := p.base(); trailing < sent; trailing++ {
			if _, ok := p.replies[base+int64(sent-1-trailing)]; ok {
				break
			}
		}
		if trailing > 0 && trailing < sent && p.tally.Rejected == 0 {
			add("trailing_loss", bufferbloat.Note, "the last %d of %d probes have no reply and count as lost; whether their time was up is not told", trailing, sent)
		}
		if p.closing.received > len(p.replies) {
			add("errors_as_replies", bufferbloat.Note, "the closing line counts %d received; %d of them are errors of a router and no replies", p.closing.received,
				p.closing.received-len(p.replies))
		}
	}
	if p.tally.Rejected > 0 {
		by := make([]string, len(p.tally.RejectedBy))
		for i, a := range p.tally.RejectedBy {
			by[i] = a.String()
		}
		add("probe_rejected", bufferbloat.Weakens, "%s, which are no replies, came from %s: %s", many(int(p.tally.Rejected), "error reply", "error replies"), strings.Join(by, ", "), p.tally.FirstError)
	}
	if p.below > 0 {
		add("time_below", bufferbloat.Weakens, "%d replies only say that their time is below a value; they count with that value, so the true times are lower", p.below)
	}
	if p.unsent > 0 {
		add("send_errors", bufferbloat.Weakens, "%d sends failed on the measuring host (%s): these probes count as lost here, because the text does not tell which they are",
			p.unsent, clip(p.firstBad))
	}
	if p.redirect > 0 {
		add("redirected", bufferbloat.Note, "%d redirects: a router knows a shorter way", p.redirect)
	}
	if p.tally.Corrupt > 0 {
		add("probe_corrupt", bufferbloat.Note, "%d replies with a bad checksum were not counted", p.tally.Corrupt)
	}
}

// quiet is the result of a ping that printed its closing lines only.
func (p *pingText) quiet(out *pings) (*report.Result, error) {
	c := p.closing
	if len(p.times) != 3 {
		return nil, c.bad("there is no reply line, and no line of min, avg and max")
	}
	if c.received > c.sent {
		return nil, c.bad("more received than sent")
	}
	l := report.Latency{Series: "ping", Kind: "icmp", Primary: true,
		Summary: stat.Summary{N: c.received, Lost: c.sent - c.received, Min: p.times[0], Mean: p.times[1], Max: p.times[2]},
		Stated:  &report.Stated{Has: report.Min | report.Mean | report.Max, Why: "the closing lines do not tell"}}
	out.source.Untold = []string{"single replies", "whether the line carried any load"}
	r := &report.Result{Source: &out.source,
		Series: []report.Series{{Name: "ping", Kind: "icmp", Primary: true, Target: out.source.Host, Address: p.address, Uncounted: true, Resolution: p.step}},
		Phases: []report.Phase{{Name: phaseName, Kind: report.Unknown, Reached: true, Untimed: true, Latency: []report.Latency{l},
			CPU: report.CPU{Why: "the source does not tell"}}}}
	if p.tally.Rejected > 0 || c.errors > 0 {
		r.Findings = append(r.Findings, finding("probe_rejected", bufferbloat.Weakens, "%s came; which probes they concern is not told", many(max(int(p.tally.Rejected), c.errors), "error reply", "error replies")))
	}
	r.Complete()
	return r, nil
}
