package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"bufferbloat/batch"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/report"
	"bufferbloat/report/compare"
	"bufferbloat/servers/directory"
)

// TestMain makes this test binary the command itself, under its own names, for the scripts.
func TestMain(m *testing.M) {
	command := func() {
		a := &app{stdout: os.Stdout, stderr: os.Stderr, version: "v0.0-test", now: time.Now, part: takePart()}
		ctx, stop := program.Interruptible(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		a.uninterrupt = stop
		status := a.run(ctx, os.Args)
		stop()
		os.Exit(status)
	}
	testscript.Main(m, map[string]func(){"bloat": command, "speedtest": command, "rrul": command, "netperf": command})
}

// TestScripts runs the commands as a user meets them: streams and exit status included. Besides testscript's own, a script has
//
//	status N[|M] COMMAND ... run a command that must exit with status N (or M)
//	json FILE [KEY VALUE]    FILE must be one JSON document of our schema; the top-level KEY must be VALUE
//	events FILE TYPE ...     FILE must be lines of --events, those types among them
//	await PORT               wait until a background command takes connections there
//
// and the variables NETPERF and IRTT (free ports), SILENT (a port that accepts and never says a word) and CLOSING (one that closes at once).
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for _, name := range []string{"NETPERF", "IRTT", "NOBODY"} {
				port, err := freePort()
				if err != nil {
					return err
				}
				e.Setenv(name, port)
			}
			silent, err := badPeer(e, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			if err != nil {
				return err
			}
			closing, err := badPeer(e, func(net.Conn) {})
			e.Setenv("SILENT", silent)
			e.Setenv("CLOSING", closing)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status, "json": checkJSON, "await": await, "events": scriptEvents},
	})
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// badPeer listens on a port of loopback and gives each connection to serve, until the script is over.
func badPeer(e *testscript.Env, serve func(net.Conn)) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	e.Defer(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// status runs a command and compares its exit status.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND ...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (interface{ ExitCode() int })(nil); err != nil {
		var ok bool
		if exit, ok = err.(interface{ ExitCode() int }); !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if !slices.Contains(strings.Split(args[0], "|"), strconv.Itoa(got)) {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

// checkJSON validates a document against the published schema that it names and compares some of its top-level values.
func checkJSON(ts *testscript.TestScript, _ bool, args []string) {
	var doc map[string]any
	decoder := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	ts.Check(decoder.Decode(&doc))
	if _, err := decoder.Token(); err != io.EOF {
		ts.Fatalf("%s holds more than one document", args[0])
	}
	published := report.JSONSchema()
	switch doc["schema"] {
	case compare.Schema:
		published = compare.JSONSchema()
	case directory.Schema:
		published = directory.JSONSchema()
	case batch.IndexSchema:
		published = batch.JSONSchema()
	}
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(string(published)))
	ts.Check(err)
	c := jsonschema.NewCompiler()
	ts.Check(c.AddResource("result.json", schema))
	s, err := c.Compile("result.json")
	ts.Check(err)
	ts.Check(s.Validate(doc))
	for i := 1; i+1 < len(args); i += 2 {
		if got := fmt.Sprint(doc[args[i]]); !strings.Contains(got, args[i+1]) {
			ts.Fatalf("%s: %s is %s, want %s", filepath.Base(args[0]), args[i], got, args[i+1])
		}
	}
}

// scriptEvents validates a file of --events.
func scriptEvents(ts *testscript.TestScript, _ bool, args []string) {
	types, err := readEvents(ts.ReadFile(args[0]))
	ts.Check(err)
	for _, want := range args[1:] {
		if types[want] == 0 {
			ts.Fatalf("no %q among the events: %v", want, types)
		}
	}
}

// await waits until a TCP port of loopback is listened at.
func await(ts *testscript.TestScript, _ bool, args []string) {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-again.C {
		if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", args[0])); err == nil {
			c.Close()
			return
		}
	}
	ts.Fatalf("nobody listens at port %s", args[0])
}
