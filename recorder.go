package bufferbloat

import (
	"errors"
	"io"
	"sync"
	"time"

	"bufferbloat/probe"
)

// recorder folds what happens into a Recording and, where there is a file, writes the same entries to it. It is safe for
// concurrent use.
type recorder struct {
	start time.Time // of the run, on the host's clock

	mu      sync.Mutex
	rec     Recording
	file    *fileWriter // nil without a file
	fault   error       // the first that writing or folding met
	samples map[string][]probe.Sample
	points  map[string][]Point
	cpu     cpuColumns
}

func newRecorder(start time.Time, w io.Writer) *recorder {
	r := &recorder{start: start, samples: map[string][]probe.Sample{}, points: map[string][]Point{}}
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
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples[series] = append(r.samples[series], s)
}

// point keeps a counter's reading until the next flush.
func (r *recorder) point(flow string, p Point) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points[flow] = append(r.points[flow], p)
}

func (r *recorder) cpuSample(s CPUSample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cpu.At = append(r.cpu.At, s.At)
	r.cpu.Busy = append(r.cpu.Busy, s.Busy)
	r.cpu.Own = append(r.cpu.Own, s.Own)
}

// flush turns what was kept into entries; a run calls it each second, so that a killed one loses no more.
func (r *recorder) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.rec.Probes { // in the order of the recording, so that equal runs make equal files
		name := r.rec.Probes[i].Name
		if kept := r.samples[name]; len(kept) > 0 {
			r.putLocked(&entry{Samples: columns(name, kept)})
			r.samples[name] = kept[:0]
		}
	}
	for i := range r.rec.Flows {
		name := r.rec.Flows[i].Name
		if kept := r.points[name]; len(kept) > 0 {
			c := &pointColumns{Flow: name}
			for _, p := range kept {
				c.At, c.Bytes = append(c.At, p.At), append(c.Bytes, p.Bytes)
			}
			r.putLocked(&entry{Points: c})
			r.points[name] = kept[:0]
		}
	}
	if len(r.cpu.At) > 0 {
		c := r.cpu
		r.putLocked(&entry{CPU: &c})
		r.cpu = cpuColumns{}
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
