package queue

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Discipline{
		"fq_codel":                                                     FQCoDel{},
		"fq_codel target 5ms limit 10240p":                             FQCoDel{Target: 5 * ms, Limit: 10240},
		"fq_codel,target=5ms,limit=10240":                              FQCoDel{Target: 5 * ms, Limit: 10240},
		"fifo limit 256k":                                              BFIFO{Limit: 256 << 10},
		"bfifo limit=250ms":                                            BFIFO{Time: 250 * ms},
		"codel ecn":                                                    CoDel{ECN: true},
		"codel noecn ce_threshold 1ms":                                 CoDel{CEThreshold: ms},
		"pie target 20ms alpha 0.25 bytemode":                          PIE{Target: 20 * ms, Alpha: 0.25, ByteMode: true},
		"red min 10k probability 2% ecn":                               RED{Min: 10240, Probability: 0.02, ECN: true},
		"sfq perturb 10s headdrop":                                     SFQ{Perturb: 10 * time.Second, HeadDrop: true},
		"htb rate 18mbit leaf fq_codel target 10ms noecn":              HTB{Rate: 18 * bitrate.Mbit, Leaf: FQCoDel{Target: 10 * ms, NoECN: true}},
		"drr,leaf=pie,target=20ms":                                     DRR{Leaf: PIE{Target: 20 * ms}},
		"qfq weights 1:2:4 leaf pie":                                   QFQ{Weights: "1:2:4", Leaf: PIE{}},
		"cake bandwidth 20mbit diffserv4 dual-srchost framing docsis":  Cake{Rate: 20 * bitrate.Mbit, Diffserv: "diffserv4", Isolate: "dual-srchost", Framing: "docsis"},
		"cake ack-filter":                                              Cake{Ack: "ack-filter"},
		"policer rate 20mbit burst 64k leaf tbf rate 1gbit burst 2000": Policer{Rate: 20 * bitrate.Mbit, Burst: 64 << 10, Leaf: TBF{Rate: bitrate.Gbit, Burst: 2000}},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %#v, %v; want %#v", text, got, err, want)
		}
	}
}

func TestEveryNameParsesAndReportsItself(t *testing.T) {
	for _, name := range Names() {
		text := name
		switch name {
		case "tbf", "htb", "policer", "codel_policer":
			text += " rate 1mbit"
		}
		q, _ := bare(t, must(t, text), bitrate.Mbit)
		kind := q.(link.Reporter).Report().Kind
		if kind, _, _ = strings.Cut(kind, " leaf"); kind != name && name != "fifo" {
			t.Errorf("%s reports as %q", name, kind)
		}
	}
}

func TestMistakesAreNamedWithWhatIsAllowed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   `queue discipline "": want one of pfifo, bfifo, fifo, pfifo_fast, sfq,`,
		"fq_cobel":                           `queue discipline "fq_cobel": want one of`,
		"fq_codel traget 5ms":                `fq_codel "traget": want limit, flows, quantum, target, interval, ce_threshold, memory_limit, drop_batch, noecn, ecn`,
		"fq_codel target":                    `fq_codel target: the value is missing`,
		"fq_codel target -5ms":               `fq_codel target "-5ms": want 1µs to 1m0s, as in 5ms`,
		"fq_codel target 0s":                 `fq_codel target "0s": want 1µs to 1m0s, as in 5ms`,
		"fq_codel target 5":                  `fq_codel target "5": want 1µs to 1m0s, as in 5ms`,
		"fq_codel limit 0":                   `fq_codel limit "0": want 1p to 1048576p, as in 10240p`,
		"fq_codel limit 5ms":                 `fq_codel limit "5ms": want 1p to 1048576p, as in 10240p`,
		"fq_codel flows 65537":               `fq_codel flows "65537": want 1 to 65536, as in 1024`,
		"fq_codel target 5ms target 6ms":     `fq_codel: a second target`,
		"codel ecn noecn":                    `codel: a second ecn`,
		"bfifo limit 0":                      `bfifo limit "0": want 1 to 1073741824 bytes, as in 256k, or a time up to 1m0s, as in 250ms`,
		"bfifo limit -3s":                    `bfifo limit "-3s": want 1µs to 1m0s`,
		"bfifo limit 99999999999999999999k":  `bfifo limit "99999999999999999999k": want 1 to`,
		"bfifo limit 5g":                     `bfifo limit "5g": want 1 to`,
		"policer":                            `policer rate is missing: want one, as in "rate 18mbit"`,
		"policer rate 0mbit":                 `policer rate "0mbit": want 1kbit to 1000Gbit`,
		"policer rate 20":                    `policer rate "20": want 1kbit to 1000Gbit`,
		"policer rate 20mbit burst 1":        `policer burst "1": want 1514 to 64m`,
		"tbf rate 20mbit leaf":               `tbf leaf: queue discipline "": want one of`,
		"htb rate 20mbit leaf pie tupdate x": `htb leaf: pie tupdate "x": want 100µs to 1m0s, as in 15ms`,
		"drr leaf fq_codel":                  `drr leaf fq_codel`,
		"drr weights 1:0":                    `drr weights "1:0": want up to 64 numbers from 1 to 1024, as in 1:2:4`,
		"qfq flows 16385":                    `qfq flows "16385": want 1 to 16384`,
		"red min 50k max 20k":                `red max 20480: want more than min (51200)`,
		"red probability 150%":               `red probability "150%": want 1e-06 to 1`,
		"red weight nan":                     `red weight "nan": want`,
		"cake framing tokenring":             `cake framing "tokenring": want one of raw, qdisc, ethernet,`,
		"cake diffserv3 besteffort":          `cake: a second diffserv3`,
		"cake bandwidth 999bit":              `cake bandwidth "999bit": want 1kbit to 1000Gbit`,
		"tbf rate 1mbit leaf tbf rate 1mbit leaf tbf rate 1mbit leaf tbf rate 1mbit leaf tbf rate 1mbit leaf pfifo": "leaf: more than 4 disciplines",
		strings.Repeat("x", MaxText+1): "queue discipline of 1025 bytes: want at most 1024",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q): error %v, want %q", text, err, want)
		}
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for want, d := range map[string]Discipline{
		"bfifo limit -1: want 1 to 1g":                           BFIFO{Limit: -1},
		"fq_codel flows -1: want 1 to 65536, or 0 for 1024":      FQCoDel{Flows: -1},
		"fq_codel quantum 1048577: want 1 to 1m, or 0 for 1514":  FQCoDel{Quantum: 1<<20 + 1},
		"fq_codel target 1ns: want 1µs to 1m0s, or 0 for 5ms":    FQCoDel{Target: 1},
		"sfq perturb -1s: want 1ms to 1h0m0s":                    SFQ{Perturb: -time.Second},
		"cake diffserv \"x\": want one of diffserv3, diffserv4,": Cake{Diffserv: "x"},
		"drr leaf: codel limit -1p: want 1p to 1048576p":         DRR{Leaf: CoDel{Limit: -1}},
	} {
		want = strings.ReplaceAll(want, "1g", "1024m")
		want = strings.Replace(want, "cake diffserv ", "cake diffserv3 ", 1)
		if err := d.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if _, err := d.New(link.Env{}); err == nil {
			t.Errorf("%#v was built", d)
		}
	}
}

func TestALimitAsTimeNeedsARate(t *testing.T) {
	for rate, want := range map[bitrate.Bitrate]string{0: "a link of unlimited rate needs a limit in bytes", bitrate.Kbit: "want 1514 (one packet) to"} {
		if _, err := (BFIFO{Time: 250 * ms}).New(link.Env{Rate: rate}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("at %v: error %v, want %q", rate, err, want)
		}
	}
	q, _ := bare(t, BFIFO{Time: 250 * ms}, 20*bitrate.Mbit)
	if got := q.(*fifo).bytes; got != 625000 {
		t.Errorf("limit %d bytes, want 250 ms of 20 Mbit/s", got)
	}
}

func TestAShaperTellsItsLeafItsRate(t *testing.T) {
	q, _ := bare(t, must(t, "htb rate 8mbit leaf bfifo limit 100ms"), bitrate.Gbit)
	if got := q.(*shaper).leaf.(*fifo).bytes; got != 100000 {
		t.Errorf("limit %d bytes, want 100 ms of the shaper's 8 Mbit/s", got)
	}
}

func TestStringNamesEveryParameter(t *testing.T) {
	for text, want := range map[string]string{
		"bfifo":                     "bfifo limit 1514000",
		"fq_codel":                  "fq_codel limit 10240p flows 1024 quantum 1514 target 5ms interval 100ms ce_threshold 0s memory_limit 32m drop_batch 64 ecn",
		"pie":                       "pie limit 1000p noecn target 15ms tupdate 15ms burst 150ms alpha 0.125 beta 1.25 nobytemode",
		"cake":                      "cake framing raw rtt 100ms diffserv3 triple-isolate no-ack-filter memlimit 32m",
		"htb rate 8mbit leaf pfifo": "htb rate 8Mbit burst 2600 leaf pfifo limit 1000p",
		"drr weights 1:2":           "drr quantum 1514 flows 1024 weights 1:2 leaf pfifo limit 127p",
	} {
		if got := must(t, text).String(); got != want {
			t.Errorf("%q prints as\n%q, want\n%q", text, got, want)
		}
	}
}

// FuzzParse checks that what parses is valid, and prints as something that parses to the same.
func FuzzParse(f *testing.F) {
	for _, text := range append(slices.Clone(examples), "fq_codel,target=5ms", "bfifo limit 250ms", "red max 80k") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if err := d.Check(); err != nil {
			t.Fatalf("%q parses, and is not valid: %v", text, err)
		}
		printed := d.String()
		if len(printed) > MaxText {
			return // many leaves
		}
		back, err := Parse(printed)
		if err != nil || back.String() != printed {
			t.Fatalf("%q prints as %q, which parses to %v, %v", text, printed, back, err)
		}
	})
}
