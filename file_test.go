package bufferbloat

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// record writes a small run of every kind of entry and returns it with its file.
func record(t *testing.T, whole bool) (*Recording, []byte) {
	t.Helper()
	var file bytes.Buffer
	r := newRecorder(time.Time{}, &file)
	plan := Speedtest(SpeedtestOptions{Server: Server{Host: "192.0.2.1", NetperfPort: 12865, IRTTPort: 2112},
		Idle: time.Second, Length: time.Second, Streams: 1, Interval: 100 * time.Millisecond, Probe: Auto})
	r.put(&entry{Head: &head{Schema: FileSchema, Version: "test", Started: time.Unix(1e9, 0).UTC(), Plan: plan}})
	r.put(&entry{Phase: &Phase{Name: "idle", Kind: Idle}})
	r.put(&entry{Series: &ProbeSeries{Name: "icmp", Kind: "icmp", Primary: true, Interval: 100 * time.Millisecond}})
	ms := time.Millisecond
	r.sample("icmp", probe.Sample{Seq: 1, Due: 100 * ms, Sent: 101 * ms, Outcome: probe.Received, RTT: 12 * ms, Stamp: host.KernelStamp})
	r.sample("icmp", probe.Sample{Seq: 0, Due: 0, Sent: ms, Outcome: probe.Lost})
	r.flush()
	r.put(&entry{Phase: &Phase{Name: "idle", Kind: Idle, End: time.Second, To: time.Second}})
	r.put(&entry{Phase: &Phase{Name: "download", Kind: Load, Start: time.Second}})
	r.put(&entry{Flow: &Flow{Name: "download 1", Phase: "download", Direction: load.Download, Started: time.Second}})
	r.point("download 1", Point{1100 * ms, 1000})
	r.point("download 1", Point{1200 * ms, 2000})
	r.cpuSample(CPUSample{At: time.Second, Busy: []float64{0.5, 0.25}, Own: 0.1})
	r.quantity("queue::backlog_bytes", "bytes", 1100*ms, 1514)
	r.quantityOf("download 1", "download 1::tcp_rtt", "ms", 1100*ms, 12.5)
	r.quantity("queue::backlog_bytes", "bytes", 1200*ms, math.NaN()) // not known then
	r.sample("icmp", probe.Sample{Seq: 2, Due: 200 * ms, Sent: 201 * ms, Outcome: probe.Received, RTT: ms, Up: -5 * ms, Down: 6 * ms, HasOneWay: true})
	r.flush()
	r.quantity("queue::backlog_bytes", "bytes", 1300*ms, -0.5)
	if !whole {
		cut, err := r.finish()
		if err != nil {
			t.Fatal(err)
		}
		return cut, file.Bytes()
	}
	r.put(&entry{FlowEnd: &flowEnd{Flow: "download 1", Result: FlowResult{Bytes: 3000, CountedBy: load.CountedByReads, Flowed: true, Stopped: 2 * time.Second}}})
	r.put(&entry{Phase: &Phase{Name: "download", Kind: Load, Start: time.Second, End: 2 * time.Second, From: 1100 * ms, To: 2 * time.Second}})
	r.put(&entry{SeriesEnd: &seriesEnd{Series: "icmp", Tally: probe.Tally{Duplicates: 2}}})
	r.put(&entry{Finding: &Finding{Code: "test", Severity: Note, Text: "a line"}})
	r.put(&entry{End: &end{Ended: 2 * time.Second, Stopped: "interrupted"}})
	rec, err := r.finish()
	if err != nil {
		t.Fatal(err)
	}
	return rec, file.Bytes()
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	want, file := record(t, true)
	got, err := ReadRecording(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if s := got.Probes[0].Samples; len(s) != 3 || s[0].Seq != 0 || s[2].Up != -5*time.Millisecond {
		t.Errorf("samples %+v are not the three in order of their sequence", s)
	}
	ms := time.Millisecond
	if want := []Quantity{
		{Name: "queue::backlog_bytes", Unit: "bytes", At: []time.Duration{1100 * ms, 1300 * ms}, Values: []float64{1514, -0.5}},
		{Name: "download 1::tcp_rtt", Unit: "ms", Flow: "download 1", At: []time.Duration{1100 * ms}, Values: []float64{12.5}},
	}; !reflect.DeepEqual(got.Others, want) {
		t.Errorf("got the quantities %+v, want %+v", got.Others, want)
	}
}

func TestACutFileGivesWhatItHolds(t *testing.T) {
	_, file := record(t, false)
	whole := len(file)
	complete := 0
	for n := range whole {
		got, err := ReadRecording(bytes.NewReader(file[:n]))
		if err != nil {
			if fe := (*FileError)(nil); !errors.As(err, &fe) {
				t.Fatalf("cut after %d bytes: %v is no FileError", n, err)
			}
			continue
		}
		if !got.Truncated {
			t.Fatalf("cut after %d of %d bytes, and not marked as truncated", n, whole)
		}
		if len(got.Flows) == 1 && len(got.Flows[0].Points) == 2 {
			complete++
			if p := got.Phases[1]; p.From != 1100*time.Millisecond || p.To != 1200*time.Millisecond || p.End < p.To {
				t.Fatalf("the phase that was cut off is %+v, want its window to be the flow's points", p)
			}
			if got.Flows[0].Error == "" {
				t.Fatal("a flow without an end carries no error")
			}
		}
	}
	if complete == 0 {
		t.Error("no cut gave the last second's samples: a flush does not reach the file")
	}
}

func zipped(lines ...string) io.Reader {
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	fmt.Fprint(gz, strings.Join(lines, "\n"))
	gz.Close()
	return &b
}

func TestABadFileIsRefusedWithItsLine(t *testing.T) {
	head := `{"head":{"schema":"bloat/recording/1","version":"x"}}`
	series := `{"series":{"name":"icmp","kind":"icmp"}}`
	for _, c := range []struct {
		name  string
		lines []string
		line  int
	}{
		{"another schema", []string{`{"head":{"schema":"bloat/recording/9"}}`}, 1},
		{"no head", []string{series}, 1},
		{"not JSON in the middle", []string{head, "{", series}, 2},
		{"samples of no series", []string{head, `{"samples":{"series":"icmp"}}`}, 2},
		{"columns of different lengths", []string{head, series, `{"samples":{"series":"icmp","seq":[1]}}`}, 3},
		{"an RTT of a lost probe", []string{head, series, `{"samples":{"series":"icmp","seq":[1],"due_ns":[0],"sent_ns":[0],"outcome":[3],"rtt_ns":[5],"stamp":[0]}}`}, 3},
		{"an outcome that is none", []string{head, series, `{"samples":{"series":"icmp","seq":[1],"due_ns":[0],"sent_ns":[0],"outcome":[99],"rtt_ns":[0],"stamp":[0]}}`}, 3},
		{"a negative time", []string{head, series, `{"samples":{"series":"icmp","seq":[1],"due_ns":[-1],"sent_ns":[0],"outcome":[1],"rtt_ns":[0],"stamp":[0]}}`}, 3},
		{"the same series twice", []string{head, series, series}, 3},
		{"a counter that runs backwards", []string{head, `{"flow":{"name":"f","direction":"download"}}`, `{"points":{"flow":"f","at_ns":[1,2],"bytes":[9,3]}}`}, 3},
		{"a direction that is none", []string{head, `{"flow":{"name":"f","direction":"sideways"}}`, series}, 2},
		{"garbage after the end", []string{head, `{"end":{"ended_ns":1}}`, "garbage"}, 3},
	} {
		_, err := ReadRecording(zipped(c.lines...))
		var fe *FileError
		if !errors.As(err, &fe) || fe.Line != c.line {
			t.Errorf("%s: got %v, want an error in line %d", c.name, err, c.line)
		}
	}
	if _, err := ReadRecording(strings.NewReader("plain text")); err == nil {
		t.Error("a file that is not gzip is read without an error")
	}
}

func FuzzReadRecording(f *testing.F) {
	_, file := record(&testing.T{}, true)
	gz, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		f.Fatal(err)
	}
	text, err := io.ReadAll(gz)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Fuzz(func(t *testing.T, text string) {
		rec, err := ReadRecording(zipped(text))
		if err != nil {
			return
		}
		for _, p := range rec.Phases {
			if p.To < p.From {
				t.Errorf("phase %+v has a negative window", p)
			}
		}
		for _, q := range rec.Others {
			if len(q.At) != len(q.Values) {
				t.Errorf("quantity %q has %d times and %d values", q.Name, len(q.At), len(q.Values))
			}
		}
	})
}

func TestALongRecordingIsWrittenInLinesThatCanBeRead(t *testing.T) {
	const n = 10*chunkRows + 1
	rec, _ := record(t, true)
	want := &Quantity{Name: "long", Unit: "ms"}
	rec.CPU = CPUSeries{Available: true}
	for i := range n {
		want.At, want.Values = append(want.At, time.Duration(i)*time.Second), append(want.Values, float64(i))
		rec.CPU.Samples = append(rec.CPU.Samples, CPUSample{At: time.Duration(i) * time.Second, Busy: []float64{0.5}, Own: 0.25})
	}
	rec.Others = append(rec.Others, *want)
	var file bytes.Buffer
	if err := WriteRecording(&file, rec); err != nil {
		t.Fatal(err)
	}
	gz, err := gzip.NewReader(bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(gz)
	for lines.Scan() { // which takes 64 KiB
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	got, err := ReadRecording(&file)
	if err != nil || !reflect.DeepEqual(got.Others, rec.Others) || !reflect.DeepEqual(got.CPU, rec.CPU) {
		t.Errorf("what is read back differs (%v)", err)
	}
}
