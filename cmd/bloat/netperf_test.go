package main

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load/netperf"
)

func TestTheCommandLinesOfFlentAndTheScriptsAreRead(t *testing.T) {
	for _, c := range []struct {
		line string
		want func(*netperfFlags)
	}{
		{"", func(*netperfFlags) {}},
		{"-P 0 -v 0 -D -0.20 -4 -Y 0xb8,0x20 -H server -p 12865 -t TCP_MAERTS -l 60 -F /dev/urandom -f m -L 192.0.2.1,4 -- -L 192.0.2.1,4 -H server " +
			"-k THROUGHPUT,ELAPSED_TIME -K cubic", func(f *netperfFlags) {
			f.header, f.verbosity, f.interim, f.family, f.localDS, f.remoteDS = false, 0, 200*time.Millisecond, host.IPv4, 0xb8, 0x20
			f.host, f.test, f.length, f.format, f.source = "server", "TCP_MAERTS", time.Minute, 'm', "192.0.2.1"
			f.dataSource, f.dataFamily, f.dataHost, f.keys = "192.0.2.1", host.IPv4, "server", []string{"THROUGHPUT", "ELAPSED_TIME"}
			f.localCC, f.remoteCC = "cubic", "cubic"
		}},
		{"-P0 -v0 -6 -Hserver -tudp_rr -l5 -- -e 2 -k throughput", func(f *netperfFlags) {
			f.header, f.verbosity, f.family, f.host, f.test, f.length = false, 0, host.IPv6, "server", "UDP_RR", 5*time.Second
			f.timeout, f.keys = 2*time.Second, []string{"THROUGHPUT"}
		}},
		{"-4 -H h -t TCP_STREAM -l -1000000 -Y ef -Z phrase -- -m 1400 -M 1400", func(f *netperfFlags) {
			f.family, f.host, f.length, f.units, f.localDS, f.remoteDS, f.passphrase, f.localSend = host.IPv4, "h", 0, 1_000_000, 0xb8, 0xb8, "phrase", 1400
			f.remoteRecv = 1400
		}},
		{"-t TCP_RR -l 10k -s 2 -cC -- -r 100,200 -b 4 -D -K reno, -P ,30002", func(f *netperfFlags) {
			f.test, f.length, f.pause, f.cpu, f.requestSize, f.responseSize, f.burst = "TCP_RR", 10_000*time.Second, 2*time.Second, true, 100, 200, 4
			f.localCC, f.dataPort = "reno", 30002
		}},
		{"-i 10,3 -I 95,10 -T ,3 -y ,6 -- -S 100,200 -M 300,400 -O throughput", func(f *netperfFlags) {
			f.fewest, f.most, f.level, f.width, f.pinRemote, f.remotePriority = 3, 10, 95, 0.1, 3, 6
			f.remoteSendBuf, f.remoteRecvBuf, f.remoteRecv, f.localRecv, f.columns, f.keys = 100, 200, 300, 400, true, []string{"THROUGHPUT"}
		}},
		{"-i 3", func(f *netperfFlags) { f.fewest, f.most, f.level, f.width = 3, 3, 99, 0.05 }},
		{"-i 8,2", func(f *netperfFlags) { f.fewest, f.most, f.level, f.width = 3, 8, 99, 0.05 }},
		{"-I 99", func(f *netperfFlags) { f.fewest, f.most, f.level, f.width = 3, 10, 99, 0.05 }},
		{"-T 1", func(f *netperfFlags) { f.pinLocal, f.pinRemote = 1, 1 }},
		{"-l 0", func(f *netperfFlags) { f.length, f.endless = 0, true }},
		{"-t omni -Y ,lowdelay -- -d recv", func(f *netperfFlags) { f.test, f.direction, f.remoteDS = "TCP_MAERTS", "recv", 0x10 }},
		{"-t omni -- -d rr -T udp", func(f *netperfFlags) { f.test, f.direction, f.protocol = "UDP_RR", "rr", "UDP" }},
		{"-t omni -- -d rr -c", func(f *netperfFlags) { f.test, f.direction, f.connect = "TCP_CRR", "rr", true }},
	} {
		want, _ := parseNetperf(nil)
		c.want(want)
		if got, err := parseNetperf(strings.Fields(c.line)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v, %v, want\n%+v", c.line, got, err, want)
		}
	}
}

func TestCommandLinesThatCannotBe(t *testing.T) {
	for _, line := range []string{
		"-H", "-H -f", "-H a;b,9", "-x", "host", "-D 0", "-D nan", "-f q", "-f mm", "-f x", "-t UDP_STREAM -f x", "-l 99999999999", "-l 3G", "-p 70000", "-Y 256", "-Y nosuch", "-v x",
		"-t omni -- -d nowhere", "-t omni -- -d recv -T udp", "-t TCP_STREAM -- -b 4", "-t UDP_STREAM -l -100", "-- -k", "-- -k ,", "-- -r 0", "-- -P 5,6",
		"-- -b 70000", "-- -m -1", "-- -O", "-i 2", "-i 31", "-i 3,4", "-I 90", "-I 99,0", "-i 3 -l 0", "-t UDP_STREAM -l 0",
		"-T x", "-y 6", "-y 6,6", "-p 1,2", "-N", "-b 4", "-- -C", "-- -R 0", "-- -t stream", "-H " + strings.Repeat("x", 300),
	} {
		if f, err := parseNetperf(strings.Fields(line)); err == nil {
			t.Errorf("%q: no error, but %+v", line, f)
		}
	}
	if f, err := parseNetperf([]string{"-H", "192.0.2.9\n\x1b[2J"}); err == nil {
		t.Errorf("a host with control characters: %+v", f)
	}
}

func TestEveryOptionIsInTheHelpAndInTheDocsOrSaysWhyItCannotBeHad(t *testing.T) {
	page, err := os.ReadFile("../../docs/netperf.md")
	if err != nil {
		t.Fatal(err)
	}
	general, special, _ := strings.Cut((&app{}).netperfCommand().Long, "Behind \"--\"")
	for _, part := range []struct {
		letters, help string
		set           func(*netperfFlags) func(byte, string) error
	}{
		{netperfLetters, general, func(f *netperfFlags) func(byte, string) error { return f.set }},
		{testLetters, special, func(f *netperfFlags) func(byte, string) error { return f.setSpecial }},
	} {
		for _, letter := range strings.ReplaceAll(part.letters, ":", "") {
			err := part.set(&netperfFlags{})(byte(letter), "")
			if refused := err != nil && strings.Contains(err.Error(), "not to be had here"); refused {
				continue
			}
			for where, text := range map[string]string{"the help": part.help, "docs/netperf.md": string(page)} {
				if !strings.Contains(text, "-"+string(letter)+" ") && !strings.Contains(text, "`-"+string(letter)+"`") {
					t.Errorf("-%c is not in %s", letter, where)
				}
			}
		}
	}
}

func FuzzNetperfCommandLine(f *testing.F) {
	f.Add("-P 0 -v 0 -D -0.20 -4 -Y 0xb8,0x20 -H server -p 12865 -t TCP_MAERTS -l 60 -F /dev/urandom -f m -- -e 2 -H server -k THROUGHPUT -K cubic")
	f.Add("-i 5,3 -I 99,5 -l 0 -T ,1 -y ,2 -- -S 1,2 -M 3 -O all")
	f.Add("-t omni -l -10M -- -d rr -T udp -c -r 1,2 -b 3 -o all")
	f.Fuzz(func(t *testing.T, line string) {
		flags, err := parseNetperf(strings.Fields(line))
		if err != nil || flags.help || flags.version {
			return
		}
		if flags.length < 0 || flags.length > 1<<31*time.Second || flags.length == 0 && flags.units == 0 != flags.endless ||
			flags.fewest > flags.most || flags.most > 1 && (flags.level == 0 || flags.width <= 0 || flags.fewest < 3) || flags.host == "" || flags.host[0] == '-' ||
			flags.kind() == 0 && flags.burst > 0 || flags.localDS > 255 || flags.remoteDS < -1 {
			t.Errorf("%q is read as %+v", line, flags)
		}
	})
}

func TestAnIntervalWithoutATransactionGoesOn(t *testing.T) {
	// The test needs no server: Sample of a test that never began is no interval at all.
	var out bytes.Buffer
	n := &netperfRun{netperfFlags: &netperfFlags{interim: time.Second, test: "UDP_RR", keys: []string{"THROUGHPUT"}}, h: host.NewKernel(), out: &out}
	look := n.transactionLines((&netperf.Client{Host: n.h}).NewTransactions(netperf.TransactionOptions{Kind: netperf.UDPRR}))
	look(false, 0)
	look(true, 0)
	if out.Len() != 0 {
		t.Errorf("printed %q", out.String())
	}
}

func TestRatesInEachOfNetperfsUnits(t *testing.T) {
	for unit, want := range map[byte]float64{'b': 8e9, 'B': 1e9, 'k': 8e6, 'm': 8000, 'g': 8, 'K': 1e9 / 1024, 'M': 1e9 / (1 << 20), 'G': 1e9 / (1 << 30)} {
		n := &netperfRun{netperfFlags: &netperfFlags{format: unit, test: "TCP_STREAM"}}
		if got := n.rate(8e9, 0); got != want {
			t.Errorf("%c: got %v, want %v", unit, got, want)
		}
	}
	n := &netperfRun{netperfFlags: &netperfFlags{test: "TCP_RR"}}
	if got := n.rate(16, 1); got != 1 || n.unitsName() != "Trans" {
		t.Errorf("transactions: got %v %s", got, n.unitsName())
	}
}

func TestIdleConnectionsLeaveDescriptorsToOthers(t *testing.T) {
	for _, tt := range []struct {
		descriptors uint64
		want        int
	}{{0, 256}, {1, 4}, {16, 4}, {64, 12}, {256, 60}, {1024, 252}, {1 << 63, 256}} {
		if got := maxIdle(tt.descriptors); got != tt.want {
			t.Errorf("%d idle connections of %d descriptors, want %d", got, tt.descriptors, tt.want)
		}
	}
}

func TestSizesTakeNetperfsSuffixes(t *testing.T) {
	f, err := parseNetperf(strings.Fields("-- -s 16K,1k -S 1M -m 64k,2K -M 3K,4k"))
	got := []int{f.sendBuf, f.recvBuf, f.remoteSendBuf, f.remoteRecvBuf, f.localSend, f.remoteSend, f.remoteRecv, f.localRecv}
	if want := []int{16 << 10, 1000, 1 << 20, 1 << 20, 64_000, 2 << 10, 3 << 10, 4000}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v; %v", got, want, err)
	}
	f, err = parseNetperf(strings.Fields("-t TCP_RR -- -r 64K,1M"))
	if err != nil || f.requestSize != 64<<10 || f.responseSize != 1<<20 {
		t.Errorf("requests of %d and responses of %d bytes, %v", f.requestSize, f.responseSize, err)
	}
	for _, line := range []string{"-t TCP_RR -- -r 2M", "-- -s 2G", "-- -m 3G", "-- -s K", "-- -s 1KK", "-- -s -1K", "-t TCP_RR -- -r 0K", "-- -s 1T"} {
		if f, err := parseNetperf(strings.Fields(line)); err == nil {
			t.Errorf("%q: no error, but %+v", line, f)
		}
	}
}

func TestASmallRateIsNotPrintedAsNone(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 0.00016: "0.000160", 0.0999: "0.0999", 0.1: "0.10", 9.994: "9.99", 6844.39: "6844.39"} {
		if got := decimalText(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
