//go:build !unix

package watch

import (
	"errors"
	"time"
)

func readOwn() (user, system time.Duration, err error) { return 0, 0, errors.ErrUnsupported }
