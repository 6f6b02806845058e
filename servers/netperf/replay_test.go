package netperf

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// TestEveryCapturedClientGetsItsAnswer sends what each captured client said, up to and with its first request for a test, and checks the answer
// to that: a port for the data, or the error that is due.
func TestEveryCapturedClientGetsItsAnswer(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "..", "internal", "wire", "netperf", "testdata", "captures", "*.c2s.hex"))
	if err != nil || len(files) < 25 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	h := host.NewKernel()
	at, _ := serve(t, h, Options{})
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		stream := capture(t, name)
		p := dial(t, h, at)
		switch {
		case strings.HasPrefix(name, "v245"), strings.HasPrefix(name, "v250"):
			if p.send(stream[:wire.OldSize]); !p.closed(5 * time.Second) {
				t.Errorf("%s: a client of the 256-byte protocol is left to wait", name)
			}
			continue
		case name == "cpu-calibrate.c2s":
			if cpu, err := wire.ParseCPUCalibration(p.send(stream).record(5 * time.Second)); err != nil || cpu.Rate != 100 {
				t.Errorf("%s: %+v, %v", name, cpu, err)
			}
			continue
		}
		p.answersTo(name, stream)
	}
}

// answersTo sends the records of a client one after the other, and checks the answer to the first that asks for a test.
func (p *peer) answersTo(name string, stream []byte) {
	p.Helper()
	for ; len(stream) >= wire.Size; stream = stream[wire.Size:] {
		record := stream[:wire.Size]
		kind, _, err := wire.ParseType(record)
		if err != nil {
			p.Fatal(err)
		}
		p.send(record)
		switch kind {
		case wire.TypePassphrase:
			continue
		case wire.TypeSysInfo:
			if _, err := wire.ParseSysInfo(p.record(5 * time.Second)); err != nil {
				p.Errorf("%s: %v", name, err)
			}
			continue
		case wire.TypeOmni:
			got, err := wire.ParseResponse(p.record(5 * time.Second))
			// Here the control connection is of IPv4, and no datagrams go to an address of another family.
			if foreign := strings.Contains(name, "udp-rr-ipv6"); err != nil || foreign && got.Error != wire.NotPermitted ||
				!foreign && (got.Error != 0 || got.DataPort == 0) {
				p.Errorf("%s: %+v, %v", name, got, err)
			}
			return
		}
		old, err := wire.ParseLegacy(record)
		if err != nil { // TCP_CC, which is not served
			if got, err := wire.ParseRefusal(p.record(5 * time.Second)); err != nil || got.Number != wire.UnknownTest {
				p.Errorf("%s: %+v, %v", name, got, err)
			}
			return
		}
		if got, err := wire.ParseLegacyResponse(p.record(5*time.Second), old.Test); err != nil || got.Error != 0 || got.DataPort == 0 {
			p.Errorf("%s: %+v, %v", name, got, err)
		}
		return
	}
	p.Errorf("%s asks for no test", name)
}
