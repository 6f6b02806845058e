package bufferbloat

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// odd are values that no form but the last has, and some at the ends of the others.
var odd = []float64{0, math.Copysign(0, -1), 1, -1, 0.1, 1.0 / 3, math.Pi, 1e300, -1e300, 5e-324, math.MaxFloat64, math.Inf(1), math.Inf(-1),
	1 << 53, 1<<53 - 1, 1<<53 + 2, -1 << 53, 9.007199254740991e12, 9.3e15, 0.000001, 0.0000001, 12.345, 138.83547700000003, 4294967295}

func sameBits(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

func TestEachValueComesBackToTheBit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	want := slices.Clone(odd)
	for range 20_000 {
		switch rnd.IntN(5) {
		case 0:
			want = append(want, math.Float64frombits(rnd.Uint64()))
		case 1:
			want = append(want, time.Duration(rnd.Int64N(1e9)*1000).Seconds()*1e3)
		case 2:
			want = append(want, time.Duration(rnd.Int64N(1e12)).Seconds()*1e3)
		case 3:
			want = append(want, time.Duration(rnd.Int64N(1e12)*1000).Seconds())
		default:
			want = append(want, float64(rnd.Int64N(1e12)-5e11))
		}
	}
	for name, shelf := range shelves() {
		first := packedValues{shelf: shelf}
		second := packedValues{shelf: shelf, before: &first}
		for i, v := range want {
			first.add(time.Duration(i*i), v)
			if i%100 == 0 { // the second comes a while after the first, as quantities do
				for j := second.n; j < i; j++ {
					second.add(time.Duration(j*j), want[j])
				}
			}
		}
		if second.own {
			t.Errorf("%s: the second has times of its own", name)
		}
		for _, k := range []*packedValues{&first, &second} {
			at, got := k.all()
			if !slices.EqualFunc(got, want[:k.n], sameBits) {
				t.Errorf("%s: %d values come back as others", name, k.n)
			}
			for i := range at {
				if at[i] != time.Duration(i*i) {
					t.Fatalf("%s: time %d of %d is %d", name, i, len(at), at[i])
				}
			}
		}
	}
}

// memoryFile is a Scratch that has room for so many bytes.
type memoryFile struct {
	b    []byte
	room int
}

func (f *memoryFile) WriteAt(b []byte, at int64) (int, error) {
	if int(at)+len(b) > f.room {
		return 0, errors.New("no space left")
	}
	if int(at) != len(f.b) {
		return 0, errors.New("a gap")
	}
	f.b = append(f.b, b...)
	return len(b), nil
}

func (f *memoryFile) ReadAt(b []byte, at int64) (int, error) {
	return copy(b, f.b[at:]), nil
}

// shelves are the ways in which a recording may be held.
func shelves() map[string]*shelf {
	return map[string]*shelf{
		"in memory":              nil,
		"all in a file":          {file: &memoryFile{room: 1 << 30}},
		"in a file from 100 kB":  {file: &memoryFile{room: 1 << 30}, most: 100_000},
		"a file that fills":      {file: &memoryFile{room: 50_000}},
		"a file that takes none": {file: &memoryFile{}},
	}
}

// What TCP_INFO tells of ten flows each 100 ms, read at times that are never quite even.
func TestPackedColumnsAreSmall(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const rows = 3000
	var r Recording
	r.packing = true
	us := func() time.Duration { return time.Duration(rnd.Int64N(1000)) * time.Microsecond }
	series := []struct {
		name string
		most float64 // bytes a value
		next func(i int) float64
	}{
		{"rtt", 3.5, func(int) float64 { return (100*time.Millisecond + 20*us()).Seconds() * 1e3 }},
		{"rtt_var", 2.5, func(int) float64 { return us().Seconds() * 1e3 }},
		{"cwnd", 1.5, func(i int) float64 { return float64(50 + i%20) }},
		{"retransmits", 1.5, func(i int) float64 { return float64(i / 7) }},
		{"busy", 4, func(i int) float64 { return (time.Duration(i)*100*time.Millisecond + us()).Seconds() }},
		{"delivery_rate", 4.5, func(int) float64 { return float64(10_000_000 + rnd.IntN(500_000)) }},
		{"rwnd_limited", 1.1, func(int) float64 { return 0 }},
	}
	columns := make([]valueColumns, len(series))
	for i := range rows {
		at := time.Duration(i)*100*time.Millisecond + us()
		for j := range series {
			columns[j].At, columns[j].Values = append(columns[j].At, at), append(columns[j].Values, series[j].next(i))
		}
	}
	times := 0
	for j, s := range series {
		if err := r.applyQuantity(Quantity{Name: s.name}); err != nil {
			t.Fatal(err)
		}
		columns[j].Quantity = s.name
		if err := r.applyValues(&columns[j]); err != nil {
			t.Fatal(err)
		}
		k := r.Others[j].packed
		if each := float64(k.values.size()) / rows; each > s.most {
			t.Errorf("%s: %.2f bytes a value, want at most %v", s.name, each, s.most)
		}
		if at, values := r.Others[j].Columns(); !slices.Equal(at, columns[j].At) || !slices.EqualFunc(values, columns[j].Values, sameBits) {
			t.Errorf("%s: its values come back as others", s.name)
		}
		if k.own {
			times += k.times.size()
		}
	}
	if each := float64(times) / rows; each > 4 {
		t.Errorf("%.2f bytes a row for its time, want at most 4: they are to be shared", each)
	}
}

// FuzzPackedColumns holds packed quantities to plain ones. Of each row the first byte says which quantities have a value then, so that some part from the times
// of others.
func FuzzPackedColumns(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{7, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	var b []byte
	for i, v := range odd {
		b = append(b, byte(i*5|1))
		b = binary.LittleEndian.AppendUint64(b, uint64(i*1000))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		const n = 3
		var packed [n]packedValues
		packed[1].before, packed[2].before = &packed[0], &packed[1]
		var plain [n]valueColumns
		var points packedPoints
		var readings []Point
		for len(b) >= 17 {
			at, bits := time.Duration(binary.LittleEndian.Uint64(b[1:])), binary.LittleEndian.Uint64(b[9:])
			for j := range n {
				if b[0]>>j&1 != 0 {
					v := math.Float64frombits(bits + uint64(j))
					packed[j].add(at, v)
					plain[j].At, plain[j].Values = append(plain[j].At, at), append(plain[j].Values, v)
				}
			}
			points.add(Point{at, bits})
			readings = append(readings, Point{at, bits})
			b = b[17:]
		}
		for j := range n {
			if at, values := packed[j].all(); !slices.Equal(at, plain[j].At) || !slices.EqualFunc(values, plain[j].Values, sameBits) {
				t.Errorf("quantity %d: got %v %v, want %v %v", j, at, values, plain[j].At, plain[j].Values)
			}
		}
		if got := points.all(); !slices.Equal(got, readings) {
			t.Errorf("got %v, want %v", got, readings)
		}
	})
}

func BenchmarkPackValue(b *testing.B) {
	var first, second packedValues
	second.before = &first
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		at := time.Duration(i)*100*time.Millisecond + time.Duration(i*7919%100_000)
		first.add(at, time.Duration(i%1_000_000*1000).Seconds()*1e3)
		second.add(at, float64(i%40))
		i++
	}
	b.ReportMetric(float64(first.values.size()+second.values.size()+first.times.size())/float64(2*i), "bytes/value")
}

func TestPackingAllocatesSeldom(t *testing.T) {
	var values packedValues
	var points packedPoints
	var samples packedSamples
	some := randomSamples(rand.New(rand.NewPCG(5, 6)), 1, 0)[0]
	i := 0
	allocated := testing.AllocsPerRun(100, func() {
		for range 1000 {
			i++
			values.add(time.Duration(i)*time.Millisecond, float64(i))
			points.add(Point{time.Duration(i) * time.Millisecond, uint64(i)})
			some.Seq = uint64(i)
			samples.add(&some)
		}
	})
	if each := allocated / 3000; each > 0.01 {
		t.Errorf("%v allocations for each of what is packed, want a block now and then", each)
	}
}
