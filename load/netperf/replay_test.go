package netperf

import (
	"path/filepath"
	"strings"
	"testing"

	wire "bufferbloat/internal/wire/netperf"
)

// TestEveryCapturedServerIsUnderstood reads what each captured server said as the client does, and encodes what was understood anew.
func TestEveryCapturedServerIsUnderstood(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "internal", "wire", "netperf", "testdata", "captures", "*.s2c.hex"))
	if err != nil || len(files) < 25 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".s2c.hex")
		said := capture(t, name+".s2c")
		switch {
		case strings.HasPrefix(name, "v245"), strings.HasPrefix(name, "v250"), strings.HasPrefix(name, "legacy-"), name == "cpu-calibrate":
			continue // what this client does not ask for; the 256-byte protocol is ErrTooOld, the others are the wire package's
		case name == "passphrase-bad", name == "passphrase-missing":
			if len(said) != 0 {
				t.Errorf("%s: the server said something", name)
			}
			continue
		case name == "unsupported-test":
			if r, err := wire.ParseResponse(said[0]); err != nil || r.Error != wire.UnknownTest {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			continue
		}
		layout := wire.Layout27
		if strings.HasPrefix(name, "v260") {
			var info ServerInfo
			if err := info.read(said[0]); err != nil || info.Name == "" {
				t.Errorf("%s: %+v, %v", name, info, err)
			}
			layout, said = info.Layout, said[1:]
		}
		understood(t, name, said, layout)
	}
}

// understood reads pairs of a response and its results.
func understood(t *testing.T, name string, said [][]byte, layout wire.Layout) {
	t.Helper()
	if len(said) == 0 || len(said)%2 != 0 {
		t.Errorf("%s: %d records", name, len(said))
	}
	for i := 0; i+1 < len(said); i += 2 {
		response, err := wire.ParseResponse(said[i])
		if err != nil || response.Error != 0 || response.DataPort == 0 {
			t.Errorf("%s: response %+v, %v", name, response, err)
		}
		results, err := wire.ParseResults(said[i+1], layout)
		moved := results.RxBytes + results.TxBytes
		if err != nil || results.Error != 0 || moved == 0 || results.ElapsedSeconds <= 0 || results.ElapsedSeconds > 2 || results.Retransmits < -1 {
			t.Errorf("%s: results %+v, %v", name, results, err)
		}
		if tcp := !strings.Contains(name, "udp") && !strings.Contains(name, "crr"); tcp && results.Congestion == "" {
			t.Errorf("%s: no congestion control", name)
		}
	}
}
