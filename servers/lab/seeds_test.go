package lab

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat/load"
)

// seedsFile is where TestSeeds puts its tables, between two marks.
const (
	seedsFile  = "../../docs/lab.md"
	seedsBegin = "<!-- seeds: begin -->"
	seedsEnd   = "<!-- seeds: end -->"
)

// seedRow is a run on a preset with another queue.
type seedRow struct {
	label    string
	config   Config
	down, up int // flows
	result   outcome
}

// preset returns the Config of a preset, in virtual time.
func preset(t *testing.T, name string) Config {
	p, ok := PresetOf(name)
	if !ok {
		t.Fatalf("no preset %q", name)
	}
	p.Config.Virtual, p.Config.Seed = true, 1
	return p.Config
}

func (r *seedRow) run(t *testing.T) {
	r.result = loaded(t, r.config, serverIPv4, r.down, r.up, 5*time.Second, 25*time.Second)
	slices.Sort(r.result.rtts)
	if len(r.result.rtts) == 0 {
		t.Fatalf("%s: no ping came back", r.label)
	}
}

// at returns a quantile of the round-trip times, by Hyndman and Fan's rule 7.
func (r *seedRow) at(p float64) time.Duration {
	rank := p * float64(len(r.result.rtts)-1)
	i := min(int(rank), len(r.result.rtts)-1)
	low, high := r.result.rtts[i], r.result.rtts[min(i+1, len(r.result.rtts)-1)]
	return low + time.Duration((rank-float64(i))*float64(high-low))
}

func (r *seedRow) line() string {
	d := load.Download
	if r.down == 0 {
		d = load.Upload
	}
	cells := []string{r.label, fmt.Sprintf("%.2f", r.result.goodput(d).Mbps())}
	sum := time.Duration(0)
	for _, rtt := range r.result.rtts {
		sum += rtt
	}
	for _, v := range []time.Duration{r.at(0), r.at(0.1), r.at(0.5), sum / time.Duration(len(r.result.rtts)), r.at(0.9), r.at(1)} {
		cells = append(cells, fmt.Sprintf("%.3f", v.Seconds()*1000))
	}
	sent := 250
	cells = append(cells, fmt.Sprintf("%.1f", 100*float64(sent-len(r.result.rtts))/float64(sent)))
	return "| " + strings.Join(cells, " | ") + " |"
}

const seedHeader = "| queue | Mbit/s | min | 10pct | median | avg | 90pct | max ms | pings lost % |\n|---|---|---|---|---|---|---|---|---|"

// table runs the rows and returns them as Markdown.
func seedTable(t *testing.T, title string, rows []seedRow) string {
	lines := []string{title, "", seedHeader}
	for i := range rows {
		rows[i].run(t)
		lines = append(lines, rows[i].line())
	}
	return strings.Join(lines, "\n") + "\n"
}

// queues returns a row per discipline on a preset.
func queues(c Config, down, up int, texts ...string) []seedRow {
	var rows []seedRow
	for _, text := range texts {
		r := seedRow{label: "`" + text + "`", config: c, down: down, up: up}
		r.config.Queue, r.config.QueueDown, r.config.QueueUp = text, "", ""
		rows = append(rows, r)
	}
	return rows
}

func median50(r seedRow) time.Duration { return r.at(0.5) }

// TestSeeds runs the comparisons of the letters that the project began with on emulated links in virtual time, checks their shape, and with
// BLOAT_SEEDS=1 writes them into the documentation.
func TestSeeds(t *testing.T) {
	if os.Getenv("BLOAT_SEEDS") == "" {
		t.Skip("set BLOAT_SEEDS=1, or use make seeds, to run the letters' comparisons: that takes minutes")
	}
	tables := []string{seedEthernet(t), seedDevice(t), seedCable(t), seedRouter(t)}
	b, err := os.ReadFile(seedsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(b), seedsBegin)
	_, after, ok2 := strings.Cut(rest, seedsEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the marks %q and %q", seedsFile, seedsBegin, seedsEnd)
	}
	text := before + seedsBegin + "\n\n" + strings.Join(tables, "\n") + "\n" + seedsEnd + after
	if err := os.WriteFile(seedsFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func seedEthernet(t *testing.T) string {
	rows := queues(preset(t, "ethernet-100"), 0, 10, "pfifo_fast", "sfq", "sfq perturb 10s", "qfq", "drr", "pie", "codel", "red", "fq_codel", "fq_pie", "cake")
	table := seedTable(t, "**SFQ and QFQ against pfifo_fast (2012).** Ten uploads on `ethernet-100`. The letter: pfifo_fast 110 ms, SFQ or QFQ 2 ms.", rows)
	by := map[string]time.Duration{}
	for _, r := range rows {
		by[strings.Trim(r.label, "`")] = median50(r)
	}
	if fifo := by["pfifo_fast"]; fifo < 30*ms || fifo > 400*ms {
		t.Errorf("pfifo_fast: median %v, want tens to hundreds of milliseconds", fifo)
	}
	for _, fair := range []string{"sfq", "qfq", "drr", "fq_codel"} {
		if ratio := float64(by["pfifo_fast"]) / float64(by[fair]); ratio < 10 || ratio > 1000 {
			t.Errorf("%s: median %v, 1/%.0f of pfifo_fast's, want one to two orders lower", fair, by[fair], ratio)
		}
	}
	if by["pie"] >= by["pfifo_fast"] || by["pie"] <= by["fq_codel"] {
		t.Errorf("pie: median %v, want it between fq_codel's %v and pfifo_fast's %v", by["pie"], by["fq_codel"], by["pfifo_fast"])
	}
	return table
}

func seedDevice(t *testing.T) string {
	c := preset(t, "ethernet-100")
	rows := queues(c, 0, 50, "pfifo_fast")
	devices := []int{15000, 4500, 3000, 1500}
	for _, text := range []string{"sfq", "fq_codel"} {
		for _, device := range devices {
			r := queues(c, 0, 50, text)[0]
			r.config.DeviceUp, r.config.DeviceDown = device, device
			r.label += fmt.Sprintf(", device limit %d bytes", device)
			rows = append(rows, r)
		}
	}
	table := seedTable(t, "**Calculating baseline latency properly (2012).** Fifty uploads on `ethernet-100`. The letter: pfifo_fast 121 ms; SFQ with a byte queue "+
		"limit of auto, 4500, 3000 and 1500 bytes 2.16, 1.2, 0.67 and 0.76 ms; baseline 0.32 ms. A round of fifty flows of full-sized packets takes "+
		"6 ms; with less the ping must have gone ahead of it, as fq_codel lets it.", rows)
	if got := median50(rows[0]); got < 90*ms || got > 130*ms {
		t.Errorf("pfifo_fast under 50 flows: median %v, want about 1000 packets, 120 ms", got)
	}
	for i := 2; i < len(rows); i++ {
		if i != 1+len(devices) && median50(rows[i]) > median50(rows[i-1])+100*time.Microsecond {
			t.Errorf("%s: median %v, above %v of a larger device limit", rows[i].label, median50(rows[i]), median50(rows[i-1]))
		}
	}
	return table
}

func seedCable(t *testing.T) string {
	texts := []string{"fifo", "pie target 20ms", "pie target 5ms", "fq_codel target 20ms", "fq_codel", "fq_pie target 20ms", "drr leaf pie target 20ms",
		"drr leaf pie target 5ms", "qfq leaf pie target 20ms", "qfq leaf pie target 5ms", "cake"}
	c := preset(t, "cable-2014")
	down, up := queues(c, 5, 0, texts...), queues(c, 0, 5, texts...)
	tables := seedTable(t, "**PIE testing on a cable modem (2014), download.** Five flows on `cable-2014`. The letter, 28 Mbit/s: PIE at 20 ms 27.61 Mbit/s, median "+
		"30.3 ms; fq_codel at 20 ms 27.97 Mbit/s, median 21.5 ms.", down) + "\n" +
		seedTable(t, "**The same, upload.** The letter, 4.2 Mbit/s: PIE at 20 ms 4.13 Mbit/s, median 44.7 ms; fq_codel at 20 ms 4.13 Mbit/s, median 24.9 ms.", up)
	for _, rows := range [][]seedRow{down, up} {
		fifo, pie20, pie5, fair := median50(rows[0]), median50(rows[1]), median50(rows[2]), median50(rows[3])
		if !(fair < pie20 && pie20 < fifo && pie5 < pie20) {
			t.Errorf("medians: fifo %v, PIE at 20 ms %v, at 5 ms %v, fq_codel %v; want PIE in between, and lower at 5 ms", fifo, pie20, pie5, fair)
		}
		for _, r := range rows[6:10] {
			if got := median50(r); got >= pie20 {
				t.Errorf("%s: median %v, want it below PIE's alone, %v", r.label, got, pie20)
			}
		}
	}
	return tables
}

func seedRouter(t *testing.T) string {
	c := preset(t, "archer")
	var rows []seedRow
	for _, text := range []string{"fifo limit 200ms", "htb rate 95mbit leaf fq_codel", "cake bandwidth 95mbit", "tbf rate 95mbit leaf pfifo",
		"policer rate 95mbit burst 64k", "policer rate 95mbit burst 1m", "codel_policer rate 95mbit", "codel_policer rate 95mbit target 2ms"} {
		r := queues(c, 4, 0, text)[0]
		r.config.QueueUp = "htb rate 19mbit leaf fq_codel"
		rows = append(rows, r)
	}
	table := seedTable(t, "**Policing against shaping on a router (2015).** Four downloads on `archer`. The letter asks for CoDel-like sparse drops instead of a brick "+
		"wall, and gives no figures.", rows)
	wall, sparse := rows[4].result.goodput(load.Download), rows[6].result.goodput(load.Download)
	if sparse <= wall {
		t.Errorf("the policer by CoDel's law lets %v through, the brick wall %v; want more", sparse, wall)
	}
	return table
}
