package watch

import "time"

// Own returns the CPU time that this process has used, in its own code and in the kernel's on its behalf, or an error that wraps
// errors.ErrUnsupported where the system does not tell.
func Own() (user, system time.Duration, err error) { return readOwn() }
