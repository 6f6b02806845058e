package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bufferbloat/internal/testnet"
)

const lookUpPlan = `schema: bloat/planfile/1
name: look-ups
help: how long the resolver of this host takes
phases:
  - {name: idle, kind: idle, length: 1s}
probes:
  - {name: resolver, kind: dns, target: system, query: www.example, interval: 50ms, primary: true}
`

// A whole run whose look-ups go to the first resolver of this host's own file.
func TestLookUpsGoToTheResolverOfTheSystem(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	n.Client.SetResolver(t, "# written by nobody\nsearch example\nnameserver "+n.Server.IP6.String()+"\nnameserver "+n.Server.IP.Next().String()+"\n")
	serve(t, n, "--dns-port", "53")
	plan := filepath.Join(t.TempDir(), "lookups.yaml")
	if err := os.WriteFile(plan, []byte(lookUpPlan), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := func() (stdout, stderr []byte, status int) {
		cmd := bloat(ctx, t, n.Client, "run", plan, "-H", n.Server.IP.String(), "--json")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, _ := cmd.Output()
		return out, errs.Bytes(), cmd.ProcessState.ExitCode()
	}
	out, stderr, status := run()
	var result struct {
		Probes []struct {
			Kind, Target, Address string
			Count                 struct{ Received, Unsent, Due uint64 }
		}
	}
	if err := json.Unmarshal(out, &result); err != nil || status != 0 && status != 4 {
		t.Fatalf("status %d, %v: %s", status, err, stderr)
	}
	if p := result.Probes; len(p) != 1 || p[0].Kind != "dns" || p[0].Target != "system" || p[0].Address != n.Server.IP6.String() || p[0].Count.Received == 0 ||
		p[0].Count.Received+p[0].Count.Unsent != p[0].Count.Due {
		t.Errorf("%+v, want all look-ups answered by %v", p, n.Server.IP6)
	}
	n.Refuse(t, netip.PrefixFrom(n.Server.IP.Next(), 32), testnet.Unreachable)
	n.Client.SetResolver(t, "nameserver "+n.Server.IP.Next().String()+"\n")
	if out, stderr, status := run(); status != 1 || !bytes.Contains(stderr, []byte(n.Server.IP.Next().String())) {
		t.Errorf("a resolver that does not answer: status %d: %s%s; want it named", status, out, stderr)
	}
}
