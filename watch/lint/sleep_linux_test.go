package lint

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTheDeepestSleepIsThatOfStatesThatAreEntered(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := deepestSleep(dir); got != 0 {
		t.Errorf("got %v of a kernel that tells nothing", got)
	}
	for name, text := range map[string]string{"state0/latency": "0\n", "state0/disable": "0\n", "state1/latency": "133\n", "state1/disable": "0\n",
		"state2/latency": "890\n", "state2/disable": "1\n", "state3/latency": "-5\n", "state4/latency": "odd"} {
		write(name, text)
	}
	if got := deepestSleep(dir); got != 133*time.Microsecond {
		t.Errorf("got %v, want 133 us", got)
	}
	write("state2/disable", "0\n")
	if got := deepestSleep(dir); got != 890*time.Microsecond {
		t.Errorf("got %v, want 890 us", got)
	}
}
