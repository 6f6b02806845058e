package main

import (
	"errors"
	"fmt"
	"io"

	"bufferbloat/report"
)

// formatNames are the formats of resultWriter.
const formatNames = "speedtest, table, markdown, csv, json, ndjson, openmetrics"

// people reports whether a format is for people, so that further text may follow it; the others are one document.
func people(format string) bool {
	return format == "speedtest" || format == "table" || format == "markdown"
}

// resultWriter returns what writes a result in a format.
func resultWriter(format string) (func(*opened, io.Writer) error, error) {
	var write func(*report.Result, io.Writer) error
	switch format {
	case "speedtest":
		write = (*report.Result).WriteSpeedtest
	case "table":
		write = (*report.Result).WriteTable
	case "markdown":
		write = (*report.Result).WriteMarkdown
	case "csv":
		write = (*report.Result).WriteCSV
	case "json":
		write = (*report.Result).WriteJSON
	case "openmetrics":
		write = (*report.Result).WriteOpenMetrics
	case "ndjson":
		return writeNDJSON, nil
	default:
		return nil, fmt.Errorf("--format %q: want %s", format, formatNames)
	}
	return func(o *opened, w io.Writer) error { return write(o.result, w) }, nil
}

func writeNDJSON(o *opened, w io.Writer) error {
	if o.recording == nil {
		return errors.New("it has no samples, and ndjson is made of them: try --format json")
	}
	return o.result.WriteNDJSON(w, o.recording)
}
