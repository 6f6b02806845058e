package acceptance

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	probes "bufferbloat/probe"
)

// routerRun is what the program for routers did against a server in a net of its own, as root or, where that is asked for, as nobody.
func routerRun(t *testing.T, n *testnet.Net, nobody bool, flags ...string) (rec *bufferbloat.Recording, text string) {
	t.Helper()
	program, dir := small(t), t.TempDir()
	kept := filepath.Join(dir, "x.bloat.json.gz")
	words := []string{"nsenter", "--net=/run/netns/" + n.Client.Name}
	if nobody {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			facility.Missing(t, "setpriv", err.Error())
		}
		words = append(words, setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
		open := exec.Command("sh", "-c", `cp "$1" "$2/speedtest" && : >"$3" && chmod 755 "$2" "$2/.." "$2/speedtest" && chmod 666 "$3"`, "sh", program, dir, kept)
		if out, err := open.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		program = filepath.Join(dir, "speedtest")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	words = append(append(words, program, "-H", n.Server.IP.String(), "-o", kept), flags...)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == statusPartial) { // a busy machine sends its probes late
		t.Fatalf("%v: %v\n%s%s", words, err, stdout.String(), stderr.String())
	}
	f, err := os.Open(kept)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if rec, err = bufferbloat.ReadRecording(f); err != nil {
		t.Fatal(err)
	}
	return rec, stdout.String()
}

// outcomes counts the samples of a series.
func outcomes(s *bufferbloat.ProbeSeries) map[probes.Outcome]int {
	n := map[probes.Outcome]int{}
	for sample := range s.All() {
		n[sample.Outcome]++
	}
	return n
}

// Reports 37: where ICMP is not permitted, other probes take its place, which the result names; nothing of it is loss.
func TestTheProgramForRoutersSaysThatICMPIsNotPermitted(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "1 0")
	serve(t, n)
	rec, text := routerRun(t, n, true, "-t", "1", "-i", "1", "-n", "1")
	if !strings.Contains(text, "ICMP is not permitted") || strings.Contains(text, "Median: -") {
		t.Errorf("it does not say so, or has measured nothing:\n%s", text)
	}
	for i := range rec.Probes {
		s := &rec.Probes[i]
		if got := outcomes(s); s.Kind == string(bufferbloat.ICMP) || got[probes.Received] == 0 || got[probes.Lost] > 0 {
			t.Errorf("%s is of kind %s: %v", s.Name, s.Kind, got)
		}
	}
}

// Reports 52 and 71: what the own full queue refuses is unsent and no loss, the probes go on behind it, and their stamps are the kernel's.
func TestTheProgramForRoutersGoesOnBehindAFullQueueOfItsOwn(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	n.ClientDevice.Shape(t, testnet.Queue{Rate: bitrate.Mbit, Limit: 3100})
	serve(t, n)
	var flood net.Conn
	var err error
	n.Client.Inside(t, func() { flood, err = net.Dial("udp", netip.AddrPortFrom(n.Server.IP, 9).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	small(t) // or the time that it takes to build it would be taken for the run's
	// Somebody else keeps the queue full for two seconds of the run, to its last bytes.
	done := make(chan struct{})
	time.AfterFunc(3*time.Second, func() {
		defer close(done)
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
			for _, size := range []int{1400, 1400, 1400, 100, 10, 0} {
				_, _ = flood.Write(make([]byte, size)) // what is refused is what it is for
			}
		}
	})
	rec, text := routerRun(t, n, false, "-t", "4", "-i", "2", "-n", "1", "-c", "--interval", "20ms")
	<-done
	after := rec.Phases[len(rec.Phases)-1].Start // when the load is over, and the flood too
	unsent, back, refused := 0, 0, false
	for i := range rec.Probes {
		s := &rec.Probes[i]
		unsent += outcomes(s)[probes.Unsent]
		refused = refused || strings.Contains(s.Tally.FirstError, "no buffer space")
		for sample := range s.All() {
			if sample.Outcome == probes.Received && sample.Sent > after {
				back++
			}
			if sample.Outcome == probes.Received && sample.Stamp != host.KernelStamp {
				t.Fatalf("%s: a stamp is %v", s.Name, sample.Stamp)
			}
		}
	}
	// Where the flood kept the flows from sending for too long as well, there is no latency under load to say it of.
	said := strings.Contains(text, "no buffer space") || strings.Contains(text, "void: both: no stream carried data")
	if unsent == 0 || back == 0 || !refused || !said {
		t.Errorf("%d unsent, refused for want of buffers %v, %d answered after the load:\n%s", unsent, refused, back, text)
	}
}
