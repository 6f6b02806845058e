package watch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/facility"
)

// Recorded on hosts with version 2 alone, with version 1, and in a container.
const (
	mountsV2 = `24 30 0:22 / /proc rw,relatime - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
`
	mountsV1 = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	mountsDocker = `1046 1040 0:30 /docker/4f5e /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
`
)

func TestAProcessFindsItsGroups(t *testing.T) {
	for _, c := range []struct {
		name, member, mounts string
		want                 []group
	}{
		{"version 2, from inside out", "0::/system.slice/bloat.service\n", mountsV2,
			[]group{{"/sys/fs/cgroup/system.slice/bloat.service", false}, {"/sys/fs/cgroup/system.slice", false}, {"/sys/fs/cgroup", false}}},
		{"version 1 goes first", "9:cpuset:/other\n5:cpu,cpuacct:/jobs/a:b\n0::/user.slice\n", mountsV1,
			[]group{{"/sys/fs/cgroup/cpu,cpuacct/jobs/a:b", true}, {"/sys/fs/cgroup/cpu,cpuacct/jobs", true}, {"/sys/fs/cgroup/cpu,cpuacct", true}}},
		{"a container whose mount begins at its group", "0::/docker/4f5e\n", mountsDocker, []group{{"/sys/fs/cgroup", false}}},
		{"a container with a name space of its own", "0::/\n", mountsDocker, []group{{"/sys/fs/cgroup", false}}},
		{"a group outside of what can be seen", "0::/../../other\n", mountsV2, []group{{"/sys/fs/cgroup", false}}},
		{"no mount", "0::/a\n", "", nil},
		{"nothing", "", mountsV2, nil},
	} {
		got := groups([]byte(c.member), []byte(c.mounts))
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAGroupsFilesAreRead(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		v1    bool
		want  Quota
		fails bool
	}{
		{"version 2", map[string]string{"cpu.max": "20000 100000\n",
			"cpu.stat": "usage_usec 1790\nuser_usec 1\nnr_periods 120\nnr_throttled 80\nthrottled_usec 7500000\nnr_bursts 0\n"}, false,
			Quota{0.2, 120, 80, 7500 * time.Millisecond}, false},
		{"version 1", map[string]string{"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n",
			"cpu.stat": "nr_periods 12\nnr_throttled 3\nthrottled_time 250000000\n"}, true, Quota{1.5, 12, 3, 250 * time.Millisecond}, false},
		{"no limit in version 2", map[string]string{"cpu.max": "max 100000\n", "cpu.stat": "usage_usec 1\n"}, false, Quota{}, false},
		{"no limit in version 1", map[string]string{"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": ""}, true, Quota{}, false},
		{"the outermost group", map[string]string{"cpu.stat": "usage_usec 1\n"}, false, Quota{}, false},
		{"no period", map[string]string{"cpu.max": "20000 0\n", "cpu.stat": ""}, false, Quota{}, true},
		{"no number", map[string]string{"cpu.max": "20000 100000\n", "cpu.stat": "nr_periods -1\n"}, false, Quota{}, true},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := (group{dir, c.v1}).read(); (err != nil) != c.fails || err == nil && got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func FuzzGroups(f *testing.F) {
	f.Add([]byte("5:cpu,cpuacct:/jobs\n0::/user.slice\n"), []byte(mountsV1))
	f.Add([]byte("0::/docker/4f5e\n"), []byte(mountsDocker))
	f.Fuzz(func(t *testing.T, member, mounts []byte) {
		for _, g := range groups(member, mounts) {
			if strings.Contains(g.dir, "..") && !strings.Contains(string(mounts), "..") {
				t.Errorf("a group outside of its mount: %v", g)
			}
		}
	})
}

func FuzzQuotaStat(f *testing.F) {
	f.Add([]byte("nr_periods 120\nnr_throttled 80\nthrottled_usec 7500000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q Quota
		if q.parseStat(b) == nil && q.Stopped < 0 {
			t.Errorf("%q gives %+v", b, q)
		}
	})
}

// quotaVariable makes this test program one that spins, in place of a test.
const quotaVariable = "BLOAT_SPIN"

// A process in a group of 20 % of one CPU finds the quota, and that it was stopped by it.
func TestAQuotaOfAFifthStopsAProcess(t *testing.T) {
	if os.Getenv(quotaVariable) != "" {
		spin(t)
		return
	}
	dir := limitedGroup(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The shell enters the group before it becomes the program.
	cmd := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && exec "$2" -test.run "^TestAQuotaOfAFifthStopsAProcess$" -test.v`, "sh", dir, program)
	cmd.Env = append(os.Environ(), quotaVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// limitedGroup makes a control group with a quota of 0.2 CPUs and removes it when the test is over.
func limitedGroup(t *testing.T) string {
	t.Helper()
	member, _ := os.ReadFile("/proc/self/cgroup")
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	list := groups(member, mounts)
	if len(list) == 0 {
		facility.Missing(t, "cpuquota", "no control group with the CPU controller")
	}
	top := list[len(list)-1]
	dir := filepath.Join(top.dir, fmt.Sprintf("bb-quota-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		facility.Missing(t, "cpuquota", err.Error())
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	set := map[string]string{"cpu.max": "20000 100000"}
	if top.v1 {
		set = map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000"}
	}
	for name, value := range set {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			facility.Missing(t, "cpuquota", err.Error())
		}
	}
	return dir
}

func spin(t *testing.T) {
	g, err := FindGroup()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Fatal("the quota was not found")
	}
	from, err1 := g.Read()
	if err := errors.Join(err, err1); err != nil {
		t.Fatal(err)
	}
	// On a machine that is busy with other things it may take a while until a fifth of a CPU is used up.
	x, to := 0, from
	for begin := time.Now(); time.Since(begin) < 20*time.Second && (to.Throttled == from.Throttled || to.Stopped == from.Stopped); {
		for range 10_000_000 {
			x++
		}
		if to, err = g.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if share := ThrottledShare(from, to); to.CPUs != 0.2 || share <= 0 || to.Stopped <= from.Stopped {
		t.Errorf("quota of %v CPUs, stopped in %.0f %% of the periods, for %v; want 0.2 and some", to.CPUs, share*100, to.Stopped-from.Stopped)
	}
}

func TestTheShareOfThrottledPeriods(t *testing.T) {
	for _, c := range []struct {
		from, to Quota
		want     float64
	}{
		{Quota{Periods: 100, Throttled: 10}, Quota{Periods: 110, Throttled: 15}, 0.5},
		{Quota{Periods: 100, Throttled: 10}, Quota{Periods: 100, Throttled: 10}, 0},
		{Quota{Periods: 100, Throttled: 10}, Quota{Periods: 5, Throttled: 5}, 0},
		{Quota{}, Quota{Periods: 1, Throttled: 2}, 1},
	} {
		if got := ThrottledShare(c.from, c.to); got != c.want {
			t.Errorf("%+v to %+v: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
