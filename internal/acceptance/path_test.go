package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bufferbloat/internal/testnet"
)

// pathPlan probes the way and the server while an upload fills the link behind the router.
const pathPlan = `schema: bloat/planfile/1
name: way
help: where is the queue
phases:
  - {name: idle, kind: idle, length: 1s}
  - name: upload
    kind: load
    length: 2s
    flows:
      - {name: "upload 1", direction: upload}
probes:
  - {name: server, kind: icmp, interval: 50ms, primary: true}
  - {name: path, kind: path, interval: 50ms}
`

// The router answers in its own name, and its delay does not grow: the queue is behind it.
func TestTheQueueIsFoundBehindTheRouter(t *testing.T) {
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
	n.Router.Sysctl(t, "net/ipv4/icmp_ratemask", "0") // Linux sends one such answer a second
	n.Client.SetCongestionControl(t, "cubic", "reno") // one that fills the queue
	n.Up.Shape(t, testnet.Queue{Rate: 4_000_000, Buffer: 250 * time.Millisecond})
	serve(t, n)
	plan := filepath.Join(t.TempDir(), "way.yaml")
	if err := os.WriteFile(plan, []byte(pathPlan), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := bloat(ctx, t, n.Client, "run", plan, "-H", n.Server.IP.String(), "--json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 4 { // a machine too busy for its probes has still found the way
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var result struct {
		Hops []struct {
			Hop     int            `json:"hop"`
			Address string         `json:"address"`
			Induced *time.Duration `json:"induced_median_ns"`
			Queue   bool           `json:"queue"`
		} `json:"hops"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	h := result.Hops
	if len(h) != 2 || h[0].Address != n.Router.IP.String() || h[0].Hop != 1 || h[1].Address != n.Server.IP.String() || h[1].Hop != 0 {
		t.Fatalf("hops %+v, want the router %v and the server %v", h, n.Router.IP, n.Server.IP)
	}
	if h[0].Induced == nil || h[1].Induced == nil || *h[0].Induced > 20*time.Millisecond || *h[1].Induced < 50*time.Millisecond || h[0].Queue || !h[1].Queue {
		t.Errorf("hops %s, want the queue between the router and the server", out)
	}
}
