package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tried runs a command line in this process, and returns its status and what it printed.
func tried(t *testing.T, ctx context.Context, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	a := &app{stdout: &out, stderr: &complaints, now: func() time.Time { return time.Unix(3, 0).UTC() }} // a router that has just begun
	status = a.run(ctx, args)
	return status, out.String(), complaints.String()
}

func TestScriptsHaveTheirOwnFlagsAndDefaults(t *testing.T) {
	for _, tt := range []struct {
		line string
		want []string // in the plan
		not  string
	}{
		{"speedtest -H s.example", []string{"server s.example,", "0s to 5s idle", "5s to 35s download", "36s to 1m6s upload", "download 5", "probe ping auto to s.example"}, "flow download 6"},
		{"speedtest.sh -H s.example -t10 -n 2 -c", []string{"5s to 15s both", "download 2", "upload 2"}, "flow download 3"},
		{"betterspeedtest.sh", []string{"server netperf.bufferbloat.net,", "0s to 1m0s download", "1m1s to 2m1s upload", "download 5", "auto to gstatic.com", "IPv4"}, " idle"},
		{"betterspeedtest.sh --time=20 --idle --ping 192.0.2.1 -6", []string{"0s to 20s idle", "auto to 192.0.2.1", "IPv6"}, "download"},
		{"netperfrunner.sh", []string{"0s to 1m0s both", "download 4", "upload 4", "auto to gstatic.com"}, "flow download 5"},
		{"speedtest-netperf.sh -s", []string{"0s to 30s download", "31s to 1m1s upload", "auto to one.one.one.one"}, " idle"},
		{"speedtest-netperf.sh -i -c 12", []string{"0s to 30s idle", "30s to 42s both"}, "s upload "},
		{"speedtest-netperf.sh -s 5 -c 7 -t 9", []string{"0s to 9s both"}, "s upload "},
		{"speedtest-netperf.sh -i 4", []string{"0s to 4s idle"}, "download"},
		{"speedtest-netperf.sh -t 9 -i", []string{"0s to 9s idle", "server one.one.one.one,"}, "netperf.bufferbloat.net"},
		{"speedtest-netperf.sh -t 9 -i 4 -s", []string{"0s to 4s idle", "4s to 13s download"}, "to 30s"},
		{"speedtest-netperf.sh -i 4 -c 5 -t 9 -6", []string{"0s to 9s idle", "9s to 18s both", "IPv6"}, "to 4s"},
		{"speedtest-netperf.sh --sequential --number 2 --host h.example --ping p.example -4", []string{"server h.example", "auto to p.example", "upload 2", "IPv4"}, "flow upload 3"},
		{"betterspeedtest.sh -i", []string{"server gstatic.com,", "0s to 1m0s idle", "auto to gstatic.com"}, "netperf.bufferbloat.net"},
		{"betterspeedtest.sh -4 -t 20 -n 3 -Z secret", []string{"0s to 20s download", "upload 3"}, "flow upload 4"},
		{"speedtest -H s.example", []string{"flow download 2 download TCP, netperf, CS0", "flow upload 5 upload TCP, netperf, CS0, if the others carry 3.5Mbit"}, "flow upload 2 upload TCP, netperf, CS0, if"},
		{"speedtest -H s.example -n 5", []string{"download 5"}, "if the others"},
		{"rrul -H s.example --length 20", []string{"plan rrul", "5s to 25s load", "probe UDP EF"}, "flow download 1"},
	} {
		status, out, complaints := tried(t, t.Context(), strings.Fields(tt.line+" --dry-run")...)
		out = strings.Join(strings.Fields(out), " ")
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the plan has no %q:\n%s", tt.line, want, out)
			}
		}
		if status != 0 || complaints != "" || strings.Contains(out, tt.not) && tt.not != "" {
			t.Errorf("%s: status %d, %q, want no %q in\n%s", tt.line, status, complaints, tt.not, out)
		}
	}
}

func TestWhatCanNotBeIsUsage(t *testing.T) {
	for line, want := range map[string]string{
		"speedtest":                                    "-H HOST",
		"speedtest -H":                                 "wants a value",
		"speedtest -H a -t x":                          "want seconds",
		"speedtest -H a -n 0":                          "want 1 to",
		"speedtest -H a -s -c":                         "exclude",
		"speedtest -H a -4 -6":                         "exclude",
		"speedtest -H a --json=1":                      "takes no value",
		"speedtest -H a --frob":                        "unknown flag",
		"speedtest -H a extra":                         "unexpected argument",
		"speedtest -H a --format xml":                  "want speedtest",
		"speedtest -H a --source here":                 "address of this host",
		"speedtest-netperf.sh":                         "say what to do",
		"netperfrunner.sh -i":                          "unknown flag",
		"rrul":                                         "-H HOST",
		"rrul -H a --length 1h1s":                      "want seconds",
		"serve --data-ports 9-3":                       "FIRST-LAST",
		"serve --bind here":                            "address of this host",
		"speedtest -H a -o /no/such/directory/x":       "-o: ",
		"speedtest -H a --rate 2Mbit":                  "unknown flag",
		"betterspeedtest.sh -H 192.0.2.1 --probe what": "probe",
	} {
		if status, out, complaints := tried(t, t.Context(), strings.Fields(line)...); status != statusUsage || out != "" || !strings.Contains(complaints, want) {
			t.Errorf("%s: status %d, %q, %q, want status 2 and %q", line, status, out, complaints, want)
		}
	}
}

func TestASpeedtestAgainstItsOwnServer(t *testing.T) {
	control, probes := serve(t)
	to := []string{"-H", "127.0.0.1", "--port", strconv.Itoa(int(control.Port())), "--irtt-port", strconv.Itoa(int(probes.Port()))}
	kept := filepath.Join(t.TempDir(), "x.bloat.json.gz")
	status, out, complaints := tried(t, t.Context(), append([]string{"speedtest-netperf.sh", "-p", "127.0.0.1", "-c", "2", "-n", "2", "-o", kept}, to...)...)
	if status != 0 && status != 4 {
		t.Fatalf("status %d: %s", status, complaints)
	}
	for _, want := range []string{"1970-01-01 00:00:03 Testing", "\n Download: ", "\n   Upload: ", "\n   Median: ", "\n CPU Load: "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if info, err := os.Stat(kept); err != nil || info.Size() == 0 {
		t.Errorf("no recording: %v", err)
	}
}
