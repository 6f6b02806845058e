package foreign

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report"
)

var update = flag.Bool("update", false, "write the golden files anew")

func read(t testing.TB, text string) *report.Result {
	t.Helper()
	r, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return r
}

func file(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".in"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func printed(t testing.TB, write func(io.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// schema is the published one.
func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	var doc any
	if err := json.Unmarshal(report.JSONSchema(), &doc); err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("s.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("s.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each sample of another program is read and printed by the same writers as our own.
func TestGoldenFiles(t *testing.T) {
	all, err := filepath.Glob("testdata/*.in")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d samples, %v", len(all), err)
	}
	s := schema(t)
	for _, path := range all {
		name := strings.TrimSuffix(filepath.Base(path), ".in")
		t.Run(name, func(t *testing.T) {
			r := read(t, file(t, name))
			got := bytes.Join([][]byte{printed(t, r.WriteSpeedtest), printed(t, r.WriteTable)}, []byte("\n"))
			golden := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(printed(t, r.WriteJSON)))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(v); err != nil {
				t.Error(err)
			}
		})
	}
}

// primary is the latency of the primary series in the first phase of a kind.
func primary(t testing.TB, r *report.Result, kind bufferbloat.PhaseKind) *report.Latency {
	t.Helper()
	for i := range r.Phases {
		if r.Phases[i].Kind == kind {
			return r.Phases[i].Primary()
		}
	}
	t.Fatalf("no phase of kind %s", kind)
	return nil
}

func ms(v float64) time.Duration { return time.Duration(v * 1e6) }

// The tables of the founding letter, read back.
func TestTheLettersTablesAreRead(t *testing.T) {
	for _, tt := range []struct {
		name     string
		down, up float64
		d, u     [6]float64
	}{
		{"seed1-pie-a", 24.6, 3.95, [6]float64{15.719, 18.012, 22.916, 26.091, 41.447, 55.721}, [6]float64{17.539, 22.938, 31.679, 36.764, 45.287, 145.407}},
		{"seed1-pie-b", 27.61, 4.13, [6]float64{16.082, 22.831, 30.295, 29.515, 35.582, 39.558}, [6]float64{16.697, 34.470, 44.720, 45.103, 54.880, 62.281}},
		{"seed1-fq_codel-b", 27.97, 4.13, [6]float64{17.132, 18.177, 21.482, 21.786, 24.725, 37.424}, [6]float64{18.813, 21.308, 24.863, 24.777, 27.931, 29.007}},
	} {
		r := read(t, file(t, tt.name))
		if len(r.Phases) != 2 || r.Phases[0].Name != "download" || r.Phases[1].Name != "upload" {
			t.Fatalf("%s: phases %+v", tt.name, r.Phases)
		}
		for i, want := range [][6]float64{tt.d, tt.u} {
			p := &r.Phases[i]
			l := p.Primary()
			got := [6]time.Duration{l.Min, l.P10, l.Median, l.Mean, l.P90, l.Max}
			for j := range want {
				if d := got[j] - ms(want[j]); d.Abs() > 1 {
					t.Errorf("%s, %s, figure %d: got %v, want %v ms", tt.name, p.Name, j, got[j], want[j])
				}
			}
			if rate := []float64{tt.down, tt.up}[i] * 1e6; float64(p.Goodput[0].Rate) != rate {
				t.Errorf("%s, %s: got %v, want %v", tt.name, p.Name, p.Goodput[0].Rate, rate)
			}
			if _, known := l.Loss(); known || l.N != 61 || !p.UnderLoad {
				t.Errorf("%s, %s: n %d, loss known %v, under load %v; want 61, unknown, true", tt.name, p.Name, l.N, known, p.UnderLoad)
			}
		}
	}
}

// What our own text says comes back.
func TestOurOwnTextIsReadBack(t *testing.T) {
	r := read(t, file(t, "ours-two_of_five"))
	g := r.Phases[1].Goodput[0]
	if g.Planned != 5 || g.Flowed != 2 || g.Rate != 19130000 {
		t.Errorf("%+v, want 2 of 5 streams and 19.13 Mbit/s", g)
	}
	if l := primary(t, r, bufferbloat.Idle); l.N != 47 || l.Lost != 3 {
		t.Errorf("n %d, lost %d; want 47, 3", l.N, l.Lost)
	}
	if r.Phases[2].Goodput[0].OK || r.Phases[2].UnderLoad {
		t.Error("an upload without result is read as one")
	}
	if r.Status() != 4 {
		t.Errorf("status %d, want 4", r.Status())
	}
	r = read(t, file(t, "ours-interrupted"))
	if r.Stopped == "" || r.Status() != 4 {
		t.Errorf("stopped %q, status %d", r.Stopped, r.Status())
	}
	r = read(t, file(t, "ours-fifo"))
	if r.Status() != 0 || len(r.Phases) != 4 || len(r.Phases[0].Latency) != 2 {
		t.Errorf("status %d, phases %d, want 0, 4 with two series", r.Status(), len(r.Phases))
	}
}

// The program for routers prints each CPU, and what the CPU spoils has a sentence of its own.
func TestOurTextWithItsCPUsIsReadBack(t *testing.T) {
	in, err := os.Open("../testdata/fifo.bloat.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	rec, err := bufferbloat.ReadRecording(in)
	if err != nil {
		t.Fatal(err)
	}
	rec.CPU = bufferbloat.CPUSeries{Available: true}
	for at := range 120 {
		rec.CPU.Samples = append(rec.CPU.Samples, bufferbloat.CPUSample{At: time.Duration(at) * time.Second, Own: 0.004, Busy: []float64{1, 0.5}})
	}
	want := report.New(rec)
	for name, write := range map[string]func(*report.Result, io.Writer) error{"with": (*report.Result).WriteSpeedtestCPU, "without": (*report.Result).WriteSpeedtest} {
		var text strings.Builder
		if err := write(want, &text); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text.String(), "speedtest:   0.4"); got != (name == "with") || !strings.Contains(text.String(), "\nLimited by CPU: ") {
			t.Errorf("%s: the lines to be read are not in\n%s", name, text.String())
		}
		r := read(t, text.String())
		if c := r.Phases[1].CPU; r.Phases[1].Goodput[0].OK != want.Phases[1].Goodput[0].OK || (c.OK && math.Abs(c.Own-0.004) < 1e-9) != (name == "with") {
			t.Errorf("%s: CPU %+v of\n%s", name, c, text.String())
		}
	}
}

func TestPing(t *testing.T) {
	for _, tt := range []struct {
		name                             string
		received, lost, dups, rejected   int
		min, median, mean, max           float64
		program, address, findings, none string
	}{
		{"ping-iputils", 5, 0, 0, 0, 0.073, 12.75, 54.5146, 234, "iputils ping", "192.0.2.9", "", "trailing"},
		{"ping-lost", 3, 2, 0, 0, 10, 20, 20, 30, "iputils ping", "192.0.2.9", "", "trailing"},
		{"ping-trailing", 2, 3, 0, 0, 10, 15, 15, 20, "iputils ping", "192.0.2.9", "trailing_loss", ""},
		{"ping-dup", 10, 0, 2, 1, 11, 15.5, 15.5, 20, "iputils ping", "192.0.2.9", "probe_rejected", ""},
		{"ping-total-loss", 0, 3, 0, 0, 0, 0, 0, 0, "iputils ping", "192.0.2.9", "", ""},
		{"ping-unreachable", 0, 2, 0, 2, 0, 0, 0, 0, "iputils ping", "192.0.2.9", "probe_rejected", ""},
		{"ping-busybox", 2, 0, 0, 0, 17.25, 18, 18, 18.75, "BusyBox ping", "192.0.2.9", "", ""},
		{"ping-bsd", 3, 2, 0, 1, 12.512, 12.8, 12.771, 13.001, "BSD or inetutils ping", "192.0.2.9", "probe_rejected", ""},
		{"ping-comma", 2, 0, 0, 0, 0.073, 6.2865, 6.2865, 12.5, "BSD or inetutils ping", "192.0.2.9", "", ""},
		{"ping-below", 2, 0, 0, 0, 1, 1.5, 1.5, 2, "iputils ping", "192.0.2.9", "time_below", ""},
		{"ping-killed", 2, 1, 0, 0, 10, 15, 15, 20, "iputils ping", "192.0.2.9", "no_closing_line", ""},
	} {
		r := read(t, file(t, tt.name))
		l := primary(t, r, report.Unknown)
		s := r.Series[0]
		if l.N != tt.received || l.Lost != tt.lost || int(s.Tally.Duplicates) != tt.dups || int(s.Tally.Rejected) != tt.rejected {
			t.Errorf("%s: received %d, lost %d, duplicates %d, rejected %d; want %d, %d, %d, %d", tt.name, l.N, l.Lost, s.Tally.Duplicates, s.Tally.Rejected,
				tt.received, tt.lost, tt.dups, tt.rejected)
		}
		for i, v := range []struct {
			got  time.Duration
			want float64
		}{{l.Min, tt.min}, {l.Median, tt.median}, {l.Mean, tt.mean}, {l.Max, tt.max}} {
			if (v.got - ms(v.want)).Abs() > time.Microsecond {
				t.Errorf("%s: figure %d: got %v, want %v ms", tt.name, i, v.got, v.want)
			}
		}
		if r.Source.Program != tt.program || s.Address != tt.address {
			t.Errorf("%s: program %q, address %q", tt.name, r.Source.Program, s.Address)
		}
		codes := ""
		for _, f := range r.Findings {
			codes += f.Code + " "
		}
		if !strings.Contains(codes, tt.findings) || tt.none != "" && strings.Contains(codes, tt.none) {
			t.Errorf("%s: findings %q, want %q and no %q", tt.name, codes, tt.findings, tt.none)
		}
	}
}

func TestPingWithStampsHasTimes(t *testing.T) {
	r, rec, err := ReadRaw(strings.NewReader(file(t, "ping-iputils")))
	if err != nil {
		t.Fatal(err)
	}
	if d := r.Series[0].Interval - time.Second; d.Abs() > time.Microsecond || r.Phases[0].Untimed || !r.Started.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("interval %v, untimed %v, started %v", r.Series[0].Interval, r.Phases[0].Untimed, r.Started)
	}
	if d := rec.Probes[0].Samples[4].Sent - 4*time.Second; d.Abs() > time.Microsecond {
		t.Errorf("probe 4 was sent at %v", rec.Probes[0].Samples[4].Sent)
	}
	r, rec, err = ReadRaw(strings.NewReader(file(t, "ping-lost")))
	if err != nil {
		t.Fatal(err)
	}
	if out := printed(t, func(w io.Writer) error { return r.WriteNDJSON(w, rec) }); !bytes.Contains(out, []byte(`"sent_ns":null`)) || !r.Phases[0].Untimed {
		t.Errorf("times where none are told: %s", out)
	}
}

func TestQuietPingHasNoSamples(t *testing.T) {
	r := read(t, file(t, "ping-quiet"))
	l := primary(t, r, report.Unknown)
	if l.N != 6 || l.Lost != 1 || l.Has(report.Median) || !l.Has(report.Min|report.Mean|report.Max) || l.Mean != ms(15.25) {
		t.Errorf("%+v", l)
	}
	if loss, ok := l.Loss(); !ok || loss < 0.1428 || loss > 0.1429 {
		t.Errorf("loss %v, %v; want 1/7", loss, ok)
	}
}

// 16 bits of icmp_seq start again after 65535.
func TestSequenceNumbersWrap(t *testing.T) {
	var b strings.Builder
	b.WriteString("PING h (192.0.2.9) 56(84) bytes of data.\n")
	for i := 65000; i < 66000; i++ {
		if i == 65536 {
			continue
		}
		b.WriteString("64 bytes from 192.0.2.9: icmp_seq=" + itoa(i%65536) + " ttl=64 time=1.5 ms\n")
	}
	l := primary(t, read(t, b.String()), report.Unknown)
	if l.N != 999 || l.Lost != 64999+1 {
		t.Errorf("received %d, lost %d; want 999 and 65000", l.N, l.Lost)
	}
}

func itoa(i int) string { b, _ := json.Marshal(i); return string(b) }

func TestFping(t *testing.T) {
	r := read(t, file(t, "fping"))
	l := primary(t, r, report.Unknown)
	if l.N != 3 || l.Lost != 1 || l.Min != 73*time.Microsecond || l.Median != ms(23.4) || l.Max != ms(234) {
		t.Errorf("%+v", l.Summary)
	}
	r = read(t, file(t, "fping-plain"))
	if len(r.Series) != 2 || r.Series[0].Address != "2001:db8::9" || r.Phases[0].Latency[1].N != 1 || !r.Phases[0].Untimed {
		t.Errorf("series %+v", r.Series)
	}
	r, rec, err := ReadRaw(strings.NewReader(file(t, "fping-boot")))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Started.IsZero() || r.Length > time.Second || len(rec.Probes[0].Samples) != 3 {
		t.Errorf("started %v, length %v", r.Started, r.Length)
	}
	if d := rec.Probes[0].Samples[1].Sent - 200230*time.Microsecond; d.Abs() > 2*time.Microsecond {
		t.Errorf("the second probe was sent at %v, want 0.20023 s", rec.Probes[0].Samples[1].Sent)
	}
	n := 0
	for _, f := range r.Findings {
		if f.Code == "stamps_from_boot" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d warnings of stamps that count from boot, want one", n)
	}
	if l := primary(t, read(t, file(t, "fping-lost")), report.Unknown); l.N != 0 || l.Lost != 3 {
		t.Errorf("total loss: %+v", l.Summary)
	}
	if l := primary(t, read(t, file(t, "fping-vector")), report.Unknown); l.N != 3 || l.Lost != 1 || l.Max != ms(91.7) {
		t.Errorf("-C: %+v", l.Summary)
	}
	if l := primary(t, read(t, file(t, "fping-quiet")), report.Unknown); l.N != 9 || l.Lost != 1 || l.Has(report.P90) {
		t.Errorf("-q: %+v", l)
	}
}

func TestIRTT(t *testing.T) {
	for _, name := range []string{"irtt-0.9.0", "irtt-0.9.2"} {
		r, rec, err := ReadRaw(strings.NewReader(file(t, name)))
		if err != nil {
			t.Fatal(err)
		}
		c := r.Series[0].Count
		if c.Received != 9 || c.LostDown != 1 || c.LostUp != 1 || c.Lost != 1 {
			t.Errorf("%s: %+v, want 9 received, one lost each way and one unknown", name, c)
		}
		if r.Started.IsZero() || r.Series[0].Interval != 20*time.Millisecond || r.Series[0].DSCP != "CS0" || r.Phases[0].Untimed {
			t.Errorf("%s: started %v, %+v", name, r.Started, r.Series[0])
		}
		if s := rec.Probes[0].Samples[0]; !s.HasOneWay || s.RTT != 90506 || s.Up != 42394 || s.Down != 48112 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// irtt's server forgets what it saw where requests overtake each other: what it then calls upstream loss need not be one.
func TestIRTTUpstreamLossNearReorderingIsOfUnknownDirection(t *testing.T) {
	text := file(t, "irtt-0.9.0")
	var f irttFile
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		t.Fatal(err)
	}
	a, b := &f.Trips[4].Timestamps.Server, &f.Trips[5].Timestamps.Server
	*a, *b = *b, *a
	samples, _, err := f.samples()
	if err != nil {
		t.Fatal(err)
	}
	if n := f.doubtUp(samples); n != 1 || samples[7].Outcome.String() != "lost" || samples[3].Outcome.String() != "lost_down" {
		t.Errorf("%d taken back, %v, %v; want 1, lost, lost_down", n, samples[7].Outcome, samples[3].Outcome)
	}
}

func TestIperf3(t *testing.T) {
	for _, tt := range []struct {
		name     string
		phase    string
		down, up float64
		flows    int
	}{
		{"iperf3-up", "upload", 0, 1310720 * 8 / 1.000605, 1},
		{"iperf3-bidir", "both", 2621440 * 8 / 1.000253, 2621440 * 8 / 1.000253, 2},
		{"iperf3-udp", "download", 1277952 * 8 / 1.000094, 0, 1},
	} {
		r := read(t, file(t, tt.name))
		if len(r.Phases) != 1 || r.Phases[0].Name != tt.phase {
			t.Fatalf("%s: phases %+v", tt.name, r.Phases)
		}
		for _, g := range r.Phases[0].Goodput {
			want := tt.down
			if g.Direction == load.Upload {
				want = tt.up
			}
			if d := float64(g.Rate) - want; d > 1 || d < -1 || len(g.Flows) != tt.flows {
				t.Errorf("%s, %v: %d flows, %v, want %d, %.0f", tt.name, g.Direction, len(g.Flows), g.Rate, tt.flows, want)
			}
		}
		if r.Status() != 0 {
			t.Errorf("%s: status %d", tt.name, r.Status())
		}
	}
}

// Reports 5, 9, 10, 14 and 65: what can't be read is an error with its place, and nothing is half read.
func TestWhatCannotBeReadSaysWhere(t *testing.T) {
	const header = "PING host.example (192.0.2.9) 56(84) bytes of data.\n"
	reply := "64 bytes from 192.0.2.9: icmp_seq=1 ttl=64 time=12.5 ms\n"
	up := file(t, "iperf3-up")
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"nothing":                       {"", []string{"not a result"}},
		"another text":                  {"hello\n", []string{"not a result"}},
		"another JSON":                  {`{"schema":"x"}`, []string{"not a result"}},
		"an odd line":                   {header + reply + "oops\x1b[31m\n", []string{"line 3 (byte 108)", `"oops\x1b[31m"`}},
		"a translated unit":             {header + "64 bytes from 192.0.2.9: icmp_seq=1 ttl=64 \u6642\u9593=12.5\u30df\u30ea\u79d2\n", []string{"line 2"}},
		"a reply without its time":      {header + "64 bytes from 192.0.2.9: icmp_seq=1 ttl=64\n", []string{"line 2"}},
		"a day of delay":                {header + "64 bytes from 192.0.2.9: icmp_seq=1 ttl=64 time=99999999 ms\n", []string{"line 2", "no time"}},
		"a contradiction":               {header + reply + "1 packets transmitted, 1 received, 50% packet loss, time 0ms\n", []string{"contradicts"}},
		"lines are missing":             {header + reply + "9 packets transmitted, 9 received, 0% packet loss, time 8000ms\n", []string{"not whole"}},
		"two pings":                     {header + reply + header, []string{"line 3", "second ping"}},
		"unknown host":                  {"ping: host.example: Name or service not known\n" + header, []string{"ping itself failed"}},
		"an odd suffix":                 {header + strings.TrimSuffix(reply, "\n") + " (ODD!)\n", []string{"brackets"}},
		"fping's new form":              {"host : [0], 64 bytes, 1.2 ms (1.2 avg, 0% loss)\nhost : [1] 64 octets in 3 ms\n", []string{"line 2", "fping"}},
		"iperf3: nan":                   {strings.Replace(up, `"bytes": 1310720`, `"bytes": -nan`, 1), []string{"byte ", "nan"}},
		"iperf3: blank exponent":        {strings.Replace(up, `"bytes": 1310720`, `"bytes": 7.5e 06`, 1), []string{"byte ", `7.5e 06`}},
		"iperf3: an error after":        {up + "\niperf3: error - unable to receive results\n", []string{"iperf3 ended with an error"}},
		"iperf3: twice":                 {up + up, []string{"second JSON document"}},
		"iperf3: cut":                   {up[:len(up)*7/10], []string{"cut off"}},
		"iperf3: a key twice":           {strings.Replace(up, `"sum_sent":`, `"sum_received":`, 1), []string{`"sum_received"`, "twice"}},
		"iperf3: a key in another case": {strings.Replace(up, `"sum_sent":`, `"Sum_Received":`, 1), []string{`"sum_received"`, "twice"}},
		"iperf3: refused":               {`{"start":{},"intervals":[],"end":{},"error":"unable to connect to server: Connection refused"}`, []string{"Connection refused"}},
		"iperf3: a wrong sum":           {strings.Replace(up, `"bytes": 1310720`, `"bytes": 9`, 1) /* an interval: no matter */, nil},
		"irtt: gap":                     {strings.Replace(file(t, "irtt-0.9.0"), `"seqno": 5`, `"seqno": 6`, 1), []string{"some are missing"}},
		"irtt: odd loss":                {strings.Replace(file(t, "irtt-0.9.0"), `"true_up"`, `"maybe"`, 1), []string{`"maybe"`}},
		"speedtest: prose":              {"As I wrote,\n Download: 24.6 Mbps\n", []string{"line 1", `"As I wrote,"`}},
		"speedtest: twice":              {file(t, "idle") + file(t, "idle"), []string{"second"}},
		"speedtest: disorder":           {strings.Replace(file(t, "seed1-pie-a"), "55.721", "5.721", 1), []string{"contradict", "Max"}},
	} {
		_, err := Read(strings.NewReader(tt.text))
		if tt.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: it was read", name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in %q", name, want, err)
			}
		}
		if strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%s: control characters in %q", name, err)
		}
	}
}

func TestUnknownTextIsErrUnknown(t *testing.T) {
	for _, text := range []string{"", "hello\n", `{"a":1}`} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, ErrUnknown) && text != "" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestGzipAndByteOrderMark(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte("\xef\xbb\xbf" + file(t, "ping-lost")))
	_ = z.Close()
	if l := primary(t, read(t, b.String()), report.Unknown); l.Lost != 2 {
		t.Errorf("lost %d, want 2", l.Lost)
	}
	if r := read(t, strings.ReplaceAll(file(t, "ping-lost"), "\n", "\r\n")); r.Series[0].Count.Lost != 2 {
		t.Errorf("with CRLF: %+v", r.Series[0].Count)
	}
}

// fuzz reads any text and holds what comes out to what every result promises.
func fuzz(f *testing.F, prefix string) {
	all, _ := filepath.Glob("testdata/" + prefix + "*.in")
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s := schema(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rec, err := ReadRaw(bytes.NewReader(b))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x1b\x00") || len(err.Error()) > 4000 {
				t.Errorf("an error that steers or floods a terminal: %q", err)
			}
			return
		}
		for i := range r.Phases {
			for j := range r.Phases[i].Latency {
				checkLatency(t, &r.Phases[i].Latency[j])
			}
		}
		for _, write := range []func(io.Writer) error{r.WriteSpeedtest, r.WriteTable, r.WriteMarkdown, r.WriteCSV, r.WriteOpenMetrics} {
			if out := printed(t, write); bytes.ContainsAny(out, "\x1b\x00") {
				t.Errorf("control characters in %q", out)
			}
		}
		if rec != nil {
			printed(t, func(w io.Writer) error { return r.WriteNDJSON(w, rec) })
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(printed(t, r.WriteJSON)))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); err != nil {
			t.Error(err)
		}
	})
}

func checkLatency(t *testing.T, l *report.Latency) {
	t.Helper()
	if l.N < 0 || l.Lost < 0 {
		t.Errorf("n %d, lost %d", l.N, l.Lost)
	}
	if loss, ok := l.Loss(); ok && (loss < 0 || loss > 1) {
		t.Errorf("loss %v", loss)
	}
	var last time.Duration
	for _, f := range []struct {
		f report.Figures
		v time.Duration
	}{{report.Min, l.Min}, {report.P10, l.P10}, {report.Median, l.Median}, {report.P90, l.P90}, {report.Max, l.Max}} {
		if l.Has(f.f) {
			if f.v < last {
				t.Errorf("figures out of order: %+v", l.Summary)
			}
			last = f.v
		}
	}
	if l.Has(report.Min|report.Mean|report.Max) && (l.Mean < l.Min || l.Mean > l.Max) {
		t.Errorf("mean out of range: %+v", l.Summary)
	}
}

func FuzzSpeedtest(f *testing.F) { fuzz(f, "[bnosi]*") }
func FuzzPing(f *testing.F)      { fuzz(f, "ping") }
func FuzzFping(f *testing.F)     { fuzz(f, "fping") }
func FuzzIRTT(f *testing.F)      { fuzz(f, "irtt") }
func FuzzIperf3(f *testing.F)    { fuzz(f, "iperf3") }
