package bufferbloat

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"bufferbloat/probe"
)

// recorder folds what happens into a Recording and, where there is a file, writes the same entries to it. It is safe for
// concurrent use. A file that is slow to write holds up neither sample nor point: probes and samplers of counters wait for these.
type recorder struct {
	start time.Time // of the run, on the host's clock

	mu      sync.Mutex // held while the file is written
	rec     Recording
	file    *fileWriter // nil without a file
	fault   error       // the first that writing or folding met
	writing *batch      // empty but in flush
	space   sampleColumns

	keeping    sync.Mutex // taken after mu, and held for moments only
	kept       *batch
	quantities map[string]int // index into declared
	declared   []Quantity     // without values
	values     int            // of all quantities
	refused    int            // values that were one too many
}

// Bounds of what a run keeps of quantities.
const (
	maxQuantities = 4096
	maxValues     = 5_000_000 // of all of them together, some 80 MB, or a fifth of it packed
)

// batch is what has come in since a flush.
type batch struct {
	samples map[string][]probe.Sample
	points  map[string][]Point
	values  []valueColumns // in the order of recorder.declared, without names; as many as had values
	cpu     cpuColumns
}

func newBatch() *batch {
	return &batch{samples: map[string][]probe.Sample{}, points: map[string][]Point{}}
}

func newRecorder(start time.Time, w io.Writer) *recorder {
	r := &recorder{start: start, kept: newBatch(), writing: newBatch(), quantities: map[string]int{}}
	if w != nil {
		r.file = newFileWriter(w)
	}
	return r
}

func (r *recorder) put(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(e)
}

func (r *recorder) putLocked(e *entry) {
	err := r.rec.apply(e)
	if r.file != nil {
		err = errors.Join(err, r.file.write(e))
	}
	if r.fault == nil {
		r.fault = err
	}
}

// sample keeps a sample until the next flush.
func (r *recorder) sample(series string, s probe.Sample) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	r.kept.samples[series] = append(r.kept.samples[series], s)
}

// point keeps a counter's reading until the next flush.
func (r *recorder) point(flow string, p Point) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	r.kept.points[flow] = append(r.kept.points[flow], p)
}

func (r *recorder) cpuSample(s CPUSample) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	c := &r.kept.cpu
	c.At, c.Busy, c.Own = append(c.At, s.At), append(c.Busy, s.Busy), append(c.Own, s.Own)
}

// quantity keeps a value until the next flush. The first value of a name declares it. A value that is no finite number says that there is none
// now, and is left out.
func (r *recorder) quantity(name, unit string, at time.Duration, value float64) {
	r.quantityOf("", name, unit, at, value)
}

// quantityOf is quantity for one that is about a flow.
func (r *recorder) quantityOf(flow, name, unit string, at time.Duration, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	r.keeping.Lock()
	defer r.keeping.Unlock()
	i, known := r.quantities[name]
	if r.values == maxValues || !known && len(r.declared) == maxQuantities {
		r.refused++
		return
	}
	if !known {
		i = len(r.declared)
		r.quantities[name] = i
		r.declared = append(r.declared, Quantity{Name: name, Unit: unit, Flow: flow})
	}
	r.values++
	for len(r.kept.values) <= i {
		r.kept.values = append(r.kept.values, valueColumns{})
	}
	c := &r.kept.values[i]
	c.At, c.Values = append(c.At, at), append(c.Values, value)
}

// refusedValues says which values were one too many, or returns false.
func (r *recorder) refusedValues() (Finding, bool) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	return Finding{Code: "quantities_cut", Severity: Note, Text: fmt.Sprintf("%d values of %d quantities are kept, and no more: %d are left out",
		r.values, len(r.declared), r.refused)}, r.refused > 0
}

// flush turns what was kept into entries; a run calls it each second, so that a killed one loses no more.
func (r *recorder) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeping.Lock()
	r.kept, r.writing = r.writing, r.kept
	declared := r.declared
	r.keeping.Unlock()
	b := r.writing
	for i := range r.rec.Probes { // in the order of the recording, so that equal runs make equal files
		name := r.rec.Probes[i].Name
		if kept := b.samples[name]; len(kept) > 0 {
			for chunk := range slices.Chunk(kept, chunkRows) {
				r.space.fill(name, chunk)
				r.putLocked(&entry{Samples: &r.space})
			}
			b.samples[name] = kept[:0]
		}
	}
	for i := range r.rec.Flows {
		name := r.rec.Flows[i].Name
		if kept := b.points[name]; len(kept) > 0 {
			c := &pointColumns{Flow: name}
			for _, p := range kept {
				c.At, c.Bytes = append(c.At, p.At), append(c.Bytes, p.Bytes)
			}
			r.putLocked(&entry{Points: c})
			b.points[name] = kept[:0]
		}
	}
	for _, q := range declared[len(r.rec.Others):] {
		r.putLocked(&entry{Quantity: &q})
	}
	for i := range b.values {
		if c := &b.values[i]; len(c.At) > 0 {
			c.Quantity = declared[i].Name
			r.putLocked(&entry{Values: c})
			c.At, c.Values = c.At[:0], c.Values[:0]
		}
	}
	if len(b.cpu.At) > 0 {
		c := b.cpu
		r.putLocked(&entry{CPU: &c})
		b.cpu = cpuColumns{}
	}
	if r.file != nil && r.fault == nil {
		r.fault = r.file.flush()
	}
}

// finish closes the file and returns the recording, with the first error that writing met: the recording is whole all the same.
func (r *recorder) finish() (*Recording, error) {
	r.flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.fault = errors.Join(r.fault, r.file.close())
	}
	r.rec.finish()
	return &r.rec, r.fault
}
