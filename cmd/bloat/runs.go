package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bufferbloat/batch"
	"bufferbloat/report"
)

// maxRuns bounds the files of a folder.
const maxRuns = 10_000

// asides are the endings of files that may lie in a folder of runs and are none: what this program prints about them, and notes.
var asides = []string{".md", ".svg", ".png", ".html", ".xml"}

// openRuns reads the result that a file of any kind holds, or those of all files of a folder, in the order of their names. Hidden files, folders
// in the folder and asides are skipped; every other file has to be a result, because a run that is left out by mistake changes what the set says.
// What is no regular file can't be one, and is skipped too, but named. The folder of a batch holds the runs that its index calls done; after an @ the
// values are named that are wanted of them: DIR@qdisc=fifo,rate=20mbit.
func (a *app) openRuns(path string) ([]*report.Result, error) {
	if dir, values, ix, err := openBatch(path); ix != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return a.openBatchRuns(dir, values, ix)
	}
	info, err := os.Stat(path)
	if err != nil && path != "-" {
		return nil, err
	}
	if path == "-" || !info.IsDir() {
		r, err := openRun(path)
		if err != nil {
			return nil, err
		}
		return []*report.Result{r}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []*report.Result
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || e.IsDir() || slices.Contains(asides, strings.ToLower(filepath.Ext(name))) {
			continue
		}
		if len(out) == maxRuns {
			return nil, fmt.Errorf("%s: more than %d files", path, maxRuns)
		}
		r, err := openRun(filepath.Join(path, name))
		if errors.Is(err, errNotRegular) {
			a.complain(fmt.Errorf("%w; skipped", err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w; a folder of runs holds nothing but runs", err)
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", path, errNoRuns)
	}
	return out, nil
}

// openBatch returns the index of a batch's folder, and the values that the path asks for. The index is nil where the path is none of a batch.
func openBatch(path string) (dir, values string, ix *batch.Index, err error) {
	dir = path
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		i := strings.LastIndexByte(path, '@')
		if i < 0 {
			return "", "", nil, nil // whoever opens it will say that it is not there
		}
		dir, values = path[:i], path[i+1:]
	}
	ix, err = batch.ReadIndex(dir)
	if err == nil {
		return dir, values, ix, nil
	}
	if _, statErr := os.Stat(filepath.Join(dir, batch.IndexFile)); statErr != nil { // there is no index
		if values != "" {
			return "", "", nil, fmt.Errorf("%s is not the folder of a batch: %w", dir, err)
		}
		return "", "", nil, nil
	}
	return "", "", nil, err
}

// openBatchRuns reads the runs of a batch that are done. Recordings in the folder that its index does not know are named, and left out.
func (a *app) openBatchRuns(dir, values string, ix *batch.Index) ([]*report.Result, error) {
	chosen, err := ix.Select(values)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", dir, err)}
	}
	if err := a.nameStrangers(dir, ix); err != nil {
		return nil, err
	}
	if n := ix.Count(batch.Failed); n > 0 {
		a.complain(fmt.Errorf("%s: %d of %d runs failed, and are missing here", dir, n, len(ix.Runs)))
	}
	if n := ix.Count(batch.Planned) + ix.Count(batch.Running); n > 0 {
		a.complain(fmt.Errorf("%s: %d of %d runs are still to be made", dir, n, len(ix.Runs)))
	}
	var out []*report.Result
	for _, r := range chosen {
		result, err := openRun(filepath.Join(dir, r.File))
		if err != nil {
			return nil, err
		}
		out = append(out, result)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, errNoRuns)
	}
	return out, nil
}

func (a *app) nameStrangers(dir string, ix *batch.Index) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		known := func(r batch.RunDoc) bool { return r.File == name }
		if strings.HasSuffix(name, ".bloat.json.gz") && !strings.HasPrefix(name, ".") && !slices.ContainsFunc(ix.Runs, known) {
			a.complain(fmt.Errorf("%s is not in the batch's index, and is left out", filepath.Join(dir, name)))
		}
	}
	return nil
}

var errNoRuns = errors.New("no runs in this folder")

func openRun(path string) (*report.Result, error) {
	r, err := openResult(path)
	if err != nil {
		return nil, err
	}
	r.File = path
	return r, nil
}
