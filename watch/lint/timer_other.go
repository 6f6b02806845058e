//go:build !linux

package lint

import "time"

// TimerResolution is not known on this system.
func TimerResolution() time.Duration { return 0 }

// DeepestSleep is not known on this system.
func DeepestSleep() time.Duration { return 0 }
