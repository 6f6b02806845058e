//go:build !linux

package wifi

import "errors"

func read(int) ([]Station, error) { return nil, errors.ErrUnsupported }
