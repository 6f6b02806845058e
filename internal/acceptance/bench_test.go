package acceptance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
	"bufferbloat/load"
)

// benchVariable set to a number of pairs runs the comparison with iperf3.
const benchVariable = "BLOAT_BENCH"

// The goals of the comparison, as ratios of ours to iperf3's.
const (
	receiveGoal = 1.8 // bits per CPU-second
	sendGoal    = 1.3
	goodputGoal = 1.0
)

// cost is what one transfer moved and used.
type cost struct {
	goodput       float64 // bit/s
	send, receive float64 // bits per CPU-second of the process that did
	both          float64 // of both processes together
}

func costOf(bits float64, over, sender, receiver time.Duration) cost {
	return cost{bits / over.Seconds(), bits / sender.Seconds(), bits / receiver.Seconds(), bits / (sender + receiver).Seconds()}
}

// benchCase is one line of the table.
type benchCase struct {
	path      string
	space     *testnet.Space // of the client, with a server
	servers   *testnet.Space
	server    netip.Addr
	flows     int
	direction load.Direction
}

// TestSpeedBesideIperf3 moves bytes as fast as they go, in turn with iperf3, and compares what that took. Who of two processes on one machine pays
// for the kernel's work between them is not always the same: "both" is the sum, and varies least.
func TestSpeedBesideIperf3(t *testing.T) {
	pairs, err := strconv.Atoi(os.Getenv(benchVariable))
	if err != nil || pairs < 1 {
		t.Skipf("set %s to a number of pairs (make bench: 10) for the comparison with iperf3, which takes 40 s for each", benchVariable)
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		facility.Missing(t, "iperf3", err.Error())
	}
	n := testnet.New(t)
	veth := directLink(t, n)
	// Pacing, as bbr has it, costs both programs a timer for each buffer that is sent, and hides what they cost themselves.
	algorithm := n.Server.SetCongestionControl(t, "cubic", "reno")
	n.Client.SetCongestionControl(t, algorithm)
	fmt.Printf("congestion control: %s\n\n%s\n", algorithm, benchHead)
	for _, flows := range []int{1, 8} {
		for _, d := range []load.Direction{load.Upload, load.Download} {
			for _, c := range []benchCase{
				{"loopback", n.Client, n.Client, netip.MustParseAddr("127.0.0.1"), flows, d},
				{"veth", n.Client, n.Server, veth, flows, d},
			} {
				c.compare(t, pairs)
			}
		}
	}
}

// directLink joins the client and the server by a veth pair with all its offloads, and returns the server's address on it.
func directLink(t *testing.T, n *testnet.Net) netip.Addr {
	t.Helper()
	n.Client.Do(t, "link", "add", "cl1", "type", "veth", "peer", "name", "sv1", "netns", n.Server.Name)
	n.Client.Do(t, "addr", "add", "203.0.113.1/24", "dev", "cl1")
	n.Server.Do(t, "addr", "add", "203.0.113.2/24", "dev", "sv1")
	n.Client.Do(t, "link", "set", "cl1", "up")
	n.Server.Do(t, "link", "set", "sv1", "up")
	return netip.MustParseAddr("203.0.113.2")
}

const benchHead = `| path | flows | direction | goodput, Gbit/s | iperf3's | ratio | send, Gbit per CPU-second | iperf3's | ratio | receive | iperf3's | ratio | both | iperf3's | ratio |
| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |`

// benchLength is the time of one transfer.
const benchLength = 2 * time.Second

func (c benchCase) compare(t *testing.T, pairs int) {
	t.Helper()
	var ours, theirs []cost
	for i := range pairs {
		for k := range 2 {
			if (i+k)%2 == 0 {
				ours = append(ours, c.ours(t, "netperf"))
			} else {
				theirs = append(theirs, c.iperf3(t))
			}
		}
	}
	row := fmt.Sprintf("| %s | %d | %v", c.path, c.flows, c.direction)
	for _, f := range []struct {
		name string
		of   func(cost) float64
		goal float64
	}{
		{"goodput", func(c cost) float64 { return c.goodput }, goodputGoal},
		{"bits per CPU-second sent", func(c cost) float64 { return c.send }, sendGoal},
		{"bits per CPU-second received", func(c cost) float64 { return c.receive }, receiveGoal},
		{"bits per CPU-second of both", func(c cost) float64 { return c.both }, 0},
	} {
		var a, b, ratios []float64
		for i := range ours {
			a, b = append(a, f.of(ours[i])/1e9), append(b, f.of(theirs[i])/1e9)
			ratios = append(ratios, f.of(ours[i])/f.of(theirs[i]))
		}
		middle := median(ratios) // sorts
		low, high := ratios[len(ratios)/4], ratios[(len(ratios)*3)/4]
		row += fmt.Sprintf(" | %.1f | %.1f | %.2f (%.2f to %.2f)", median(a), median(b), middle, low, high)
		if middle < f.goal {
			t.Errorf("%s, %d flows, %v: %s are %.2f of iperf3's, want %.1f", c.path, c.flows, c.direction, f.name, middle, f.goal)
		}
	}
	fmt.Println(row + " |")
}

// ours moves bytes between two helpers.
func (c benchCase) ours(t *testing.T, protocol string) cost {
	t.Helper()
	at := netip.AddrPortFrom(c.server, protocols[protocol].port)
	stop := startServer(t, c.servers, protocol, at, c.flows)
	cmd := asHelper(t, c.space, "client", protocol, at.String(), c.direction.String(), strconv.Itoa(c.flows), benchLength.String())
	out, err := cmd.Output()
	served := stop()
	var m moved
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err != nil {
		t.Fatalf("the client: %v: %s", err, out)
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if c.direction == load.Upload {
		return costOf(m.bits(), m.Over, used, served)
	}
	return costOf(m.bits(), m.Over, served, used)
}

// iperf3 moves bytes between two processes of it.
func (c benchCase) iperf3(t *testing.T) cost {
	t.Helper()
	const port = "5201"
	server := c.servers.Command("iperf3", "-s", "-1", "-p", port, "--forceflush")
	said, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	overdue := time.AfterFunc(benchLength+20*time.Second, func() { _ = server.Process.Kill() })
	defer overdue.Stop()
	words := bufio.NewReader(said)
	for line := ""; !strings.Contains(line, "listening"); {
		if line, err = words.ReadString('\n'); err != nil {
			t.Fatalf("iperf3 says %q, %v", line, err)
		}
	}
	args := []string{"-c", c.server.String(), "-p", port, "-J", "-t", strconv.Itoa(int(benchLength.Seconds())), "-P", strconv.Itoa(c.flows)}
	if c.direction == load.Download {
		args = append(args, "-R")
	}
	client := c.space.Command("iperf3", args...)
	out, err := client.Output()
	_, _ = io.Copy(io.Discard, words)
	if werr := server.Wait(); err != nil || werr != nil {
		t.Fatalf("iperf3: %v, %v: %s", err, werr, out)
	}
	var r struct {
		End struct {
			Received struct {
				Seconds float64 `json:"seconds"`
				Bytes   float64 `json:"bytes"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &r); err != nil || r.End.Received.Bytes == 0 {
		t.Fatalf("iperf3 printed %s: %v", out, err)
	}
	over := time.Duration(math.Round(r.End.Received.Seconds * float64(time.Second)))
	used := client.ProcessState.UserTime() + client.ProcessState.SystemTime()
	served := server.ProcessState.UserTime() + server.ProcessState.SystemTime()
	if c.direction == load.Upload {
		return costOf(8*r.End.Received.Bytes, over, used, served)
	}
	return costOf(8*r.End.Received.Bytes, over, served, used)
}
