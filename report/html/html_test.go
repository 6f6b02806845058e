package html

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	stdhtml "html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/report/plot"
)

// run reads one of the recordings that report's tests share.
func run(t testing.TB, name string) Run {
	t.Helper()
	b, err := os.ReadFile("../testdata/" + name + ".bloat.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := bufferbloat.ReadRecording(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return Run{Name: name, Recording: rec, File: b, FileName: name + ".bloat.json.gz"}
}

func written(t testing.TB, runs ...Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, runs, plot.Options{}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const evil = "</script></style>--><script>document.documentElement.dataset.evil=1</script><img src=x onerror=alert(1)>\"'`&\x1b[2J\u2028{{.}}"

// hostile is a run in which all that comes from outside is markup.
func hostile(t testing.TB) Run {
	r := run(t, "fq_codel")
	rec := r.Recording
	r.Name, r.FileName = evil, evil
	rec.Version, rec.Plan.Name, rec.Path.Host, rec.Path.Server, rec.Path.Address, rec.Stopped = evil, evil, evil, evil, evil, evil
	rec.Client.OS, rec.Client.Kernel = evil, evil
	for i := range rec.Phases {
		rec.Phases[i].Name = evil + rec.Phases[i].Name
	}
	for i := range rec.Probes {
		s := &rec.Probes[i]
		s.Name, s.Target, s.Error = evil+s.Name, evil, evil
		s.Samples[40].Outcome, s.Samples[40].RTT = probe.Lost, 0
	}
	for i := range rec.Flows {
		rec.Flows[i].Name, rec.Flows[i].Error = evil+rec.Flows[i].Name, evil
	}
	rec.Findings = append(rec.Findings, bufferbloat.Finding{Code: evil, Severity: bufferbloat.Severity(evil), Phase: evil, Text: evil})
	return r
}

func TestPageLoadsNothing(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{"one": written(t, run(t, "fifo")), "two": written(t, run(t, "fifo"), run(t, "fq_codel")),
		"none at all": written(t, Run{Name: "empty", Recording: &bufferbloat.Recording{}})} {
		withoutData := regexp.MustCompile(`data:[a-z/]+;base64,(&#43;|[A-Za-z0-9+/=])*`).ReplaceAllString(page, "")
		for _, bad := range []string{"http:", "https:", "//", "url(", "@import", "<link", "<img", "<iframe", "<object", "<base", "src=", "fetch(", "XMLHttp", "WebSocket", "import("} {
			// The script's own comments begin with two slashes.
			if i := strings.Index(withoutData, bad); i >= 0 && !(bad == "//" && regexp.MustCompile(`(?m)^\s*$`).MatchString(lineBefore(withoutData, i))) {
				t.Errorf("%s: the page has %q: ...%s...", name, bad, withoutData[max(0, i-40):min(len(withoutData), i+40)])
			}
		}
		if !strings.Contains(page, `default-src &#39;none&#39;`) {
			t.Errorf("%s: no policy", name)
		}
	}
}

// lineBefore is what stands before i in its line.
func lineBefore(s string, i int) string { return s[strings.LastIndexByte(s[:i], '\n')+1 : i] }

func TestTableHasTheNumbersOfTheResult(t *testing.T) {
	t.Parallel()
	r := run(t, "fifo")
	page, p := stdhtml.UnescapeString(written(t, r)), report.New(r.Recording).Page()
	for _, row := range p.Rows {
		if want := "<tr><td>" + strings.Join(row, "</td><td>") + "</td></tr>"; !strings.Contains(page, want) {
			t.Errorf("the page lacks the row %v", row)
		}
	}
	if len(p.Rows) < 4 {
		t.Errorf("%d rows", len(p.Rows))
	}
}

func TestRecordingCanBeTakenFromThePage(t *testing.T) {
	t.Parallel()
	r := run(t, "fifo")
	m := regexp.MustCompile(`download="fifo.bloat.json.gz" href="data:application/gzip;base64,([^"]*)"`).FindStringSubmatch(written(t, r))
	if m == nil {
		t.Fatal("no link with the recording")
	}
	b, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(m[1], "&#43;", "+"))
	if err != nil || !bytes.Equal(b, r.File) {
		t.Errorf("%d bytes, %v, want the %d of the file", len(b), err, len(r.File))
	}
	r.File = make([]byte, MaxFile+1)
	if page := written(t, r); !strings.Contains(page, "too large for a page") || len(page) > 4<<20 {
		t.Errorf("a file that is too large: page of %d bytes", len(page))
	}
}

func TestHostileNamesStayTexts(t *testing.T) {
	t.Parallel()
	page := written(t, hostile(t), hostile(t))
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d script elements, want the data and the script", n)
	}
	for _, bad := range []string{"<img", "\x1b", "dataset.evil=1</script>"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q is in the page", bad)
		}
	}
	m := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("no data")
	}
	var data chartData
	if err := json.Unmarshal([]byte(m[1]), &data); err != nil {
		t.Fatal(err)
	}
	if got := data.Runs[0].Name; got != evil {
		t.Errorf("the name became %q", got)
	}
}

func TestMillionSamplesGiveABoundedPage(t *testing.T) {
	t.Parallel()
	r := Run{Name: "long", Recording: &bufferbloat.Recording{
		Phases: []bufferbloat.Phase{{Name: "idle", Kind: bufferbloat.Idle, End: 1000 * time.Second, To: 1000 * time.Second}},
		Probes: []bufferbloat.ProbeSeries{{Name: "icmp", Interval: time.Millisecond, Samples: make([]probe.Sample, 1_000_000)}}}}
	r.Result = report.New(&bufferbloat.Recording{}) // its statistics are not what this test is about
	for i := range r.Recording.Probes[0].Samples {
		at := time.Duration(i) * time.Millisecond
		r.Recording.Probes[0].Samples[i] = probe.Sample{Due: at, Sent: at, Outcome: probe.Received, RTT: time.Duration(i*7919%1000+1) * time.Microsecond}
	}
	if page := written(t, r); len(page) > 2<<20 {
		t.Errorf("%d bytes", len(page))
	}
}

// chromium opens a page and returns the document as it is after the script has run. With screenshot, a file, it takes a picture too.
func chromium(t *testing.T, page string, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		facility.Missing(t, "chromium", err.Error())
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "page.html")
	if err := os.WriteFile(file, []byte(page), 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps", "--disable-dev-shm-usage",
		"--user-data-dir=" + filepath.Join(dir, "profile"), "--window-size=1100,2400", "--virtual-time-budget=3000"}, append(args, "file://"+file)...)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 5 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	return string(out)
}

func TestChromiumRunsTheScript(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{"one run": written(t, run(t, "fifo")), "hostile runs": written(t, hostile(t), hostile(t))} {
		dom := chromium(t, page, "--dump-dom")
		tag := regexp.MustCompile(`<html[^>]*>`).FindString(dom)
		if !strings.Contains(tag, `data-charts="3"`) || strings.Contains(tag, "data-error") || strings.Contains(tag, "data-evil") {
			t.Errorf("%s: after the script %s, want three charts and no error", name, tag)
		}
		if n := strings.Count(dom, "<canvas"); n != 3 {
			t.Errorf("%s: %d canvases, want 3", name, n)
		}
	}
	r := run(t, "fifo")
	dom := stdhtml.UnescapeString(chromium(t, written(t, r), "--dump-dom"))
	for _, row := range report.New(r.Recording).Page().Rows {
		if !strings.Contains(dom, "<tr><td>"+strings.Join(row, "</td><td>")+"</td></tr>") {
			t.Errorf("Chromium's table lacks the row %v", row)
		}
	}
}

func TestChromiumShowsThePictureWithoutScript(t *testing.T) {
	t.Parallel()
	page := written(t, run(t, "fifo"))
	plain := regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(page, "")
	dom := chromium(t, plain, "--dump-dom")
	if strings.Contains(dom, "data-charts") || !strings.Contains(dom, `<section id="live" hidden`) {
		t.Error("charts without a script")
	}
	if n := strings.Count(dom, "<svg"); n != 6 {
		t.Errorf("%d pictures, want 6", n)
	}
}

// The zoom and the hover of the charts, driven by a script beside the page's own.
func TestChromiumZoomsAndHovers(t *testing.T) {
	t.Parallel()
	page := written(t, run(t, "fifo"))
	drive := `<script>
	const c = document.querySelectorAll("canvas")[1], box = c.getBoundingClientRect();
	c.setPointerCapture = function () {};
	const send = function (kind, f) { c.dispatchEvent(new PointerEvent(kind, { clientX: box.left + 60 + f * (box.width - 72), clientY: box.top + 50, pointerId: 1 })); };
	send("pointermove", 0.5);
	document.documentElement.dataset.tip = document.querySelectorAll(".tip")[1].textContent;
	send("pointerdown", 0.25); send("pointermove", 0.5); send("pointerup", 0.5); send("pointermove", 0);
	document.documentElement.dataset.zoomed = document.querySelectorAll(".tip")[1].textContent;
	document.getElementById("reset").click(); send("pointermove", 0);
	document.documentElement.dataset.reset = document.querySelectorAll(".tip")[1].textContent;
	</script></body>`
	page = regexp.MustCompile(`<meta http-equiv[^>]*>`).ReplaceAllString(strings.Replace(page, "</body>", drive, 1), "")
	tag := regexp.MustCompile(`<html[^>]*>`).FindString(chromium(t, page, "--dump-dom"))
	for _, want := range []string{`data-tip="14.80 s; icmp 40.235 ms; irtt 40.441 ms"`, `data-zoomed="7.40 s; icmp 104.6 ms; irtt 104.6 ms"`, `data-reset="0.00 s; icmp 40.235 ms;`} {
		if !strings.Contains(tag, want) {
			t.Errorf("after the pointer %s, want %s", tag, want)
		}
	}
}

func TestChromiumTakesAPicture(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.png")
	chromium(t, written(t, run(t, "fifo"), run(t, "fq_codel")), "--screenshot="+file)
	b, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(b, []byte("\x89PNG")) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if keep := os.Getenv("BLOAT_KEEP_PAGE"); keep != "" {
		if err := os.WriteFile(keep, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheFileIsARecording(t *testing.T) {
	t.Parallel()
	z, err := gzip.NewReader(bytes.NewReader(run(t, "fifo").File))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || !slices.Contains(b, '\n') {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
