//go:build !linux

package testnet

import "errors"

func (s *Space) inside(func()) error { return errors.ErrUnsupported }
