package planfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/yamlnode"
	"bufferbloat/load"
)

// field is a key of a file and the field of a T that it sets.
type field[T any] struct {
	key string
	// set reads a text that is not "".
	set func(*T, string) error
	// text is what set reads to the same effect, "" for the zero value.
	text func(*T) string
	// plain says that text is a number, or true or false, and is written without quotes.
	plain bool
}

func (f field[T]) asPlain() field[T] {
	f.plain = true
	return f
}

// of makes a field of a place in T, with what reads and writes it.
func of[T any, V comparable](key string, place func(*T) *V, read func(string) (V, error), write func(V) string) field[T] {
	set := func(t *T, s string) (err error) { *place(t), err = read(s); return err }
	return field[T]{key: key, set: set, text: func(t *T) string {
		var zero V
		if v := *place(t); v != zero {
			return write(v)
		}
		return ""
	}}
}

func word[T any, V ~string](key string, place func(*T) *V) field[T] {
	return of(key, place, func(s string) (V, error) { return V(s), nil }, func(v V) string { return string(v) })
}

func duration[T any](key string, place func(*T) *time.Duration) field[T] {
	return of(key, place, func(s string) (time.Duration, error) { return parse[time.Duration](bufferbloat.Duration, s) }, time.Duration.String)
}

func count[T any](key string, place func(*T) *int) field[T] {
	return of(key, place, func(s string) (int, error) { return parse[int](bufferbloat.Count, s) }, strconv.Itoa).asPlain()
}

func yes[T any](key string, place func(*T) *bool) field[T] {
	return of(key, place, func(s string) (bool, error) { return parse[bool](bufferbloat.YesNo, s) }, strconv.FormatBool).asPlain()
}

func mark[T any](key string, place func(*T) *dscp.CodePoint) field[T] {
	return of(key, place, dscp.Parse, dscp.CodePoint.String)
}

func port[T any](key string, place func(*T) *uint16) field[T] {
	return of(key, place, func(s string) (uint16, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("port %q: want 1 to 65535", s)
		}
		return uint16(n), nil
	}, func(n uint16) string { return strconv.Itoa(int(n)) }).asPlain()
}

func address[T any](key string, place func(*T) *netip.Addr) field[T] {
	return of(key, place, netip.ParseAddr, netip.Addr.String)
}

// parse reads a text as a parameter of a type is read.
func parse[V any](kind bufferbloat.ParameterType, text string) (V, error) {
	p := bufferbloat.Parameter{Type: kind}
	v, err := p.Parse(text)
	if err != nil {
		var none V
		return none, err
	}
	return v.(V), nil
}

func serverFields() []field[bufferbloat.Server] {
	type S = bufferbloat.Server
	return []field[S]{
		word("name", func(s *S) *string { return &s.Name }),
		word("host", func(s *S) *string { return &s.Host }),
		count("family", func(s *S) *int { return &s.Family }),
		port("netperf_port", func(s *S) *uint16 { return &s.NetperfPort }),
		port("data_port", func(s *S) *uint16 { return &s.DataPort }),
		port("irtt_port", func(s *S) *uint16 { return &s.IRTTPort }),
		port("iperf3_port", func(s *S) *uint16 { return &s.IPerf3Port }),
		address("source", func(s *S) *netip.Addr { return &s.Source }),
		word("interface", func(s *S) *string { return &s.Interface }),
	}
}

func phaseFields() []field[bufferbloat.PhasePlan] {
	type P = bufferbloat.PhasePlan
	return []field[P]{
		word("name", func(p *P) *string { return &p.Name }),
		word("kind", func(p *P) *bufferbloat.PhaseKind { return &p.Kind }),
		duration("length", func(p *P) *time.Duration { return &p.Length }),
		duration("skip", func(p *P) *time.Duration { return &p.Skip }),
	}
}

func flowFields() []field[bufferbloat.FlowPlan] {
	type F = bufferbloat.FlowPlan
	return []field[F]{
		word("name", func(f *F) *string { return &f.Name }),
		of("direction", func(f *F) *load.Direction { return &f.Direction }, parseDirection, load.Direction.String),
		word("protocol", func(f *F) *bufferbloat.Protocol { return &f.Protocol }),
		mark("dscp", func(f *F) *dscp.CodePoint { return &f.DSCP }),
		word("server", func(f *F) *string { return &f.Server }),
		count("family", func(f *F) *int { return &f.Family }),
		word("group", func(f *F) *string { return &f.Group }),
		duration("start", func(f *F) *time.Duration { return &f.Start }),
		duration("length", func(f *F) *time.Duration { return &f.Length }),
		word("congestion_control", func(f *F) *string { return &f.CongestionControl }),
		of("rate", func(f *F) *bitrate.Bitrate { return &f.Rate }, bitrate.Parse, bitrate.Bitrate.String),
		of("bytes", func(f *F) *uint64 { return &f.Bytes }, parseBytes, func(n uint64) string { return strconv.FormatUint(n, 10) }).asPlain(),
		count("size", func(f *F) *int { return &f.Size }),
		word("url", func(f *F) *string { return &f.URL }),
		address("source", func(f *F) *netip.Addr { return &f.Source }),
		word("interface", func(f *F) *string { return &f.Interface }),
		yes("optional", func(f *F) *bool { return &f.Optional }),
		of("above", func(f *F) *bitrate.Bitrate { return &f.Above }, bitrate.Parse, bitrate.Bitrate.String),
	}
}

func probeFields() []field[bufferbloat.ProbePlan] {
	type P = bufferbloat.ProbePlan
	return []field[P]{
		word("name", func(p *P) *string { return &p.Name }),
		word("kind", func(p *P) *bufferbloat.ProbeKind { return &p.Kind }),
		word("target", func(p *P) *string { return &p.Target }),
		word("server", func(p *P) *string { return &p.Server }),
		count("family", func(p *P) *int { return &p.Family }),
		duration("interval", func(p *P) *time.Duration { return &p.Interval }),
		mark("dscp", func(p *P) *dscp.CodePoint { return &p.DSCP }),
		of("ecn", func(p *P) *host.ECN { return &p.ECN }, parseECN, host.ECN.String),
		yes("primary", func(p *P) *bool { return &p.Primary }),
		yes("optional", func(p *P) *bool { return &p.Optional }),
		duration("start", func(p *P) *time.Duration { return &p.Start }),
		duration("length", func(p *P) *time.Duration { return &p.Length }),
		count("size", func(p *P) *int { return &p.Size }),
		word("url", func(p *P) *string { return &p.URL }),
		word("query", func(p *P) *string { return &p.Query }),
		address("source", func(p *P) *netip.Addr { return &p.Source }),
		word("interface", func(p *P) *string { return &p.Interface }),
	}
}

func parseDirection(s string) (load.Direction, error) {
	for _, d := range []load.Direction{load.Download, load.Upload} {
		if s == d.String() {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%q: want download or upload", s)
}

func parseECN(s string) (host.ECN, error) {
	for e := host.NotECT; e <= host.CE; e++ {
		if strings.EqualFold(s, e.String()) {
			return e, nil
		}
	}
	return 0, fmt.Errorf("ECN %q: want Not-ECT, ECT(0), ECT(1) or CE", s)
}

// parseBytes reads a number of bytes, plain or with k, M or G for powers of 1000.
func parseBytes(s string) (uint64, error) {
	number, unit := s, uint64(1)
	for _, u := range []struct {
		name string
		unit uint64
	}{{"k", 1e3}, {"M", 1e6}, {"G", 1e9}} {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = rest, u.unit
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n > 1e15/unit {
		return 0, fmt.Errorf("%q: want a number of bytes up to 1e15, as in 500000 or 10M", s)
	}
	return n * unit, nil
}

// read sets the fields of t from the keys of a value, whose texts come from text. The keys in other are somebody else's. A text that is empty once its
// parameters are in it leaves the field alone.
func read[T any](value yamlnode.Value, fields []field[T], t *T, text func(yamlnode.Value) (string, error), other ...string) error {
	keys := slices.Clone(other)
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	m, err := value.Map(keys...)
	if err != nil {
		return err
	}
	for _, f := range fields {
		v, ok := m[f.key]
		if !ok {
			continue
		}
		s, err := text(v)
		if err == nil && s != "" {
			err = f.set(t, s)
		}
		if err != nil {
			return at(v, err)
		}
	}
	return nil
}
