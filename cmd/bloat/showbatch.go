package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"bufferbloat/batch"
	"bufferbloat/report"
)

// showBatch prints the runs of a batch's folder, a line each, or its index as JSON.
func (a *app) showBatch(f *showFlags, dir, values string, ix *batch.Index) error {
	chosen, err := ix.Select(values)
	if err != nil {
		return &usageError{fmt.Errorf("%s: %w", dir, err)}
	}
	if values == "" {
		chosen = ix.Runs // those that are not done as well
	}
	var b bytes.Buffer
	switch {
	case f.format == "json":
		shown := *ix
		shown.Runs = chosen
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		err = e.Encode(shown)
	case people(f.format) && !f.grades:
		err = a.writeBatch(&b, dir, ix, chosen)
	default:
		return &usageError{errors.New("of a batch there are the formats speedtest, table, markdown and json; name one of its recordings for the others")}
	}
	if err != nil {
		return err
	}
	if err := a.nameStrangers(dir, ix); err != nil {
		return err
	}
	if f.output != "" {
		return saveFile(f.output, b.Bytes())
	}
	_, err = a.stdout.Write(b.Bytes())
	return err
}

// figures are what the table of a batch shows of a run, from its JSON document.
type figures struct {
	Idle            *time.Duration `json:"idle_rtt_median_ns"`
	Download        *int64         `json:"download_goodput_bps"`
	Upload          *int64         `json:"upload_goodput_bps"`
	DownloadInduced *time.Duration `json:"download_induced_median_ns"`
	UploadInduced   *time.Duration `json:"upload_induced_median_ns"`
}

// writeBatch writes the table, and sets the exit status to that of the runs shown.
func (a *app) writeBatch(out io.Writer, dir string, ix *batch.Index, runs []batch.RunDoc) error {
	order := string(ix.Order)
	if ix.Order == batch.Random {
		order += fmt.Sprintf(" (seed %d)", ix.Seed)
	}
	fmt.Fprintf(out, "batch %s", report.Printable(ix.Batch))
	if ix.Title != "" {
		fmt.Fprintf(out, ": %s", report.Printable(ix.Title))
	}
	fmt.Fprintf(out, "\n%d runs, order %s, begun %s: %d done, %d failed, %d to be made\n", len(ix.Runs), order, ix.Started.Local().Format("2006-01-02 15:04:05"),
		ix.Count(batch.Done), ix.Count(batch.Failed), ix.Count(batch.Planned)+ix.Count(batch.Running))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	head := []string{"Run"}
	for _, axis := range ix.Axes {
		head = append(head, report.Printable(axis.Name))
	}
	fmt.Fprintln(w, strings.Join(append(head, "Rep", "Down Mbps", "Up Mbps", "Idle ms", "Induced down", "Induced up", "State", ""), "\t"))
	for _, r := range runs {
		row := []string{fmt.Sprint(r.Number)}
		for _, axis := range ix.Axes {
			i := slices.IndexFunc(r.Values, func(v batch.ValueDoc) bool { return v.Axis == axis.Name })
			if i < 0 {
				row = append(row, "-")
				continue
			}
			row = append(row, report.Printable(r.Values[i].Value))
		}
		cells, err := a.batchCells(dir, &r)
		if err != nil {
			return err
		}
		fmt.Fprintln(w, strings.Join(append(append(row, fmt.Sprint(r.Repetition)), append(cells, "")...), "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range runs {
		if r.Error != "" {
			fmt.Fprintf(out, "! run %d: %s\n", r.Number, report.Printable(r.Error))
		}
		for _, h := range r.Hooks {
			fmt.Fprintf(out, "! run %d, %s: %s: %s\n", r.Number, h.When, report.Printable(h.Command), report.Printable(h.Error))
		}
	}
	return nil
}

// batchCells are the figures of one run, and its state.
func (a *app) batchCells(dir string, r *batch.RunDoc) ([]string, error) {
	if r.State != batch.Done {
		a.status = max(a.status, 4)
		return []string{"-", "-", "-", "-", "-", string(r.State)}, nil
	}
	result, err := openRun(filepath.Join(dir, r.File))
	if err != nil {
		return nil, err
	}
	a.status = max(a.status, result.Status())
	var b bytes.Buffer
	if err := result.WriteJSON(&b); err != nil {
		return nil, err
	}
	var doc struct {
		Summary figures `json:"summary"`
	}
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		return nil, err
	}
	s, state := doc.Summary, string(r.State)
	if result.Status() != 0 {
		state = "void or partial"
	}
	return []string{mbps(s.Download), mbps(s.Upload), milliseconds(s.Idle), milliseconds(s.DownloadInduced), milliseconds(s.UploadInduced), state}, nil
}

func mbps(rate *int64) string {
	if rate == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(*rate)/1e6)
}

func milliseconds(d *time.Duration) string {
	if d == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", float64(*d)/float64(time.Millisecond))
}
