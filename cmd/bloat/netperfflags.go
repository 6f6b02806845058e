package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load/netperf"
)

// netperfFlags is netperf's command line: options for all tests, then, behind "--", those of the test. A byte that was not given is -1.
type netperfFlags struct {
	host, source      string
	family            host.Family
	port              uint16
	passphrase        string
	test              string
	length            time.Duration // of the test; 0 where units are counted, or it has no end
	units             uint64        // bytes or transactions
	endless           bool          // until it is interrupted
	fewest, most      int           // tests whose mean is the figure; 1 and 1 is one test
	level             int           // of confidence in the mean, percent
	width             float64       // of the interval that the mean must be known to, as a share of it
	pause             time.Duration // between the server's response and the data
	format            byte          // of rates; 0 is the test's own
	header            bool
	verbosity         int
	interim           time.Duration // between interim results; 0 is none
	localDS, remoteDS int
	brand             string
	cpu               bool
	version, help     bool
	dataHost          string
	dataFamily        host.Family
	dataSource        string
	dataPort          uint16
	sendBuf, recvBuf  int
	localSend         int
	remoteSend        int
	localRecv         int
	remoteRecv        int
	remoteSendBuf     int
	remoteRecvBuf     int
	pinLocal          int // that a program is to run on; -1 is any
	pinRemote         int
	remotePriority    int // of the server's packets in its host; -1 is the usual one
	requestSize       int
	responseSize      int
	burst             int
	localCC, remoteCC string
	timeout           time.Duration
	keys              []string // of -k, -o and -O; nil for the table
	csv, columns      bool
	direction         string // of an omni test
	protocol          string
	connect, list     bool
}

// The letters of netperf's options; a colon follows one with a value. An option that is no letter here is unknown, one that is and has no
// case in set is known and can't be had.
const (
	netperfLetters = "46A:B:CD:F:H:I:L:NO:P:ST:VW:Y:Z:a:b:cdf:hi:jl:n:o:p:rs:t:v:w:y:z:"
	testLetters    = "46CDH:K:L:M:NO:P:R:S:T:VW:b:cd:e:hk:m:no:p:r:s:t:u:w:"
)

// parseNetperf reads a command line. Its errors are the user's.
func parseNetperf(words []string) (*netperfFlags, error) {
	f := &netperfFlags{host: "localhost", port: wire.Port, test: "TCP_STREAM", length: 10 * time.Second, header: true, verbosity: 1,
		localDS: -1, remoteDS: -1, pinLocal: -1, pinRemote: -1, remotePriority: -1, fewest: 1, most: 1}
	general, special := words, []string(nil)
	if i := slices.Index(words, "--"); i >= 0 {
		general, special = words[:i], words[i+1:]
	}
	if slices.Contains(general, "--help") {
		f.help = true
		return f, nil
	}
	if err := letters(general, netperfLetters, f.set); err != nil {
		return nil, err
	}
	if f.help || f.version {
		return f, nil
	}
	if err := letters(special, testLetters, f.setSpecial); err != nil {
		return nil, err
	}
	return f, f.check()
}

// letters walks over options as getopt does: several letters in a word, a value in the same word or the next.
func letters(words []string, known string, set func(letter byte, value string) error) error {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if len(word) < 2 || word[0] != '-' {
			return fmt.Errorf("unexpected argument %q", word)
		}
		for i := 1; i < len(word); i++ {
			at := strings.IndexByte(known, word[i])
			if at < 0 || word[i] == ':' {
				return fmt.Errorf("invalid option -- '%c'", word[i])
			}
			value := ""
			if at+1 < len(known) && known[at+1] == ':' {
				switch {
				case i+1 < len(word):
					value = word[i+1:]
				case len(words) > 0:
					value, words = words[0], words[1:]
				default:
					return fmt.Errorf("option requires an argument -- '%c'", word[i])
				}
			}
			if err := set(word[i], value); err != nil {
				return fmt.Errorf("-%c %s: %w", word[i], value, err)
			}
			if value != "" {
				break
			}
		}
	}
	return nil
}

// Why an option of netperf can't be had: those for all tests, and those of a test.
var (
	netperfRefused = map[byte]string{
		'A': "the memory that the server sends from is its own affair", 'N': "a test needs the server's word: there is none without a control connection",
		'O': "the memory that the server sends from is its own affair", 'W': "there is one buffer, and what it holds is not read",
		'a': "memory is aligned as the system has it", 'b': "what is sent is not held to bursts: for a given rate use the plan udp_flood, or iperf3",
		'n': "the number of processors is known", 'o': "memory is aligned as the system has it",
		'w': "what is sent is not held to a rate: for a given rate use the plan udp_flood, or iperf3",
	}
	testRefused = map[byte]string{
		'C': "this end's connections can't be corked", 'V': "what is sent is never copied from where it lies", 'W': "there is one buffer, and what it holds is not read",
		'p': "the ports of this end are the system's choice", 't': "the kind of socket follows from -T", 'u': "a test has no name of its own",
	}
)

func refused(reasons map[byte]string, letter byte) error {
	if why := reasons[letter]; why != "" {
		return fmt.Errorf("not to be had here: %s", why)
	}
	return errors.New("this option of netperf is not to be had here")
}

// set takes an option for all tests.
func (f *netperfFlags) set(letter byte, value string) (err error) {
	switch letter {
	case '4':
		f.family = host.IPv4
	case '6':
		f.family = host.IPv6
	case 'B':
		f.brand = value
	case 'C', 'c':
		f.cpu = true
	case 'D':
		f.interim, err = interimTime(value)
	case 'F', 'd', 'j', 'S': // a file that is not read; a debug that says nothing; times that are always kept; and a connection that is kept alive
	case 'H':
		f.host, f.family, err = hostAndFamily(value, f.family)
	case 'I':
		f.level, f.width, err = confidence(value)
	case 'L':
		f.source, f.family, err = hostAndFamily(value, f.family)
	case 'P':
		f.header = value != "0"
	case 'T':
		f.pinLocal, f.pinRemote, err = ofBothEnds(value, 1<<16)
	case 'V':
		f.version = true
	case 'Y':
		f.localDS, f.remoteDS, err = marks(value)
	case 'Z':
		f.passphrase = value
	case 'f':
		if len(value) != 1 || !strings.Contains("kmgKMGbBx", value) {
			return errors.New("want one of k m g K M G b B x")
		}
		f.format = value[0]
	case 'h':
		f.help = true
	case 'i':
		f.fewest, f.most, err = numberOfTests(value)
	case 'l':
		f.length, f.units, err = lengthOrUnits(value)
		f.endless = err == nil && f.length == 0 && f.units == 0
	case 'p':
		first, second, both := pair(value)
		if both && second != "" && second != "0" {
			return errors.New("the local port of the control connection is the system's choice")
		}
		f.port, err = parsePort(first)
	case 's':
		f.pause, err = wholeSecondsText(value)
	case 't':
		f.test = strings.ToUpper(value)
	case 'v':
		f.verbosity, err = number(value, 0, 9)
	case 'y':
		local := 0
		if local, f.remotePriority, err = ofBothEnds(value, 1<<16); err == nil && local >= 0 {
			return errors.New("the priority of this end's sockets can't be set, which -Y does with the mark; \",N\" asks the server alone")
		}
	default:
		return refused(netperfRefused, letter)
	}
	return err
}

// setSpecial takes an option of the test.
func (f *netperfFlags) setSpecial(letter byte, value string) (err error) {
	first, second, both := pair(value)
	switch letter {
	case '4':
		f.dataFamily = host.IPv4
	case '6':
		f.dataFamily = host.IPv6
	case 'D', 'n', 'N': // without delay is how it sends; and whom a socket of datagrams hears is checked on both ends
	case 'R':
		if value == "0" {
			return errors.New("what is sent is routed; want 1")
		}
	case 'H':
		f.dataHost, f.dataFamily, err = hostAndFamily(value, f.dataFamily)
	case 'K':
		f.localCC, f.remoteCC = first, second
	case 'L':
		f.dataSource, f.dataFamily, err = hostAndFamily(value, f.dataFamily)
	case 'M':
		f.remoteRecv, err = size(first, 0, math.MaxInt32)
		if both && err == nil {
			f.localRecv, err = size(second, 0, math.MaxInt32)
		}
	case 'P':
		if first != "" && first != "0" && both {
			return errors.New("the local port of the data can't be chosen")
		}
		f.dataPort, err = parsePort(second)
	case 'T':
		f.protocol = strings.ToUpper(value)
	case 'b':
		f.burst, err = number(value, 0, 1<<16-1)
	case 'c':
		f.connect = true
	case 'd':
		f.direction = strings.ToLower(value)
	case 'e':
		f.timeout, err = wholeSecondsText(value)
	case 'S':
		f.remoteSendBuf, err = size(first, 0, 1<<30)
		if err == nil {
			f.remoteRecvBuf, err = size(second, 0, 1<<30)
		}
	case 'k', 'o', 'O':
		f.csv, f.columns = letter == 'o', letter == 'O'
		return f.selectKeys(value)
	case 'm':
		f.localSend, err = size(first, 0, math.MaxInt32)
		if both && err == nil {
			f.remoteSend, err = size(second, 0, math.MaxInt32)
		}
	case 'r':
		f.requestSize, err = size(first, 1, 1<<20)
		if err == nil {
			f.responseSize, err = size(second, 1, 1<<20)
		}
	case 's':
		f.sendBuf, err = size(first, 0, 1<<30)
		if err == nil {
			f.recvBuf, err = size(second, 0, 1<<30)
		}
	default:
		return refused(testRefused, letter)
	}
	return err
}

// ofBothEnds reads "local,remote", numbers below a bound; what is left out is -1.
func ofBothEnds(value string, bound int) (local, remote int, err error) {
	ends := [2]int{-1, -1}
	ends1, ends2, _ := pair(value)
	for i, text := range []string{ends1, ends2} {
		if text != "" && err == nil {
			ends[i], err = number(text, 0, bound-1)
		}
	}
	return ends[0], ends[1], err
}

// confidence reads "level,width", both in percent.
func confidence(value string) (level int, width float64, err error) {
	first, second, both := strings.Cut(value, ",")
	percent := 5.0
	if both {
		if percent, err = strconv.ParseFloat(second, 64); err != nil || !(percent > 0 && percent <= 100) {
			return 0, 0, errors.New("want the width of the interval in percent behind the comma")
		}
	}
	if _, ok := studentsT[first]; !ok {
		return 0, 0, errors.New("want a confidence of 95 or 99, as in 99,5")
	}
	level, err = strconv.Atoi(first)
	return level, percent / 100, err
}

// numberOfTests reads "most,fewest"; fewer than three say nothing of their spread.
func numberOfTests(value string) (fewest, most int, err error) {
	first, second, _ := pair(value)
	if most, err = number(first, leastTests, mostTests); err != nil {
		return 0, 0, err
	}
	if second == "" {
		return leastTests, most, nil
	}
	if fewest, err = number(second, 1, most); err != nil {
		return 0, 0, err
	}
	return max(fewest, leastTests), most, nil
}

const leastTests, mostTests = 3, 30

// pair cuts "a,b"; a value without a comma is both.
func pair(value string) (first, second string, both bool) {
	first, second, both = strings.Cut(value, ",")
	if !both {
		second = first
	}
	return first, second, both
}

// number reads a count; "" is 0 where that is allowed.
func number(text string, least, most int) (int, error) {
	if text == "" && least == 0 {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("want a number from %d to %d", least, most)
	}
	return n, nil
}

// size reads a number of bytes, with netperf's suffixes.
func size(text string, least, most int) (int, error) {
	text, scale := scaled(text)
	n, err := number(text, min(least, 0), most)
	if int64(n)*scale > int64(most) || n < least || err != nil {
		return 0, fmt.Errorf("want bytes from %d to %d, as in 16K", least, most)
	}
	return n * int(scale), nil
}

// scaled cuts one of netperf's suffixes off a number: K, M and G are powers of 1024, k, m and g of 1000.
func scaled(text string) (string, int64) {
	if n := len(text); n > 1 {
		if s, ok := map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'k': 1e3, 'm': 1e6, 'g': 1e9}[text[n-1]]; ok {
			return text[:n-1], s
		}
	}
	return text, 1
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, errors.New("want a port from 0 to 65535")
	}
	return uint16(n), nil
}

func wholeSecondsText(text string) (time.Duration, error) {
	n, err := number(text, 0, 1_000_000)
	return time.Duration(n) * time.Second, err
}

// hostAndFamily reads "host,family", where the family may be left out.
func hostAndFamily(value string, family host.Family) (string, host.Family, error) {
	name, text, _ := strings.Cut(value, ",")
	switch strings.ToLower(text) {
	case "":
	case "4", "inet":
		family = host.IPv4
	case "6", "inet6":
		family = host.IPv6
	default:
		return "", 0, errors.New("want 4, inet, 6 or inet6 behind the comma")
	}
	name, _, _ = strings.Cut(name, "/")
	return name, family, checkName(name)
}

// checkName refuses what can't be a host: no name is that long, and none begins with a dash.
func checkName(name string) error {
	if name == "" || len(name) > 253 || name[0] == '-' || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("want the name or address of a host")
	}
	return nil
}

// interimTime reads "seconds,units"; a negative time has netperf look at the clock on each operation, which is what is done here anyway.
func interimTime(value string) (time.Duration, error) {
	text, _, _ := strings.Cut(value, ",")
	v, err := strconv.ParseFloat(text, 64)
	if v = math.Abs(v); err != nil || !(v >= 0.001 && v <= 1e6) {
		return 0, errors.New("want seconds, at least 0.001")
	}
	return time.Duration(v * float64(time.Second)), nil
}

// lengthOrUnits reads a time in whole seconds, or with a minus sign a number of bytes or transactions, both with netperf's suffixes. Both are 0
// for a test without an end.
func lengthOrUnits(text string) (time.Duration, uint64, error) {
	text, scale := scaled(text)
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || n > math.MaxInt32/scale || n < -math.MaxInt32/scale:
		return 0, 0, errors.New("want whole seconds, or with a minus sign bytes or transactions")
	case n < 0:
		return 0, uint64(-n * scale), nil
	}
	return time.Duration(n*scale) * time.Second, 0, nil
}

// marks reads the DS bytes of both ends.
func marks(value string) (local, remote int, err error) {
	local, remote = -1, -1
	first, second, _ := pair(value)
	if first != "" {
		if local, err = mark(first); err != nil {
			return 0, 0, err
		}
	}
	if second != "" {
		remote, err = mark(second)
	}
	return local, remote, err
}

// mark reads a DS byte: a number, or the name of a code point or of one of the old kinds of service (RFC 1349). Its two low bits are ECN's and
// belong to the stack.
func mark(text string) (int, error) {
	if v, err := strconv.ParseUint(text, 0, 8); err == nil {
		return int(v) &^ 3, nil
	}
	switch strings.ToLower(text) {
	case "lowdelay":
		return 0x10, nil
	case "throughput":
		return 0x08, nil
	case "reliability":
		return 0x04, nil
	}
	p, err := dscp.Parse(strings.ToUpper(text))
	if err != nil {
		return 0, errors.New("want a DS byte (0xb8) or the name of a code point (EF)")
	}
	return int(p.Byte()), nil
}

// kinds are the tests by name; a bulk flow is none of transactions.
var netperfTests = []string{"TCP_STREAM", "TCP_MAERTS", "TCP_RR", "TCP_CRR", "UDP_RR", "UDP_STREAM"}

// check turns an omni test into the named one that it is, and checks what goes together.
func (f *netperfFlags) check() error {
	if f.test == "OMNI" {
		name, err := f.omni()
		if err != nil {
			return err
		}
		f.test = name
	}
	if !slices.Contains(netperfTests, f.test) {
		return fmt.Errorf("-t %s: want one of %s, or omni", f.test, strings.Join(netperfTests, ", "))
	}
	if (f.units > 0 || f.endless) && f.test == "UDP_STREAM" {
		return errors.New("-l: a stream of datagrams ends by its time")
	}
	if err := f.checkTests(); err != nil {
		return err
	}
	if f.format == 'x' && f.kind() == 0 {
		return fmt.Errorf("-f x: %s has no transactions; want one of k m g K M G b B", f.test)
	}
	if f.burst > 0 && f.kind() != netperf.TCPRR && f.kind() != netperf.UDPRR {
		return fmt.Errorf("-b: %s has no burst", f.test)
	}
	return nil
}

// checkTests fills in what is left out of -i and -I.
func (f *netperfFlags) checkTests() error {
	if f.most > 1 && f.level == 0 {
		f.level, f.width = 99, 0.05
	}
	if f.level > 0 && f.most == 1 {
		f.fewest, f.most = leastTests, 10
	}
	if f.most > 1 && f.endless {
		return errors.New("-i: a test without an end has no second")
	}
	return nil
}

// omni names the test that the options of an omni test describe.
func (f *netperfFlags) omni() (string, error) {
	protocol := f.protocol
	if protocol == "" {
		protocol = "TCP"
	}
	stream := map[string]string{"": "STREAM", "send": "STREAM", "stream": "STREAM", "2": "STREAM", "recv": "MAERTS", "receive": "MAERTS",
		"maerts": "MAERTS", "4": "MAERTS", "rr": "RR", "6": "RR"}
	kind, ok := stream[f.direction]
	switch {
	case protocol != "TCP" && protocol != "UDP":
		return "", fmt.Errorf("-T %s: want tcp or udp", f.protocol)
	case !ok, protocol == "UDP" && kind == "MAERTS":
		return "", fmt.Errorf("-d %s: want send, recv or rr, and datagrams not from the server", f.direction)
	case f.connect && (protocol != "TCP" || kind != "RR"):
		return "", errors.New("-c: connections of their own are for TCP transactions")
	case f.connect:
		kind = "CRR"
	}
	return protocol + "_" + kind, nil
}

// kind is the test's kind of transaction, or 0.
func (f *netperfFlags) kind() netperf.TransactionKind {
	for _, k := range []netperf.TransactionKind{netperf.TCPRR, netperf.TCPCRR, netperf.UDPRR} {
		if k.String() == f.test {
			return k
		}
	}
	return 0
}

// selectKeys reads a list of output keys.
func (f *netperfFlags) selectKeys(text string) error {
	switch text {
	case "?":
		f.list = true
		return nil
	case "all":
		f.keys = slices.Clone(netperfKeys)
		return nil
	}
	f.keys = []string{}
	for _, key := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ';' }) {
		key = strings.ToUpper(strings.TrimSpace(key))
		if !slices.Contains(netperfKeys, key) {
			return fmt.Errorf("%q is no output key here; -k '?' lists them", key)
		}
		f.keys = append(f.keys, key)
	}
	if len(f.keys) == 0 {
		return errors.New("want a list of output keys, all, or ?")
	}
	return nil
}
