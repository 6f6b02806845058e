package report

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Golden documents hold only the fields that their runs have.
func TestEveryFieldOfAResultIsInTheSchemaAndTheOtherWayAround(t *testing.T) {
	fields := map[string]bool{}
	collectTags(reflect.TypeFor[document](), fields, map[reflect.Type]bool{})
	var schema any
	if err := json.Unmarshal(JSONSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	described, required := map[string]bool{}, map[string]bool{}
	collectProperties(schema, described, required)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !described[name] {
			t.Errorf("a result has %q, which the schema does not describe", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(required)) {
		if !fields[name] {
			t.Errorf("the schema requires %q, which no result has", name)
		}
	}
}

func collectTags(of reflect.Type, tags map[string]bool, seen map[reflect.Type]bool) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		collectTags(of.Elem(), tags, seen)
	case reflect.Struct:
		if seen[of] {
			return
		}
		seen[of] = true
		for i := range of.NumField() {
			f := of.Field(i)
			if tag, ok := f.Tag.Lookup("json"); ok && tag != "-" {
				if name, _, _ := strings.Cut(tag, ","); name != "" {
					tags[name] = true
				}
				collectTags(f.Type, tags, seen)
			} else if f.Anonymous {
				collectTags(f.Type, tags, seen)
			}
		}
	}
}

func collectProperties(schema any, described, required map[string]bool) {
	switch s := schema.(type) {
	case map[string]any:
		if properties, ok := s["properties"].(map[string]any); ok {
			for name := range properties {
				described[name] = true
			}
			if names, ok := s["required"].([]any); ok {
				for _, name := range names {
					required[name.(string)] = true
				}
			}
		}
		for _, v := range s {
			collectProperties(v, described, required)
		}
	case []any:
		for _, v := range s {
			collectProperties(v, described, required)
		}
	}
}
