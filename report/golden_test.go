package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; got\n%s\nwant\n%s", name, got, want)
	}
}

func TestGoldenFiles(t *testing.T) {
	for name, rec := range recordings() {
		r := New(rec)
		for suffix, write := range map[string]func(io.Writer) error{
			"speedtest.txt": r.WriteSpeedtest, "table.txt": r.WriteTable, "md": r.WriteMarkdown, "csv": r.WriteCSV, "json": r.WriteJSON,
		} {
			t.Run(name+"."+suffix, func(t *testing.T) {
				var b bytes.Buffer
				if err := write(&b); err != nil {
					t.Fatal(err)
				}
				golden(t, name+"."+suffix, b.Bytes())
				if suffix == "json" {
					validate(t, b.Bytes())
					return
				}
				for line := range strings.Lines(b.String()) {
					if line := strings.TrimSuffix(line, "\n"); line != strings.TrimRight(line, " ") {
						t.Errorf("space at the end of %q", line)
					}
				}
			})
		}
	}
}

func TestGoldenErrorDocument(t *testing.T) {
	var b bytes.Buffer
	err := errors.New("192.0.2.2:12865: connection refused; is a netserver running there?")
	if err := WriteError(&b, "1.0.0", "speedtest", err, 1); err != nil {
		t.Fatal(err)
	}
	golden(t, "error.json", b.Bytes())
	validate(t, b.Bytes())
}

func TestGoldenImprovement(t *testing.T) {
	var b bytes.Buffer
	if err := Improvement(New(fifoRun()), New(fqCodelRun())).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "improvement.txt", b.Bytes())
}

func TestGoldenImprovementDocument(t *testing.T) {
	r := New(fqCodelRun())
	r.Improved = Improvement(New(fifoRun()), r)
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "improvement.json", b.Bytes())
	validate(t, b.Bytes())
}

// validate holds a document to the published schema, and the schema to the document: no field may be missing from it.
func validate(t *testing.T, doc []byte) {
	t.Helper()
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatalf("not JSON: %v", err)
	}
	published, strict, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	if err := published.Validate(instance); err != nil {
		t.Fatal(err)
	}
	if err := strict.Validate(instance); err != nil {
		t.Fatalf("a field is not in the schema: %v", err)
	}
}

// schemas are the published schema, and the same without room for fields that it does not have; compiled once.
var schemas = func() func() (published, strict *jsonschema.Schema, err error) {
	var all [2]*jsonschema.Schema
	compile := sync.OnceValue(func() error {
		for i := range all {
			var schema any
			if err := json.Unmarshal(JSONSchema(), &schema); err != nil {
				return err
			}
			if i == 1 {
				closeObjects(schema)
			}
			c := jsonschema.NewCompiler()
			c.AssertFormat()
			if err := c.AddResource("result.schema.json", schema); err != nil {
				return err
			}
			var err error
			if all[i], err = c.Compile("result.schema.json"); err != nil {
				return err
			}
		}
		return nil
	})
	return func() (*jsonschema.Schema, *jsonschema.Schema, error) {
		err := compile()
		return all[0], all[1], err
	}
}()

// closeObjects forbids all fields that a schema does not describe.
func closeObjects(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if _, ok := s["properties"].(map[string]any); ok && s["type"] == "object" {
			s["additionalProperties"] = false
		}
		for _, v := range s {
			closeObjects(v)
		}
	case []any:
		for _, v := range s {
			closeObjects(v)
		}
	}
}
