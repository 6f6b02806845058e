package program

import (
	"os"
	"path/filepath"
	"testing"
)

// Reports 75: nothing that the program did not make is replaced or removed.
func TestWritingToADeviceLeavesItThere(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/dev/null", fifo); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dev/null", fifo} {
		f, err := OpenOutput(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("x")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.Close()
	}
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("/dev/null is %v, %v", info, err)
	}
	if info, err := os.Lstat(fifo); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
}
