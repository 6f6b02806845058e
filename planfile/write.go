package planfile

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"bufferbloat"
)

// Host in a plan that is written stands for the host of server n, from 1, whoever the file will be run against: it becomes ${host} in names, and no host in
// the list of servers.
func Host(n int) string { return fmt.Sprintf("${host:%d}", n) }

var anyHost = regexp.MustCompile(`\$\{host:[0-9]+\}`)

// Write writes a plan as a file, with a line of help. What is read from it again builds the same plan. Flows that differ by the number at the end of their
// names become one with a count.
func Write(w io.Writer, p *bufferbloat.Plan, help string) error {
	top := mapping()
	add(top, "schema", Schema)
	add(top, "name", escape(p.Name))
	add(top, "help", help)
	add(top, "workload", p.Workload)
	server := p.Server
	server.Name = ""
	if own := serverNode(server); len(own.Content) > 0 {
		put(top, "server", own)
	}
	others := sequence()
	for _, s := range p.Others {
		others.Content = append(others.Content, serverNode(s))
	}
	if len(others.Content) > 0 {
		put(top, "servers", others)
	}
	phases := sequence()
	for i := range p.Phases {
		phases.Content = append(phases.Content, phaseNode(&p.Phases[i]))
	}
	put(top, "phases", phases)
	probes := sequence()
	for i := range p.Probes {
		probes.Content = append(probes.Content, node(probeFields(), &p.Probes[i]))
	}
	put(top, "probes", probes)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(top); err != nil {
		return fmt.Errorf("write a plan file: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func serverNode(s bufferbloat.Server) *yaml.Node {
	s.Host = anyHost.ReplaceAllLiteralString(s.Host, "")
	for port, usual := range map[*uint16]uint16{&s.NetperfPort: bufferbloat.NetperfPort, &s.IRTTPort: bufferbloat.IRTTPort, &s.IPerf3Port: bufferbloat.IPerf3Port} {
		if *port == usual {
			*port = 0
		}
	}
	return node(serverFields(), &s)
}

func phaseNode(ph *bufferbloat.PhasePlan) *yaml.Node {
	out := node(phaseFields(), ph)
	if len(ph.Flows) == 0 {
		return out
	}
	flows := sequence()
	for i := 0; i < len(ph.Flows); {
		f := ph.Flows[i]
		n := bufferbloat.Alike(ph.Flows[i:])
		stem, first := strings.CutSuffix(f.Name, "1")
		if n < 2 || !first || strings.HasSuffix(stem, "$") {
			flows.Content, i = append(flows.Content, node(flowFields(), &f)), i+1
			continue
		}
		f.Name = stem
		one := node(flowFields(), &f)
		for j := 0; j < len(one.Content); j += 2 {
			if one.Content[j].Value == "name" {
				one.Content[j+1].Value += "${n}"
			}
		}
		addPlain(one, "count", strconv.Itoa(n))
		flows.Content, i = append(flows.Content, one), i+n
	}
	put(out, "flows", flows)
	return out
}

// node is a mapping of the fields of t that are not zero.
func node[T any](fields []field[T], t *T) *yaml.Node {
	out := mapping()
	for _, f := range fields {
		if f.plain {
			addPlain(out, f.key, f.text(t))
		} else {
			add(out, f.key, escape(f.text(t)))
		}
	}
	return out
}

// escape makes a text one that stands for itself, but for the hosts that are not known.
func escape(s string) string {
	parts := anyHost.Split(s, -1)
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "${", "$${")
	}
	return strings.Join(parts, "${host}")
}

func mapping() *yaml.Node  { return &yaml.Node{Kind: yaml.MappingNode} }
func sequence() *yaml.Node { return &yaml.Node{Kind: yaml.SequenceNode} }

func put(m *yaml.Node, key string, v *yaml.Node) {
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, v)
}

// add puts a text into a mapping, unless it is "". It is quoted where it would be read as something else.
func add(m *yaml.Node, key, text string) {
	if text == "" {
		return
	}
	var v yaml.Node
	v.SetString(text)
	put(m, key, &v)
}

// addPlain is add for what is no text, and never quoted.
func addPlain(m *yaml.Node, key, text string) {
	if text != "" {
		put(m, key, &yaml.Node{Kind: yaml.ScalarNode, Value: text})
	}
}
