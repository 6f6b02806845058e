package lint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// DeepestSleep is how long a CPU takes at most to wake from the deepest of the idle states that it may enter; 0 where the kernel does not tell.
func DeepestSleep() time.Duration {
	return deepestSleep("/sys/devices/system/cpu/cpu0/cpuidle")
}

// deepestSleep reads the states in a directory like a CPU's cpuidle.
func deepestSleep(dir string) (deepest time.Duration) {
	const most = 16 // states; the kernel has 10 at most
	number := func(state, file string) int {
		b, err := os.ReadFile(filepath.Join(dir, state, file))
		n, err2 := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil || err2 != nil || n < 0 || n > 1e6 {
			return 0
		}
		return n
	}
	for i := range most {
		state := "state" + strconv.Itoa(i)
		if number(state, "disable") == 0 {
			deepest = max(deepest, time.Duration(number(state, "latency"))*time.Microsecond)
		}
	}
	return deepest
}
