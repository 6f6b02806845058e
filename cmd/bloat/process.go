package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// lastWait is how long a process that was told to end may take.
const lastWait = 15 * time.Second

// runShell runs a command of the shell with its output in log, and ends it, with all that it started, when ctx is done.
func runShell(ctx context.Context, command, dir string, env []string, log io.Writer) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), log, log
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = time.Second // for what it left behind with its output open
	return cmd.Run()
}

// runAlone runs this program as a process of its own, and returns its exit status. When ctx is done it is interrupted.
func runAlone(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	path, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Args[0] = "bloat"
	cmd.Stdout, cmd.Stderr = stdout, stderr
	ownGroup(cmd) // an interrupt typed at the terminal reaches it by way of this process alone, once
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = lastWait
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	if err != nil && ctx.Err() != nil {
		return statusFailed, context.Cause(ctx)
	}
	return 0, err
}
