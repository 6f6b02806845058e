package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// quotaGroup makes a control group with a quota of CPU time, in CPUs, and removes it when the test is over.
func quotaGroup(t *testing.T, cpus float64) string {
	t.Helper()
	const period = 100_000 // µs
	quota := fmt.Sprint(int(cpus * period))
	for _, c := range []struct {
		top   string
		files [][2]string
	}{
		{"/sys/fs/cgroup/cpu", [][2]string{{"cpu.cfs_period_us", fmt.Sprint(period)}, {"cpu.cfs_quota_us", quota}}}, // version 1
		{"/sys/fs/cgroup", [][2]string{{"cpu.max", quota + " " + fmt.Sprint(period)}}},                              // version 2
	} {
		dir := filepath.Join(c.top, fmt.Sprintf("bb-bench-%d-%s", os.Getpid(), t.Name()))
		if os.Mkdir(dir, 0o700) != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		var err error
		for _, f := range c.files {
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, f[0]), []byte(f[1]), 0o600)
			}
		}
		if err == nil {
			return dir
		}
	}
	facility.Missing(t, "cpuquota", "no control group that a quota can be set in")
	return ""
}

// A client that may use a fifth of a CPU, on an unshaped link: its CPUs are idle, and still they are the limit.
func TestAQuotaOfCPUTimeIsNamedAsTheLimit(t *testing.T) {
	t.Parallel()
	d, stderr := runInQuota(t, 0.2)
	if !namesQuota(d, "a quota of 0.2 CPUs stopped this program") {
		t.Errorf("no finding names the quota: %+v\n%s", d.Findings, stderr)
	}
}

// A quota beyond what the machine has stops nobody, however busy its CPUs are.
func TestAQuotaThatIsEnoughIsNotNamed(t *testing.T) {
	t.Parallel()
	if d, _ := runInQuota(t, float64(4*runtime.NumCPU())); namesQuota(d, "a quota of") {
		t.Errorf("a finding names the quota: %+v", d.Findings)
	}
}

func namesQuota(d document, text string) bool {
	for _, f := range d.Findings {
		if f.Code == "cpu_client" && strings.Contains(f.Text, text) {
			return true
		}
	}
	return false
}

// runInQuota runs a short speedtest on an unshaped link in a control group that may use so many CPUs.
func runInQuota(t *testing.T, cpus float64) (document, string) {
	t.Helper()
	dir := quotaGroup(t, cpus)
	n := testnet.New(t)
	serve(t, n)
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	// "ip netns exec" would hide the control groups' file systems.
	cmd := exec.CommandContext(ctx, "sh", "-c", `echo $$ >"$1/cgroup.procs" && shift && exec "$@"`, "sh", dir,
		"nsenter", "--net=/run/netns/"+n.Client.Name, binary, "speedtest", "-H", n.Server.IP.String(), "-t", "3", "-i", "1", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run() // its status says that the result is weak, or void
	if stdout.Len() == 0 {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	return parse(t, stdout.Bytes()), stderr.String()
}
