package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	dir := quotaGroup(t, 0.2)
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
	found := false
	d := parse(t, stdout.Bytes())
	for _, f := range d.Findings {
		found = found || f.Code == "cpu_client" && strings.Contains(f.Text, "a quota of 0.2 CPUs stopped this program")
	}
	if !found {
		t.Errorf("no finding names the quota: %+v\n%s", d.Findings, stderr.String())
	}
}
