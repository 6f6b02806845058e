package bufferbloat

import (
	"bytes"
	"reflect"
	"testing"
	"time"
)

func TestWhatAnEmulatedLinkCountedIsInTheRecordingAndItsFile(t *testing.T) {
	link := LabLink{Carrier: "in process", Queue: "pie"}
	want := &LabCounts{Up: LabDirection{Queue: "pie", Dropped: LabCount{3, 4500}, Drops: map[string]uint64{"aqm": 3}, More: []LabCounter{{"prob", 0.25}}},
		Late: &LabLateness{Packets: 7, P99: time.Millisecond}, Outside: map[string]uint64{"entrance": 2}}
	var file bytes.Buffer
	r := newRecorder(time.Now(), &file)
	r.put(&entry{Head: &head{Schema: FileSchema, Path: Path{Lab: &link}}})
	r.put(&entry{LabCounts: want})
	r.put(&entry{End: &end{Ended: time.Second}})
	rec, err := r.finish()
	if err != nil || rec.Path.Lab.Counted != want {
		t.Errorf("got %+v, %v", rec.Path.Lab, err)
	}
	if link.Counted != nil {
		t.Error("the caller's description of the link was changed")
	}
	for range 2 { // as it grew, and written whole
		got, err := ReadRecording(&file)
		if err != nil || !reflect.DeepEqual(got.Path.Lab.Counted, want) {
			t.Fatalf("read %+v, %v; want %+v", got, err, want)
		}
		file.Reset()
		if err := WriteRecording(&file, got); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCountersOfALinkThatIsNotThereAreAnError(t *testing.T) {
	var r Recording
	if err := r.apply(&entry{LabCounts: &LabCounts{}}); err == nil {
		t.Error("no error")
	}
	r.Path.Lab = &LabLink{}
	if err := r.apply(&entry{LabCounts: &LabCounts{Late: &LabLateness{Max: -1}}}); err == nil {
		t.Error("a lateness below 0: no error")
	}
}
