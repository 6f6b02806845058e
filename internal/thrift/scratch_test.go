package thrift

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestAScratchFileIsThereOnceItIsWritten(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	names := func() int {
		found, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	var s Scratch
	b := make([]byte, 3)
	if _, err := s.ReadAt(b, 0); err == nil {
		t.Error("what was never written can be read")
	}
	for i, text := range []string{"abc", "def"} {
		if n, err := s.WriteAt([]byte(text), int64(3*i)); n != 3 || err != nil {
			t.Fatalf("%d bytes, error %v", n, err)
		}
	}
	if n, err := s.ReadAt(b, 2); string(b[:n]) != "cde" || err != nil {
		t.Errorf("got %q, error %v", b[:n], err)
	}
	if n := names(); n > 0 && runtime.GOOS == "linux" {
		t.Errorf("%d files have a name: they would stay if the program were killed", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := names(); n > 0 {
		t.Errorf("%d files are left", n)
	}
	if _, err := s.WriteAt(b, 0); err == nil {
		t.Error("a closed file can be written")
	}
}

func TestWithoutADirectoryThereIsNoScratchFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("its directory has another name")
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	var s Scratch
	for range 2 {
		if _, err := s.WriteAt([]byte("abc"), 0); !os.IsNotExist(err) {
			t.Errorf("error %v, want that the directory is not there", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
