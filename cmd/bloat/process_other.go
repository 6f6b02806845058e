//go:build !unix

package main

import "os/exec"

// ownGroup does nothing where processes have no groups.
func ownGroup(*exec.Cmd) {}

// killGroup ends the process.
func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// onContinue does nothing where processes are not stopped.
func onContinue(func()) (stop func()) { return func() {} }

// descriptors is 0, not known.
func descriptors() uint64 { return 0 }
