package flent

import (
	"bytes"
	"os"
	"testing"

	"bufferbloat/report"
)

func BenchmarkReadRealFile(b *testing.B) {
	data, err := os.ReadFile(realFile(b, "test-rrul_be-socket_stats"))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReportRealFile(b *testing.B) {
	data, err := os.ReadFile(realFile(b, "test-rrul_be-socket_stats"))
	if err != nil {
		b.Fatal(err)
	}
	rec, err := Read(bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		report.New(rec)
	}
}
