package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bufferbloat/report"
)

// maxRuns bounds the files of a folder.
const maxRuns = 10_000

// asides are the endings of files that may lie in a folder of runs and are none: what this program prints about them, and notes.
var asides = []string{".md", ".svg", ".png", ".html", ".xml"}

// openRuns reads the result that a file of any kind holds, or those of all files of a folder, in the order of their names. Hidden files, folders
// in the folder and asides are skipped; every other file has to be a result, because a run that is left out by mistake changes what the set says.
// What is no regular file can't be one, and is skipped too, but named.
func (a *app) openRuns(path string) ([]*report.Result, error) {
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

var errNoRuns = errors.New("no runs in this folder")

func openRun(path string) (*report.Result, error) {
	r, err := openResult(path)
	if err != nil {
		return nil, err
	}
	r.File = path
	return r, nil
}
