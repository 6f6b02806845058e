// Package planfile reads and writes plans as YAML files (docs/plans.md): what a user writes has the shape of what the catalogue builds.
package planfile

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bufferbloat"
	"bufferbloat/internal/yamlnode"
)

// Schema names the form of the files.
const Schema = "bloat/planfile/1"

//go:embed plan.schema.json
var schema []byte

// JSONSchema returns the JSON Schema of the files. The caller must not change it.
func JSONSchema() []byte { return schema }

// Error is what is wrong with a file, and where. It is what Read returns, and what the definition's Build returns, joined where there are several: for values
// that come of parameters, and for what contradicts itself.
type Error = yamlnode.Error

// Limits of a file.
const (
	MaxBytes      = yamlnode.MaxBytes
	maxParameters = 100
	maxFlows      = 10 * bufferbloat.MaxFlows // of all phases
	maxText       = 4096                      // bytes of a value with its parameters put in
)

// Read reads a plan file; name stands in the errors, which are *Error. Everything is looked at once with the parameters' defaults, so that what is wrong
// with a file is known when it is read.
func Read(name string, b []byte) (bufferbloat.Definition, error) {
	var d bufferbloat.Definition
	root, err := yamlnode.Parse(name, b)
	if err != nil {
		return d, err
	}
	m, err := root.Map("schema", "name", "help", "workload", "parameters", "server", "servers", "phases", "probes")
	if err != nil {
		return d, err
	}
	if text, err := m["schema"].Text(); err != nil || text != "" && text != Schema {
		return d, m["schema"].Errorf("schema %q: want %s", text, Schema)
	}
	if d.Name, err = m["name"].Text(); err != nil || d.Name == "" {
		return d, root.Errorf("the plan has no name")
	}
	if d.Help, err = m["help"].Text(); err != nil {
		return d, err
	}
	if d.Parameters, err = parameters(m["parameters"]); err != nil {
		return d, err
	}
	if d.Own, err = servers(m["server"], m["servers"]); err != nil {
		return d, err
	}
	f := &file{name: d.Name, root: root, top: m}
	d.Build = f.build
	return d, f.try(&d)
}

// try builds the plan with all defaults, for what is wrong with any value.
func (f *file) try(d *bufferbloat.Definition) error {
	dry := *d
	dry.Own = slices.Clone(d.Own)
	for i := range dry.Own {
		if dry.Own[i].Host == "" {
			dry.Own[i].Host = "server"
		}
	}
	var wrong error
	dry.Build = func(v *bufferbloat.Values) (p bufferbloat.Plan, err error) {
		p, _, wrong = f.plan(v)
		return p, wrong
	}
	// What is wrong with the plan as a whole may be right with other parameters, and is told when it is to run.
	if _, err := dry.Plan(nil, nil); err != nil && wrong == nil && f.built == 0 {
		return f.top["parameters"].Errorf("%v", err)
	}
	return wrong
}

// servers reads the servers that a plan names; there is always the plan's own.
func servers(own, others yamlnode.Value) ([]bufferbloat.Server, error) {
	list := make([]bufferbloat.Server, 1)
	if err := read(own, serverFields(), &list[0], plain); err != nil {
		return nil, err
	}
	if list[0].Name != "" {
		return nil, own.Errorf("the plan's own server has no name: flows and probes without a server go there")
	}
	values, err := others.List()
	if err != nil {
		return nil, err
	}
	if len(values) >= bufferbloat.MaxServers {
		return nil, others.Errorf("%d servers: want at most %d", len(values)+1, bufferbloat.MaxServers)
	}
	for i, v := range values {
		var s bufferbloat.Server
		if err := read(v, serverFields(), &s, plain); err != nil {
			return nil, err
		}
		if s.Name == "" {
			s.Name = strconv.Itoa(i + 2)
		}
		list = append(list, s)
	}
	return list, nil
}

// plain puts no parameters into a text.
func plain(v yamlnode.Value) (string, error) { return v.Text() }

// parameters reads what a file declares.
func parameters(v yamlnode.Value) ([]bufferbloat.Parameter, error) {
	list, err := v.List()
	if err != nil {
		return nil, err
	}
	if len(list) > maxParameters {
		return nil, v.Errorf("%d parameters: want at most %d", len(list), maxParameters)
	}
	var out []bufferbloat.Parameter
	for _, v := range list {
		p, err := parameter(v)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(q bufferbloat.Parameter) bool { return q.Name == p.Name }) {
			return nil, v.Errorf("parameter %q is declared twice", p.Name)
		}
		out = append(out, p)
	}
	return out, nil
}

func parameter(v yamlnode.Value) (bufferbloat.Parameter, error) {
	var p bufferbloat.Parameter
	m, err := v.Map("name", "type", "default", "choices", "help")
	if err != nil {
		return p, err
	}
	if p.Name, err = m["name"].Text(); err != nil {
		return p, err
	}
	if !isName(p.Name) || p.Name == "n" || p.Name == "host" {
		return p, v.Errorf("parameter %q: want a name of small letters, digits and _, other than n and host", p.Name)
	}
	kind, err := m["type"].Text()
	if err != nil {
		return p, err
	}
	if p.Type = bufferbloat.ParameterType(kind); !slices.Contains(bufferbloat.ParameterTypes(), p.Type) {
		return p, v.Errorf("parameter %s of type %q: want one of %v", p.Name, kind, bufferbloat.ParameterTypes())
	}
	if p.Default, err = m["default"].Text(); err != nil {
		return p, err
	}
	if p.Help, err = m["help"].Text(); err != nil {
		return p, err
	}
	if p.Choices, err = m["choices"].Texts(); err != nil {
		return p, err
	}
	if _, err := p.Parse(p.Default); err != nil {
		return p, m["default"].Errorf("default of parameter %s: %v", p.Name, err)
	}
	return p, nil
}

func isName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_') })
}

// file is a file's parts from which plans are built.
type file struct {
	name  string
	root  yamlnode.Value
	top   map[string]yamlnode.Value
	built int
}

// build makes the plan for the parameters and servers given, and tells where in the file what is wrong with it stands.
func (f *file) build(v *bufferbloat.Values) (bufferbloat.Plan, error) {
	p, places, err := f.plan(v)
	if err != nil {
		return p, err
	}
	return p, f.locate(p.Check(), places)
}

// locate gives what is wrong with a plan its place in the file, each thing once: flows that one entry makes have their mistakes in common.
func (f *file) locate(err error, places map[bufferbloat.Place]yamlnode.Value) error {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var out []error
	seen := map[string]bool{}
	for _, err := range all.Unwrap() {
		value := f.root
		if e, ok := err.(*bufferbloat.PlanError); ok && e.Place != (bufferbloat.Place{}) {
			value = places[e.Place]
		}
		if err = value.Errorf("%v", err); !seen[err.Error()] {
			seen[err.Error()] = true
			out = append(out, err)
		}
	}
	return errors.Join(out...)
}

// plan makes the plan, unchecked, and says where in the file its parts stand.
func (f *file) plan(v *bufferbloat.Values) (p bufferbloat.Plan, places map[bufferbloat.Place]yamlnode.Value, err error) {
	f.built++
	all := v.Servers()
	p = bufferbloat.Plan{Name: f.name, Server: all[0], Others: all[1:]}
	places = map[bufferbloat.Place]yamlnode.Value{}
	servers, err := f.top["servers"].List()
	if err != nil {
		return p, nil, err
	}
	for i := range p.Others {
		places[bufferbloat.Place{Server: i + 1}] = f.root // more hosts than the file names
		if i < len(servers) {
			places[bufferbloat.Place{Server: i + 1}] = servers[i]
		}
	}
	if p.Workload, err = f.top["workload"].Text(); err != nil {
		return p, nil, err
	}
	phases, err := f.top["phases"].List()
	if err != nil {
		return p, nil, err
	}
	if len(phases) > bufferbloat.MaxPhases {
		return p, nil, f.top["phases"].Errorf("%d phases: want at most %d", len(phases), bufferbloat.MaxPhases)
	}
	flows := 0
	for i, value := range phases {
		places[bufferbloat.Place{Phase: i + 1}] = value
		ph, err := readPhase(value, v, &p, func(flow int, v yamlnode.Value) { places[bufferbloat.Place{Phase: i + 1, Flow: flow}] = v })
		if err != nil {
			return p, nil, err
		}
		if flows += len(ph.Flows); flows > maxFlows {
			return p, nil, value.Errorf("more than %d flows in all", maxFlows)
		}
		p.Phases = append(p.Phases, ph)
	}
	probes, err := f.top["probes"].List()
	if err != nil {
		return p, nil, err
	}
	for _, value := range probes {
		begin := len(p.Probes)
		if p.Probes, err = repeat(value, probeFields(), p.Probes, bufferbloat.MaxProbes, v, &p); err != nil {
			return p, nil, err
		}
		for i := range p.Probes[begin:] {
			places[bufferbloat.Place{Probe: begin + i + 1}] = value
		}
	}
	return p, places, nil
}

// readPhase reads a phase, and tells stands where each of its flows does, by its number from 1.
func readPhase(value yamlnode.Value, v *bufferbloat.Values, p *bufferbloat.Plan, stands func(flow int, v yamlnode.Value)) (bufferbloat.PhasePlan, error) {
	var ph bufferbloat.PhasePlan
	e := &entry{values: v, host: p.Server.Host}
	if err := read(value, phaseFields(), &ph, e.text, "flows"); err != nil {
		return ph, err
	}
	m, err := value.Pairs()
	if err != nil {
		return ph, err
	}
	for _, pair := range m {
		if pair.Name != "flows" {
			continue
		}
		flows, err := pair.Value.List()
		if err != nil {
			return ph, err
		}
		for _, flow := range flows {
			begin := len(ph.Flows)
			if ph.Flows, err = repeat(flow, flowFields(), ph.Flows, bufferbloat.MaxFlows, v, p); err != nil {
				return ph, err
			}
			for i := range ph.Flows[begin:] {
				stands(begin+i+1, flow)
			}
		}
	}
	return ph, nil
}

// repeat reads a flow or probe as often as its count says, once without one, and returns list with them. Beyond most it stops, one too many, which
// the plan's check refuses.
func repeat[T any](value yamlnode.Value, fields []field[T], list []T, most int, v *bufferbloat.Values, p *bufferbloat.Plan) ([]T, error) {
	m, err := value.Pairs()
	if err != nil {
		return nil, err
	}
	e := &entry{values: v, host: p.Server.Host}
	count := 1
	for _, pair := range m {
		text, err := "", error(nil)
		switch pair.Name {
		case "count":
			if text, err = e.text(pair.Value); err == nil {
				count, err = parse[int](bufferbloat.Count, text)
			}
		case "server":
			if text, err = e.text(pair.Value); err == nil {
				if s, ok := p.ServerOf(text); ok {
					e.host = s.Host
				}
			}
		}
		if err != nil {
			return nil, at(pair.Value, err)
		}
	}
	for i := 0; i < max(count, 1) && len(list) <= most; i++ {
		e.n = i + 1
		var t T
		if err := read(value, fields, &t, e.text, "count"); err != nil {
			return nil, err
		}
		if count > 0 { // a count of 0 reads it once all the same, for what is wrong with it
			list = append(list, t)
		}
	}
	return list, nil
}

// at gives an error the place of a value, unless it has one.
func at(v yamlnode.Value, err error) error {
	if _, ok := err.(*Error); ok {
		return err
	}
	return v.Errorf("%v", err)
}

// entry is what the texts of one flow, probe or phase may refer to.
type entry struct {
	values *bufferbloat.Values
	host   string // of its server
	n      int    // which of several it is, from 1
}

// text returns a text with its parameters put in: ${name}, ${name[n]} for the n-th of a list, ${n} and ${host}. $${ is a plain ${.
func (e *entry) text(v yamlnode.Value) (string, error) {
	raw, err := v.Text()
	if err != nil || !strings.Contains(raw, "${") {
		return raw, err
	}
	var out strings.Builder
	for rest := raw; ; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			out.WriteString(rest)
			break
		}
		if plain, ok := strings.CutSuffix(before, "$"); ok {
			out.WriteString(plain + "${")
			rest = after
			continue
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return "", v.Errorf("%q: want a } after ${; a plain ${ is written $${", raw)
		}
		value, err := e.value(name)
		if err != nil {
			return "", v.Errorf("${%s}: %v", name, err)
		}
		out.WriteString(before + value)
		rest = after
	}
	if out.Len() > maxText {
		return "", v.Errorf("%d bytes: want at most %d", out.Len(), maxText)
	}
	return out.String(), nil
}

func (e *entry) value(name string) (string, error) {
	switch name {
	case "n":
		if e.n == 0 {
			return "", fmt.Errorf("a phase has no number")
		}
		return strconv.Itoa(e.n), nil
	case "host":
		return e.host, nil
	}
	list, member := strings.CutSuffix(name, "[n]")
	text, ok := e.values.Text(list)
	switch {
	case !ok:
		return "", fmt.Errorf("no parameter %q is declared", list)
	case !member:
		return text, nil
	case e.n == 0:
		return "", fmt.Errorf("a phase has no number")
	}
	parts := strings.Split(text, ",")
	if e.n > len(parts) {
		return "", nil
	}
	return strings.TrimSpace(parts[e.n-1]), nil
}
