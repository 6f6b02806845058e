package acceptance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/load"
)

// TestDuelsRunOverTheKernelsTCP runs plans whose flows want algorithms that the emulated link in process has not, over the same link with the kernel's TCP,
// and compares what each flow's sender says that it used with what the plan asks for.
func TestDuelsRunOverTheKernelsTCP(t *testing.T) {
	t.Parallel()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	has, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		facility.Missing(t, "tcp-cubic", err.Error())
	}
	for plan, algorithms := range map[string][]string{"cubic_bbr": {"cubic", "bbr"}, "cubic_reno": {"cubic", "reno"}, "cubic_dctcp": {"cubic", "dctcp"},
		"cubic_westwood": {"westwood"}} {
		t.Run(plan, func(t *testing.T) {
			t.Parallel()
			for _, a := range algorithms {
				if !slices.Contains(strings.Fields(string(has)), a) {
					facility.Missing(t, "tcp-"+a, "the kernel has "+strings.TrimSpace(string(has)))
				}
			}
			duel(t, binary, plan, algorithms)
		})
	}
}

func duel(t *testing.T, binary, plan string, algorithms []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "duel.bloat.json.gz")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "run", plan, "--lab", "fq_codel", "--lab-carrier", "kernel", "--length", "2", "--lead", "1", "-o", file).CombinedOutput()
	missingLab(t, string(out))
	if strings.Contains(string(out), "congestion control") && err != nil {
		facility.Missing(t, "tcp-"+algorithms[len(algorithms)-1], string(out))
	}
	f, ferr := os.Open(file)
	if ferr != nil {
		t.Fatalf("%v, %v: %s", err, ferr, out)
	}
	defer f.Close()
	rec, err := bufferbloat.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Path.Lab == nil || !strings.HasPrefix(rec.Path.Lab.Carrier, "kernel TCP") {
		t.Errorf("it ran over %+v", rec.Path.Lab)
	}
	ran := map[string]int{}
	for _, planned := range rec.Plan.Phases[1].Flows {
		i := slices.IndexFunc(rec.Flows, func(f bufferbloat.Flow) bool { return f.Name == planned.Name })
		if i < 0 || rec.Flows[i].Result.CongestionControl == "" || planned.CongestionControl == "" {
			continue
		}
		if got := rec.Flows[i].Result.CongestionControl; got != planned.CongestionControl {
			t.Errorf("%s ran with %s, want %s", planned.Name, got, planned.CongestionControl)
		}
		ran[planned.CongestionControl+" "+planned.Direction.String()]++
	}
	for _, a := range algorithms {
		if up, down := ran[a+" "+load.Upload.String()], ran[a+" "+load.Download.String()]; up == 0 || down == 0 {
			t.Errorf("%d flows up and %d down ran with %s, want 2 each\n%s", up, down, a, out)
		}
	}
}
