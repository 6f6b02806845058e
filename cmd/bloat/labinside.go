package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"bufferbloat"
	"bufferbloat/servers/lab/kernel"
)

// insideAddress is where the process that built a lab answers the measurements that run inside. It is an abstract name, which every network
// namespace has for itself: nobody outside the lab sees it, and it is gone with the lab.
const insideAddress = "@bloat-lab"

const (
	insideTimeout = 5 * time.Second
	mostInside    = 16 // connections at once
)

// insideAnswer is what is answered to each byte that is asked with.
type insideAnswer struct {
	Link  bufferbloat.LabLink
	Stats kernel.Stats
	Error string
}

// answerInside answers whoever is inside the lab and asks what its link is and counts, until the returned function is called. Where it can't,
// measurements inside are without it.
func answerInside(d bufferbloat.LabLink, stats func() (kernel.Stats, error)) (stop func()) {
	listener, err := net.Listen("unix", insideAddress)
	if err != nil {
		return func() {}
	}
	var serving sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{} // under mu; nil once it is over
	enter := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		if open == nil || len(open) == mostInside {
			return false
		}
		open[c] = true
		return true
	}
	leave := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		delete(open, c)
		c.Close()
	}
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			if !enter(c) {
				c.Close()
				continue
			}
			serving.Go(func() {
				defer leave(c)
				serveInside(c, d, stats)
			})
		}
	})
	return func() {
		listener.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		open = nil
		mu.Unlock()
		serving.Wait()
	}
}

func serveInside(c net.Conn, d bufferbloat.LabLink, stats func() (kernel.Stats, error)) {
	encoder := json.NewEncoder(c)
	for b := make([]byte, 1); ; {
		if n, err := c.Read(b); n == 0 || err != nil {
			return
		}
		a := insideAnswer{Link: d}
		var err error
		if a.Stats, err = stats(); err != nil {
			a.Error = err.Error()
		}
		if c.SetWriteDeadline(time.Now().Add(insideTimeout)) != nil || encoder.Encode(a) != nil {
			return
		}
	}
}

// insideLab is the connection of a measurement to the lab that it runs inside of.
type insideLab struct {
	mu      sync.Mutex
	conn    net.Conn
	answers *json.Decoder
}

func (l *insideLab) ask() (insideAnswer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var a insideAnswer
	err := l.conn.SetDeadline(time.Now().Add(insideTimeout))
	if err == nil {
		_, err = l.conn.Write([]byte{'?'})
	}
	if err == nil {
		err = l.answers.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("ask the lab around this process: %w", err)
	}
	return a, nil
}

// earlierTraffic says that a lab's counters are not those of one run alone.
func earlierTraffic(before kernel.Stats) []bufferbloat.Finding {
	const chatter = 20 // packets of hosts that get to know each other
	n := before.Down.In.Packets + before.Up.In.Packets
	if n <= chatter {
		return nil
	}
	return []bufferbloat.Finding{{Code: "lab_used_before", Severity: bufferbloat.Note,
		Text: fmt.Sprintf("the emulated link counts since it was made: %d packets had crossed it before this run", n)}}
}

// joinLab has a measurement that runs inside "bloat lab" keep what the lab's link is and counts, as if it had made the lab. Outside of one it
// does nothing. The returned function is to be called after the run.
func joinLab(o *bufferbloat.RunOptions) (leave func()) {
	nothing := func() {}
	conn, err := net.DialTimeout("unix", insideAddress, time.Second)
	if err != nil {
		return nothing
	}
	l := &insideLab{conn: conn, answers: json.NewDecoder(bufio.NewReader(conn))}
	first, err := l.ask()
	if err != nil || !builtLab(conn) {
		conn.Close()
		return nothing
	}
	err = keepLabCounts(o, func() (labTruth, error) {
		a, err := l.ask()
		return kernelTruth(a.Stats), err
	})
	if err != nil {
		conn.Close()
		return nothing
	}
	o.Lab = &first.Link
	o.Doubts = func() []bufferbloat.Finding {
		a, err := l.ask()
		return append(kernelDoubts(a.Stats, err), earlierTraffic(first.Stats)...)
	}
	return func() { conn.Close() }
}
