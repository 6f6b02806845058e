package flent

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report"
)

const ms = time.Millisecond

// shape describes a recording of one of flent's tests.
type shape struct {
	test   string
	flows  []string
	probes []string // the name says the kind
}

func both(names ...string) (out []string) {
	for _, n := range names {
		out = append(out, "TCP upload "+n, "TCP download "+n)
	}
	return out
}

// shapes are tests of the catalogue with the series that flent looks for.
func shapes() []shape {
	pings := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, "Ping (ms) "+n)
		}
		return out
	}
	return []shape{
		{"rrul", both("BE", "BK", "CS5", "EF"), pings("UDP EF", "UDP BK", "UDP BE", "ICMP")},
		{"rrul_be", both("BE", "BE2", "BE3", "BE4"), pings("UDP BE1", "UDP BE2", "UDP BE3", "ICMP")},
		{"rrul_be_nflows", []string{"upload 1", "upload 2", "upload 3", "download 1", "download 2"}, pings("UDP BE", "ICMP")},
		{"rrul_noclassification", both("BE", "BE2", "BE3", "BE4"), pings("UDP EF", "UDP BK", "UDP BE", "ICMP")},
		{"tcp_nup", []string{"upload 1", "upload 2", "upload 3"}, pings("ICMP")},
		{"tcp_ndown", []string{"download 1", "download 2"}, pings("ICMP")},
		{"tcp_download", []string{"download 1"}, pings("ICMP")},
		{"tcp_upload", []string{"TCP upload"}, pings("ICMP")},
		{"tcp_bidirectional", []string{"upload 1", "download 1"}, pings("ICMP")},
		{"ping", nil, pings("ICMP", "UDP")},
	}
}

// recording makes a run of 20 s with 10 s of load, with losses and gaps.
func (s shape) recording(rnd *rand.Rand) *bufferbloat.Recording {
	rec := &bufferbloat.Recording{Version: "v1.0", Started: time.Date(2026, 11, 30, 15, 0, 0, 123456789, time.UTC), Ended: 20 * time.Second,
		Plan:   bufferbloat.Plan{Name: s.test, Server: bufferbloat.Server{Host: "192.0.2.1", NetperfPort: 12865, IRTTPort: 2112}},
		Path:   bufferbloat.Path{Host: "192.0.2.1", Address: "192.0.2.1", Family: "IPv4", Stack: "kernel", Setup: 20 * ms},
		Client: bufferbloat.HostFacts{OS: "linux", Arch: "amd64", Kernel: "6.18", CPUs: 2}}
	rec.CPU = bufferbloat.CPUSeries{Available: true, Samples: []bufferbloat.CPUSample{{At: time.Second, Busy: []float64{0.25, 0.5}, Own: 0.125}}}
	rec.Findings = []bufferbloat.Finding{{Code: "test", Severity: bufferbloat.Note, Text: "a \"quoted\" line"}}
	from, to := 5*time.Second, 15*time.Second
	phase := func(name string, kind bufferbloat.PhaseKind, start, end time.Duration) {
		rec.Phases = append(rec.Phases, bufferbloat.Phase{Name: name, Kind: kind, Start: start, End: end, From: start, To: end})
		rec.Plan.Phases = append(rec.Plan.Phases, bufferbloat.PhasePlan{Name: name, Kind: kind, Length: end - start})
	}
	if len(s.flows) > 0 {
		phase("idle", bufferbloat.Idle, 0, from)
		phase("both", bufferbloat.Load, from, to)
		phase("after", bufferbloat.After, to+time.Second, rec.Ended)
	} else {
		phase("idle", bufferbloat.Idle, 0, rec.Ended)
	}
	for i, name := range s.probes {
		p := bufferbloat.ProbeSeries{Name: name, Kind: "icmp", Target: "192.0.2.1", Interval: 100 * ms, DSCP: "CS0", Primary: i == len(s.probes)-1}
		if strings.Contains(name, "UDP") {
			p.Kind = "irtt"
		}
		for seq := range uint64(rec.Ended / (100 * ms)) {
			p.Samples = append(p.Samples, sample(rnd, p.Kind, seq))
		}
		p.Tally.Duplicates = 3
		rec.Probes = append(rec.Probes, p)
	}
	for i, name := range s.flows {
		f := bufferbloat.Flow{Name: name, Phase: "both", Started: from, Direction: load.Download}
		by := load.CountedByReads
		if strings.Contains(name, "upload") {
			f.Direction, by = load.Upload, load.CountedByServer
		}
		at, total := from+time.Duration(i+1)*ms, uint64(1448)
		for ; at <= to; at += 100*ms + time.Duration(rnd.Int64N(1000)) {
			f.Points = append(f.Points, bufferbloat.Point{At: at, Bytes: total})
			total += 50_000 + rnd.Uint64N(10_000)
		}
		last := f.Points[len(f.Points)-1]
		f.Result = bufferbloat.FlowResult{Bytes: last.Bytes, CountedBy: by, Connected: from, First: f.Points[0].At, Last: last.At, Stopped: to, Flowed: true,
			Retransmits: 7, HasRetransmits: true, CongestionControl: "cubic"}
		rec.Flows = append(rec.Flows, f)
	}
	return rec
}

// sample is one with an outcome of any kind, most of them received.
func sample(rnd *rand.Rand, kind string, seq uint64) probe.Sample {
	due := time.Duration(seq) * 100 * ms
	s := probe.Sample{Seq: seq, Due: due, Sent: due + time.Duration(rnd.Int64N(int64(ms))), Outcome: probe.Received, Stamp: host.KernelStamp,
		RTT: 20*ms + time.Duration(rnd.Int64N(int64(80*ms)))}
	if o := probe.Outcome(rnd.IntN(60)); o >= probe.Received && o <= probe.Invalid {
		s.Outcome = o
	}
	if !s.Outcome.HasRTT() {
		s.RTT, s.Stamp = 0, 0
	} else if kind == "irtt" {
		s.Up, s.Down, s.HasOneWay = time.Duration(rnd.Int64N(int64(ms)))-ms/2, s.RTT/2, true
	}
	if s.Outcome == probe.Unsent {
		s.Sent = s.Due
	}
	return s
}

func written(t testing.TB, rec *bufferbloat.Recording) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, rec); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWhatIsWrittenIsReadBackToTheNanosecond(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, s := range shapes() {
		want := s.recording(rnd)
		if s.test == "ping" {
			want.Started = time.Time{} // a run in virtual time has no date
		}
		got, err := Read(bytes.NewReader(written(t, want)))
		if err != nil {
			t.Errorf("%s: %v", s.test, err)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			for i := range want.Probes {
				for j := range want.Probes[i].Samples {
					if a, b := got.Probes[i].Samples[j], want.Probes[i].Samples[j]; a != b {
						t.Errorf("%s, %s: sample %+v came back as %+v", s.test, want.Probes[i].Name, b, a)
						break
					}
				}
			}
			got.Probes, want.Probes = nil, nil
			t.Errorf("%s: got %+v\nwant %+v", s.test, got, want)
		}
	}
}

func TestTheReportOfAFileIsTheReportOfItsRecording(t *testing.T) {
	rec := shapes()[0].recording(rand.New(rand.NewPCG(3, 4)))
	back, err := Read(bytes.NewReader(written(t, rec)))
	if err != nil {
		t.Fatal(err)
	}
	var got, want bytes.Buffer
	if err := errors.Join(report.New(back).WriteJSON(&got), report.New(rec).WriteJSON(&want)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("got %s\nwant %s", &got, &want)
	}
}

// minimal is a file of version 4 by its parts.
func minimal(version, results, raw, x string) string {
	return fmt.Sprintf(`{"metadata":{"NAME":"t","T0":"2023-11-14T22:13:20.000000Z","LENGTH":60,"TOTAL_LENGTH":70,"STEP_SIZE":0.2,"HOST":"srv","SERIES_META":{}},
"raw_values":%s,"results":%s,"version":%s,"x_values":%s}`, raw, results, version, x)
}

func TestBadFilesAreRefusedAtOnceWithTheirPlace(t *testing.T) {
	good := minimal("4", `{"Ping (ms) ICMP":[1.5,null]}`, `{"Ping (ms) ICMP":[{"t":1700000000.5,"seq":1,"val":1.5}]}`, "[0,0.2]")
	if _, err := Read(strings.NewReader(good)); err != nil {
		t.Fatalf("the file that the others are made from: %v", err)
	}
	zip := func(r io.Reader) []byte {
		var b bytes.Buffer
		gz, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		_, _ = io.Copy(gz, r)
		gz.Close()
		return b.Bytes()
	}
	zipped := zip(strings.NewReader(good))
	bomb := func(before, unit string) io.Reader {
		return io.MultiReader(strings.NewReader(before), &repeated{unit: unit, left: 80 << 20})
	}
	for _, c := range []struct {
		name, want string
		r          io.Reader
	}{
		{"an empty file", "empty", strings.NewReader("")},
		{"no JSON", "want {", strings.NewReader("PING 192.0.2.1")},
		{"a newer version", "version 5", strings.NewReader(minimal("5", `{}`, `{}`, "[]"))},
		{"a newer version whose samples have another form", "version 7", strings.NewReader(minimal("7", `{"a":{"b":1}}`, `{"a":"binary","b":[[1,2]]}`, "{}"))},
		{"gzip cut after 70%", "cut off", bytes.NewReader(zipped[:len(zipped)*7/10])},
		{"text cut after 70%", "ends", strings.NewReader(good[:len(good)*7/10])},
		{"a gzip header and no more", "cut off", bytes.NewReader(zipped[:5])},
		{"a damaged gzip", "", bytes.NewReader(damaged(zipped))},
		{"a series shorter than the time axis", `"Ping (ms) ICMP" has 1 values on a grid of 2`, strings.NewReader(minimal("4", `{"Ping (ms) ICMP":[1]}`, `{}`, "[0,0.2]"))},
		{"a series longer than the time axis", "has 3 values", strings.NewReader(minimal("4", `{"a":[1,2,3]}`, `{}`, "[0,0.2]"))},
		{"an axis that runs backwards", "x_values", strings.NewReader(minimal("4", `{}`, `{}`, "[0.2,0]"))},
		{"an axis with a gap", "x_values", strings.NewReader(minimal("4", `{}`, `{}`, "[0,null]"))},
		{"a number that is none", "want null", strings.NewReader(minimal("4", `{"a":[nan]}`, `{}`, "[0]"))},
		{"NaN as Python writes it", `'N': want a number`, strings.NewReader(minimal("4", `{}`, `{"a":[{"t":1,"val":NaN}]}`, "[]"))},
		{"a number out of range", "out of range", strings.NewReader(minimal("4", `{"a":[1e999]}`, `{}`, "[0]"))},
		{"a time out of range", "a time", strings.NewReader(minimal("4", `{}`, `{"a":[{"t":1e300,"val":1}]}`, "[]"))},
		{"a run of a thousand years", "outside", strings.NewReader(minimal("4", `{}`, `{"a":[{"t":1,"val":1},{"t":9000000000,"val":1}]}`, "[]"))},
		{"the same series twice", `"a" comes twice`, strings.NewReader(minimal("4", `{"a":[1],"a":[2]}`, `{}`, "[0]"))},
		{"the same field twice", "field twice", strings.NewReader(minimal("4", `{}`, `{"a":[{"t":1,"val":1,"val":2}]}`, "[]"))},
		{"results that are no object", "results", strings.NewReader(minimal("4", `[]`, `{}`, "[]"))},
		{"samples that are no objects", "a raw sample", strings.NewReader(minimal("4", `{}`, `{"a":[1,2]}`, "[]"))},
		{"something after the end", "after the end", strings.NewReader(good + "{}")},
		{"no results", "no results", strings.NewReader(`{"metadata":{},"x_values":[]}`)},
		{"nesting without end", "nested", strings.NewReader(`{"a":` + strings.Repeat("[", 1_000_000))},
		{"a string without end", "string", bomb(`{"a":"`, "aaaaaaaa")},
		{"a bomb of white space", "white space", bomb("{", "        ")},
		{"a bomb in gzip", "white space", bytes.NewReader(zip(io.MultiReader(strings.NewReader("{"), &repeated{unit: " ", left: 4 << 20})))},
		{"a bomb of nulls", "more than", bomb(`{"results":{"a":[null`, ",null")},
		{"a bomb of samples", "more than", bomb(`{"raw_values":{"a":[{"t":1}`, `,{"t":1}`)},
		{"a bomb of keys", "comes twice", bomb(`{"raw_values":{`, `"a":[],`)},
	} {
		began := time.Now()
		rec, err := Read(c.r)
		if err == nil {
			t.Errorf("%s: read as %+v", c.name, rec)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q does not say %q", c.name, err, c.want)
		}
		t.Logf("%s: %v: %.200v", c.name, time.Since(began).Round(ms), err)
	}
}

func damaged(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)/2] ^= 0x55
	return b
}

// repeated is a text of one unit over and over.
type repeated struct {
	unit string
	left int
	at   int
}

func (r *repeated) Read(b []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	n := min(len(b), r.left)
	for i := range n {
		b[i] = r.unit[(r.at+i)%len(r.unit)]
	}
	r.left -= n
	r.at += n
	return n, nil
}

func TestErrorsCanBeToldApart(t *testing.T) {
	_, err := Read(strings.NewReader(minimal("9", `{}`, `{}`, "[]")))
	if v := (*VersionError)(nil); !errors.As(err, &v) || v.Version != 9 {
		t.Errorf("a file of version 9 gives %v, want a VersionError", err)
	}
	_, err = Read(strings.NewReader(`{"metadata":{"NAME":12`))
	if f := (*FormatError)(nil); !errors.As(err, &f) || f.Offset != 22 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut file gives %v, want a FormatError at byte 22 that is io.ErrUnexpectedEOF", err)
	}
}

// read reads a file that must be good.
func read(t *testing.T, text string) *bufferbloat.Recording {
	t.Helper()
	rec, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func rtts(s bufferbloat.ProbeSeries) (out []time.Duration) {
	for _, x := range s.Samples {
		if x.Outcome.HasRTT() {
			out = append(out, x.RTT)
		}
	}
	return out
}

func TestOldVersionsAreBroughtToTheUnitsOfTheNewest(t *testing.T) {
	udp := `{"Ping (ms) UDP":[{"t":1700000000.5,"dur":0.2,"val":50},{"t":1700000000.7,"dur":0.2,"val":0}]}`
	web := `{"HTTP latency":[{"t":1700000000.5,"val":0.25}]}`
	drops := `{"qdisc_stats_h":[{"t":1700000000,"dropped":10,"sent_bytes":5},{"t":1700000001,"dropped":14,"sent_bytes":6}]}`
	for _, c := range []struct {
		name, version, raw string
		look               func(*bufferbloat.Recording) any
		want               any
	}{
		{"version 3 has transactions per second, and none is no time", "3", udp, func(r *bufferbloat.Recording) any { return rtts(r.Probes[0]) }, []time.Duration{20 * ms}},
		{"version 4 has ms", "4", udp, func(r *bufferbloat.Recording) any { return rtts(r.Probes[0]) }, []time.Duration{50 * ms, 0}},
		{"a version that is no number is the first", `"x"`, udp, func(r *bufferbloat.Recording) any { return rtts(r.Probes[0]) }, []time.Duration{20 * ms}},
		{"version 2 has pages in seconds", "2", web, func(r *bufferbloat.Recording) any { return rtts(r.Probes[0]) }, []time.Duration{250 * ms}},
		{"version 4 has pages in ms", "4", web, func(r *bufferbloat.Recording) any { return rtts(r.Probes[0]) }, []time.Duration{250 * time.Microsecond}},
		{"version 3 counts drops from the start", "3", drops, func(r *bufferbloat.Recording) any { return r.Others[0].Values }, []float64{0, 4}},
		{"version 4 counts drops from the sample before", "4", drops, func(r *bufferbloat.Recording) any { return r.Others[0].Values }, []float64{10, 14}},
		{"bytes are counted the same in all", "3", drops, func(r *bufferbloat.Recording) any { return r.Others[1].Values }, []float64{5, 6}},
	} {
		rec := read(t, minimal(c.version, `{}`, c.raw, "[]"))
		if got := c.look(rec); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestVersion1HasItsRawSamplesAmongTheMetadata(t *testing.T) {
	rec := read(t, `{"x_values":[0],"results":{"Ping (ms) ICMP":[3]},"metadata":{"NAME":"ping","NETPERF_WRAPPER_VERSION":"0.5","T0":"2023-11-14T23:13:20.000000",
		"SERIES_META":{"Ping (ms) ICMP":{"RAW_VALUES":[{"t":1700000000.1,"val":1.25,"seq":1},{"t":1700000000.2,"val":2.5,"seq":2}]}}}}`)
	if got := rtts(rec.Probes[0]); !reflect.DeepEqual(got, []time.Duration{1250 * time.Microsecond, 2500 * time.Microsecond}) {
		t.Errorf("RTTs %v, want those of the raw samples", got)
	}
	if rec.Source == nil || rec.Source.Program != "flent 0.5" {
		t.Errorf("source %+v, want flent 0.5", rec.Source)
	}
}

func TestTheGridIsTakenOnlyWhereThereIsNothingElseAndItsNullsAreGaps(t *testing.T) {
	rec := read(t, minimal("4", `{"Ping (ms) ICMP":[null,7,null,8]}`, `{}`, "[0,0.2,0.4,0.6]"))
	p := rec.Probes[0]
	if got := rtts(p); !reflect.DeepEqual(got, []time.Duration{7 * ms, 8 * ms}) || len(p.Samples) != 2 {
		t.Errorf("%d samples with RTTs %v, want the two values and nothing for the nulls", len(p.Samples), got)
	}
	if p.NoLoss == "" || !has(rec, "flent_grid") {
		t.Errorf("nothing says that the values are interpolated: %+v", rec.Findings)
	}
	rec = read(t, minimal("4", `{"Ping (ms) ICMP":[null,7,null,8]}`, `{"Ping (ms) ICMP":[{"t":1700000000,"seq":1,"val":9}]}`, "[0,0.2,0.4,0.6]"))
	if got := rtts(rec.Probes[0]); !reflect.DeepEqual(got, []time.Duration{9 * ms}) {
		t.Errorf("RTTs %v, want the raw one", got)
	}
}

func has(rec *bufferbloat.Recording, code string) bool {
	for _, f := range rec.Findings {
		if f.Code == code {
			return true
		}
	}
	return false
}

func TestProbesThatLeftNoTraceAreLost(t *testing.T) {
	raw := func(seqs ...int) string {
		var out []string
		for _, s := range seqs {
			out = append(out, fmt.Sprintf(`{"t":%.1f,"seq":%d.0,"val":10}`, 1700000000+float64(s)*0.2, s))
		}
		return `{"Ping (ms) ICMP":[` + strings.Join(out, ",") + `]}`
	}
	for _, c := range []struct {
		name             string
		raw              string
		received, lost   int
		duplicates       uint64
		findsNumbersJump bool
	}{
		{"none lost, counted from 0", raw(0, 1, 2), 3, 0, 0, false},
		{"none lost, counted from 1", raw(1, 2, 3), 3, 0, 0, false},
		{"2 of 5 in the middle", raw(1, 2, 5), 3, 2, 0, false},
		{"2 of 5 at the start", raw(3, 4, 5), 3, 2, 0, false},
		{"a reply twice", raw(1, 2, 2, 3), 3, 0, 1, false},
		{"out of order", raw(2, 1, 3), 3, 0, 0, false},
		{"numbers that jump", `{"Ping (ms) ICMP":[{"t":1700000000,"seq":1,"val":10},{"t":1700000000.2,"seq":9007199254740000,"val":10}]}`, 2, 0, 0, true},
		{"a counter that began elsewhere", `{"Ping (ms) ICMP":[{"t":1700000000,"seq":60000,"val":10}]}`, 1, 0, 0, false},
	} {
		rec := read(t, minimal("4", `{}`, c.raw, "[]"))
		received, lost := 0, 0
		for _, s := range rec.Probes[0].Samples {
			if s.Outcome.HasRTT() {
				received++
			}
			if s.Outcome.IsLost() {
				lost++
			}
		}
		if received != c.received || lost != c.lost || rec.Probes[0].Tally.Duplicates != c.duplicates || has(rec, "flent_sequence") != c.findsNumbersJump {
			t.Errorf("%s: %d received, %d lost, %d duplicates, findings %v", c.name, received, lost, rec.Probes[0].Tally.Duplicates, rec.Findings)
		}
	}
}

func TestASeriesThatCountsTimeFromElsewhereIsMovedAndNamed(t *testing.T) {
	rec := read(t, minimal("4", `{}`, `{"Ping (ms) ICMP":[{"t":86412.5021,"seq":1,"val":1},{"t":86412.7021,"seq":2,"val":1}],
		"TCP download":[{"t":1700000001,"dur":1,"val":8},{"t":1700000002,"dur":1,"val":8}]}`, "[]"))
	s := rec.Probes[0].Samples
	if gap := s[1].Sent - s[0].Sent; gap != 200*ms {
		t.Errorf("the samples are %v apart, want 200ms", gap)
	}
	if rec.Ended > 5*time.Second || !has(rec, "flent_clock") {
		t.Errorf("the run lasts %v with findings %v, want about 2 s and one about the clock", rec.Ended, rec.Findings)
	}
}

func TestUnknownSeriesAreKeptByName(t *testing.T) {
	rec := read(t, minimal("4", `{"Teapot temperature":[90.5,null],"Wind":[null,null]}`,
		`{"Teapot":[{"t":1700000000,"lid":1},{"t":1700000001,"lid":0,"state":"open"}]}`, "[0,0.2]"))
	var got []string
	for _, q := range rec.Others {
		got = append(got, fmt.Sprintf("%s %v %v", q.Name, q.Values, q.Resampled))
	}
	want := []string{"Teapot::lid [1 0] false", "Teapot temperature [90.5] true", "Wind [] true"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("further series %q, want %q", got, want)
	}
	var text bytes.Buffer
	if err := report.New(rec).WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Teapot::lid", "Teapot temperature", "Wind"} {
		if !strings.Contains(text.String(), name) {
			t.Errorf("the table does not show %q:\n%s", name, &text)
		}
	}
}

func TestRatesAreIntegratedOverTheirOwnIntervals(t *testing.T) {
	rec := read(t, minimal("4", `{}`, `{"TCP download":[{"t":1700000001,"dur":1,"val":8},{"t":1700000001.5,"dur":0.5,"val":80},{"t":1700000003,"dur":1,"val":16}]}`, "[]"))
	f := rec.Flows[0]
	want := []bufferbloat.Point{{At: 0}, {At: time.Second, Bytes: 1e6}, {At: 1500 * ms, Bytes: 6e6}, {At: 2 * time.Second, Bytes: 6e6}, {At: 3 * time.Second, Bytes: 8e6}}
	if !reflect.DeepEqual(f.Points, want) {
		t.Errorf("points %v, want %v", f.Points, want)
	}
	if f.Result.Warning == "" {
		t.Error("nothing says that half a second is missing between its intervals")
	}
	if f.Result.CountedBy != load.NotCounted {
		t.Errorf("counted by %v, though the file does not say who measured", f.Result.CountedBy)
	}
}

func TestLostProbesOfIRTTKeepTheirDirection(t *testing.T) {
	rec := read(t, minimal("4", `{}`, `{"Ping (ms) UDP BE":[{"t":1700000000.03,"seq":0,"val":30,"owd_up":-5.5,"owd_down":35.5},{"t":1700000000.2,"seq":1,"lost":true,"lost_dir":"up"},
		{"t":1700000000.4,"seq":2,"lost":true,"lost_dir":"down"},{"t":1700000000.6,"seq":3,"lost":true,"lost_dir":null}]}`, "[]"))
	var got []probe.Outcome
	for _, s := range rec.Probes[0].Samples {
		got = append(got, s.Outcome)
	}
	if want := []probe.Outcome{probe.Received, probe.LostUp, probe.LostDown, probe.Lost}; !reflect.DeepEqual(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	if s := rec.Probes[0].Samples[0]; !s.HasOneWay || s.Up != -5500*time.Microsecond || s.Down != 35500*time.Microsecond || s.Sent != 0 {
		t.Errorf("first sample %+v", s)
	}
}

func TestNumbersAreReadAsTheStandardLibraryReadsThem(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		v := math.Float64frombits(rnd.Uint64())
		if !finite(v) {
			continue
		}
		text := fmt.Sprintf([]string{"%v", "%.3f", "%e", "%.17g"}[rnd.IntN(4)], v)
		if len(text) >= maxNumber {
			continue
		}
		var want float64
		if _, err := fmt.Sscan(text, &want); err != nil {
			t.Fatal(err)
		}
		s := newScanner(strings.NewReader(text + " "))
		got, err := s.number().float()
		if err != nil || s.err != nil || got != want {
			t.Errorf("%s is read as %v (%v, %v)", text, got, err, s.err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(minimal("4", `{"Ping (ms) ICMP":[1.5,null]}`, `{"Ping (ms) ICMP":[{"t":1700000000.5,"seq":1,"val":1.5}],"TCP upload":[{"t":1700000001,"dur":1,"val":8}]}`, "[0,0.2]")))
	f.Add([]byte(minimal("3", `{"TCP upload sum":[1]}`, `{"Ping (ms) UDP":[{"t":1,"dur":142.34,"val":0.01}],"qdisc_stats_x":[{"t":1,"dropped":2}]}`, "[0]")))
	small := shape{"rrul", []string{"TCP upload BE", "TCP download BE"}, []string{"Ping (ms) UDP BE"}}.recording(rand.New(rand.NewPCG(7, 8)))
	small.Probes[0].Samples = small.Probes[0].Samples[:20]
	for i := range small.Flows {
		small.Flows[i].Points = small.Flows[i].Points[:5]
	}
	zipped := written(f, small)
	gz, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		f.Fatal(err)
	}
	text, err := io.ReadAll(gz)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(zipped)
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		// What is read holds to the rules of a recording, prints, and comes back from a file of ours as it was.
		var first, second bytes.Buffer
		if err := report.New(rec).WriteJSON(&first); err != nil {
			t.Fatal(err)
		}
		if rec.Ended > time.Hour {
			return // its grid would be most of the work
		}
		back, err := Read(bytes.NewReader(written(t, rec)))
		if err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
		if err := report.New(back).WriteJSON(&second); err != nil {
			t.Fatal(err)
		}
		if len(back.Probes) != len(rec.Probes) || len(back.Flows) != len(rec.Flows) || len(back.Others) != len(rec.Others) {
			t.Errorf("%d probes, %d flows and %d further series came back as %d, %d and %d", len(rec.Probes), len(rec.Flows), len(rec.Others),
				len(back.Probes), len(back.Flows), len(back.Others))
		}
		for i := range rec.Probes {
			if a, b := rec.Probes[i].Samples, back.Probes[i].Samples; len(a) != len(b) {
				t.Errorf("%d samples came back as %d", len(a), len(b))
			}
		}
	})
}
