//go:build !linux

package thrift

func forgetCode() {}
