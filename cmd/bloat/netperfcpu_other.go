//go:build !linux

package main

import "errors"

func runOn(int) error { return errors.ErrUnsupported }
