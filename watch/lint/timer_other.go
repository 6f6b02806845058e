//go:build !linux

package lint

import "time"

// TimerResolution is not known on this system.
func TimerResolution() time.Duration { return 0 }
