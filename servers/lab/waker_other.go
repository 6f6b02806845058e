//go:build !linux

package lab

func newWaker() (waker, error) { return newSleeper(), nil }
