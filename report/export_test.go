package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"bufferbloat"
)

var (
	metricName = `[a-zA-Z_:][a-zA-Z0-9_:]*`
	metaLine   = regexp.MustCompile(`^# (HELP|TYPE|UNIT) (` + metricName + `) (.+)$`)
	sampleLine = regexp.MustCompile(`^(` + metricName + `)(?:\{(.*)\})? (\S+)$`)
	labelPair  = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)`)
)

// checkOpenMetrics is a small strict reader of the OpenMetrics text format 1.0, for gauges without time stamps.
func checkOpenMetrics(text string) error {
	body, ok := strings.CutSuffix(text, "# EOF\n")
	if !ok || strings.Contains(body, "# EOF") {
		return fmt.Errorf("does not end with its only # EOF")
	}
	families, seen := map[string]map[string]bool{}, map[string]bool{}
	family, samples := "", 0
	for line := range strings.Lines(body) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole || strings.Contains(line, "\r") {
			return fmt.Errorf("%q is no whole line", line)
		}
		if m := metaLine.FindStringSubmatch(line); m != nil {
			if m[2] != family {
				if family != "" && samples == 0 {
					return fmt.Errorf("%s has no samples", family)
				}
				if families[m[2]] != nil {
					return fmt.Errorf("%s comes twice", m[2])
				}
				family, samples = m[2], 0
				families[family] = map[string]bool{}
			}
			if families[family][m[1]] || samples > 0 {
				return fmt.Errorf("%q comes twice or after its samples", line)
			}
			families[family][m[1]] = true
			switch {
			case m[1] == "TYPE" && m[3] != "gauge":
				return fmt.Errorf("%q: want a gauge", line)
			case m[1] == "UNIT" && !strings.HasSuffix(family, "_"+m[3]):
				return fmt.Errorf("%q: the unit is not the end of the name", line)
			case m[1] == "HELP" && strings.Contains(strings.NewReplacer(`\\`, "", `\n`, "", `\"`, "").Replace(m[3]), `\`):
				return fmt.Errorf("%q: a bad escape", line)
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || m[1] != family || !families[family]["TYPE"] || !families[family]["HELP"] {
			return fmt.Errorf("%q is no sample of the family before it", line)
		}
		names := map[string]bool{}
		for rest := m[2]; rest != ""; {
			p := labelPair.FindStringSubmatch(rest)
			if p == nil || names[p[1]] || strings.HasPrefix(p[1], "__") || p[3] == "," && len(p[0]) == len(rest) {
				return fmt.Errorf("%q: bad labels at %q", line, rest)
			}
			names[p[1]] = true
			rest = rest[len(p[0]):]
		}
		if seen[m[1]+m[2]] {
			return fmt.Errorf("%q comes twice", line)
		}
		seen[m[1]+m[2]] = true
		if _, err := strconv.ParseFloat(m[3], 64); err != nil {
			return fmt.Errorf("%q: %v", line, err)
		}
		samples++
	}
	return nil
}

func TestOpenMetricsIsValid(t *testing.T) {
	all := recordings()
	odd := fifoRun()
	odd.Path.Host, odd.Phases[1].Name = "a\"b\\c\n\x1b[31m\u202ed", "line\nbreak\\"
	odd.Plan.Phases[1].Name = odd.Phases[1].Name
	for i := range odd.Flows {
		if odd.Flows[i].Phase == "download" {
			odd.Flows[i].Phase = odd.Phases[1].Name
		}
	}
	twice := fifoRun()
	twice.Phases = append(twice.Phases, twice.Phases[1])
	all["odd names"], all["a phase twice"], all["nothing"] = odd, twice, &bufferbloat.Recording{}
	for name, rec := range all {
		r := New(rec)
		text := written(t, r.WriteOpenMetrics)
		if err := checkOpenMetrics(text); err != nil {
			t.Errorf("%s: %v in\n%s", name, err, text)
		}
		if strings.Contains(text, "\x1b") || !strings.Contains(text, "bloat_status ") {
			t.Errorf("%s: control characters, or no status, in\n%s", name, text)
		}
	}
}

func TestTheOpenMetricsCheckerFindsFaults(t *testing.T) {
	const head = "# HELP a_seconds x\n# TYPE a_seconds gauge\n"
	for name, text := range map[string]string{
		"no end": head + "a_seconds 1\n", "text after the end": head + "a_seconds 1\n# EOF\n# EOF\n", "no type": "# HELP a x\na 1\n# EOF\n",
		"unit": head + "# UNIT a_seconds ms\na_seconds 1\n# EOF\n", "twice": head + "a_seconds 1\na_seconds 1\n# EOF\n",
		"bad label": head + "a_seconds{b=\"c\\d\"} 1\n# EOF\n", "trailing comma": head + "a_seconds{b=\"c\",} 1\n# EOF\n", "value": head + "a_seconds x\n# EOF\n",
		"no samples": head + "# HELP b x\n# TYPE b gauge\nb 1\n# EOF\n", "another family": head + "b 1\n# EOF\n",
	} {
		if checkOpenMetrics(text) == nil {
			t.Errorf("%s: not found in %q", name, text)
		}
	}
}

func TestOpenMetricsHasTheFigures(t *testing.T) {
	text := written(t, New(fifoRun()).WriteOpenMetrics)
	for _, want := range []string{
		`bloat_goodput_bits_per_second{phase="download",direction="download"} 1.913`, `bloat_rtt_seconds{phase="idle",series="icmp",probe="icmp",quantile="0.5"} 0.0401`,
		`bloat_streams{phase="upload",direction="upload",state="whole"} 5`, `bloat_loss_ratio{phase="download",series="irtt",probe="irtt",under_load="true"} 0.0`,
		"# UNIT bloat_rtt_seconds seconds\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if text := written(t, New(silentRun()).WriteOpenMetrics); strings.Contains(text, "bloat_rtt") {
		t.Errorf("no probe was answered, and there are times in\n%s", text)
	}
}

// The raw data has one line for each sample, reading and finding, and each is a JSON object.
func TestNDJSONHasALineForEachSample(t *testing.T) {
	for name, rec := range recordings() {
		r := New(rec)
		text := written(t, func(w io.Writer) error { return r.WriteNDJSON(w, rec) })
		got, want := map[string]int{}, map[string]int{"run": 1, "phase": len(r.Phases), "cpu": len(rec.CPU.Samples), "finding": len(r.Findings)}
		for _, s := range rec.Probes {
			want["probe"] += len(s.Samples)
		}
		for _, f := range rec.Flows {
			want["stream"] += len(f.Points)
		}
		for line := range strings.Lines(text) {
			var v struct {
				Type    string
				Outcome string
				RTT     *int64 `json:"rtt_ns"`
			}
			d := json.NewDecoder(bytes.NewReader([]byte(line)))
			if err := d.Decode(&v); err != nil || !strings.HasSuffix(line, "}\n") {
				t.Fatalf("%s: %v in %q", name, err, line)
			}
			got[v.Type]++
			if v.Type == "probe" && (v.RTT != nil) != (v.Outcome == "received" || v.Outcome == "late") {
				t.Errorf("%s: a time where there is none, or none where there is one: %s", name, line)
			}
		}
		for kind, n := range want {
			if got[kind] != n {
				t.Errorf("%s: %d lines of type %s, want %d", name, got[kind], kind, n)
			}
		}
	}
}
