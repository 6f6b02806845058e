//go:build !linux

package main

import "net"

func builtLab(net.Conn) bool { return false }
