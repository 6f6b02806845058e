//go:build !linux

package testnet

import "errors"

func inside(string, func()) error { return errors.ErrUnsupported }
