package main

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"bufferbloat/internal/facility"
	"bufferbloat/servers/lab/kernel"
)

// needKernelLab ends the test where this machine cannot have a lab of the kernel's own TCP.
func needKernelLab(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	in, err := kernel.Enter(ctx, kernel.Program{Args: []string{"bloat", "lab", "-q", "--", "true"}, Env: append(os.Environ(), partVariable+"="+clientPart)})
	if missing := (*kernel.MissingError)(nil); errors.As(err, &missing) {
		facility.Missing(t, string(missing.Facility), missing.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if status, err := in.Wait(); status != 0 || err != nil {
		t.Fatalf("an empty lab ends with status %d, %v", status, err)
	}
}

// TestLabScripts runs bloat lab as its users meet it, where the machine can have a lab.
func TestLabScripts(t *testing.T) {
	needKernelLab(t)
	testscript.Run(t, testscript.Params{Dir: "testdata/labscript", RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status, "json": checkJSON}})
}
