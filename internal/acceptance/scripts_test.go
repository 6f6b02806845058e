package acceptance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/facility"
)

var (
	scriptSum = regexp.MustCompile(`(?m)^ *(Download|Upload): +([0-9.]+) Mbps$`)
	linkBytes = regexp.MustCompile(`(?m)^lab: (down|up): .* bytes in, [0-9]+ and ([0-9]+) out,`)
	linkCount = regexp.MustCompile(`(?m)^lab: (down|up): .* bytes in, ([0-9]+) and [0-9]+ out,`)
)

// TestScriptsSumsAreWhatTheLinkCarried has shell scripts call this program under netperf's name, in the ways of the scripts that people have, through the
// emulated link. The link's own count of bytes is what their sums are compared with, so that a slow machine makes no difference.
func TestScriptsSumsAreWhatTheLinkCarried(t *testing.T) {
	t.Parallel()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"sh", "pgrep", "ping", "awk", "seq"} {
		if _, err := exec.LookPath(program); err != nil {
			facility.Missing(t, program, err.Error())
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "netperf")); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"sequential.sh", "together.sh"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			const seconds, sessions = 4, 5
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, "lab", "--down", "8mbit", "--up", "2mbit", "--rtt", "20ms", "--qdisc", "fq_codel", "--",
				"sh", filepath.Join("testdata", "scripts", script), "192.0.2.2", strconv.Itoa(seconds), strconv.Itoa(sessions))
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LC_ALL=C")
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			for _, lacking := range []string{"netns", "userns", "veth", "packet-socket"} {
				if _, reason, ok := strings.Cut(string(out), "no "+lacking+" here: "); ok {
					facility.Missing(t, lacking, reason)
				}
			}
			sums, carried, packets := numbers(scriptSum, out), numbers(linkBytes, out), numbers(linkCount, out)
			if err != nil || len(sums) != 2 || len(carried) != 2 {
				t.Fatalf("%v: sums %v, carried %v\n%s", err, sums, carried, out)
			}
			for direction, links := range map[string][2]string{"Download": {"down", "up"}, "Upload": {"up", "down"}} {
				// Sessions have a time each, and what all of them moved in theirs is what crossed the link, less headers; and less the acknowledgements of
				// what came the other way, of which there is at most one for each packet.
				const share, ack = 1448.0 / 1514, 66
				got, most := sums[direction]*1e6/8*seconds, carried[links[0]]*share
				if least := 0.75 * (most - ack*packets[links[1]]); got < least || got > 1.01*most {
					t.Errorf("%s: the sum of %.2f Mbit/s is %.0f bytes in %d s, of %.0f to %.0f that the link carried\n%s", direction, sums[direction], got, seconds,
						least, most, out)
				}
			}
		})
	}
}

// numbers returns what a pattern finds: its second group by its first.
func numbers(pattern *regexp.Regexp, text []byte) map[string]float64 {
	found := map[string]float64{}
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		found[string(m[1])], _ = strconv.ParseFloat(string(m[2]), 64)
	}
	return found
}
