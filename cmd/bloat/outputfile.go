package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"bufferbloat/cmd/internal/program"
)

// writeFile has a file's content made, and then writes the file: content that can't be made costs nobody an earlier file, and the file may be one
// that the content is made of.
func writeFile(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return saveFile(path, b.Bytes())
}

// saveFile writes a file of -o. It is written in place, so that it keeps its owner, its mode and its links. What is left of one that could not be
// written whole is removed.
func saveFile(path string, content []byte) error {
	file, err := program.OpenOutput(path)
	if err != nil {
		return &usageError{fmt.Errorf("-o: %w", err)}
	}
	regular := file.Regular()
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		if regular {
			os.Remove(path)
		}
		return err
	}
	return nil
}
