package main

import (
	"encoding/json"
	"errors"
	"net"
	"testing"

	"bufferbloat"
	"bufferbloat/servers/lab/kernel"
)

func TestWhoRunsInsideALabIsToldWhatItCounts(t *testing.T) {
	ours, theirs := net.Pipe()
	counted := kernel.Stats{}
	counted.Down.Marked = 7
	var broken error
	served := make(chan struct{})
	go func() {
		defer close(served)
		serveInside(theirs, bufferbloat.LabLink{Carrier: "a test"}, func() (kernel.Stats, error) { return counted, broken })
	}()
	l := &insideLab{conn: ours, answers: json.NewDecoder(ours)}
	if a, err := l.ask(); err != nil || a.Link.Carrier != "a test" || a.Stats.Down.Marked != 7 {
		t.Errorf("got %+v, %v", a, err)
	}
	broken = errors.New("the forwarder is gone")
	if _, err := l.ask(); err == nil {
		t.Errorf("of a lab that is broken: got %v", err)
	}
	ours.Close()
	<-served
	if _, err := l.ask(); err == nil {
		t.Error("of a lab that is gone: no error")
	}
}

func TestCountersThatBeganBeforeTheRunAreSaidToHave(t *testing.T) {
	var s kernel.Stats
	s.Up.In.Packets = 20
	if got := earlierTraffic(s); got != nil {
		t.Errorf("a few packets: got %+v", got)
	}
	s.Down.In.Packets = 1000
	if got := earlierTraffic(s); len(got) != 1 || got[0].Code != "lab_used_before" || got[0].Severity != bufferbloat.Note {
		t.Errorf("a run before: got %+v", got)
	}
}

func TestOnlyTheFirstProcessIsALab(t *testing.T) {
	stop := answerInside(bufferbloat.LabLink{}, func() (kernel.Stats, error) { return kernel.Stats{}, nil })
	defer stop()
	var o bufferbloat.RunOptions
	joinLab(&o)()
	if o.Lab != nil || len(o.Watch) > 0 {
		t.Errorf("a process that is not the first is taken for a lab: %+v", o.Lab)
	}
}
