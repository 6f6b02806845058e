package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"bufferbloat"
	"bufferbloat/report"
	"bufferbloat/report/html"
	"bufferbloat/report/plot"
)

// keeper keeps what a run writes to its recording, up to what goes into a page and one byte more.
type keeper struct{ b []byte }

func (k *keeper) Write(p []byte) (int, error) {
	k.b = append(k.b, p[:min(len(p), html.MaxFile+1-len(k.b))]...)
	return len(p), nil
}

// keepForPage has the run's recording kept for the page, if there is to be one, and makes sure of the page's file before anything is measured.
func (f *measureFlags) keepForPage(o *bufferbloat.RunOptions) (*keeper, error) {
	if f.page == "" {
		return nil, nil
	}
	file, err := os.OpenFile(f.page, os.O_WRONLY|os.O_CREATE, 0o666) // an older page stays until there is a newer one
	if err != nil {
		return nil, fmt.Errorf("--html: %w", err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("--html: %w", err)
	}
	k := &keeper{}
	if o.File == nil {
		o.File = k
	} else {
		o.File = io.MultiWriter(o.File, k)
	}
	return k, nil
}

// writePage writes the page of a run that is over, if there is to be one.
func (f *measureFlags) writePage(rec *bufferbloat.Recording, result *report.Result, k *keeper) error {
	if k == nil {
		return nil
	}
	name := filepath.Base(f.page)
	name = name[:len(name)-len(filepath.Ext(name))]
	run := html.Run{Name: name, Recording: rec, Result: result, File: k.b, FileName: name + ".bloat.json.gz"}
	return writeFile(f.page, func(w io.Writer) error { return html.Write(w, []html.Run{run}, plot.Options{}) })
}
