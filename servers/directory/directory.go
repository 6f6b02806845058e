// Package directory lists the public measurement servers and holds their users to what the operators ask.
//
// What a list says of a server is what its source says; what no source says is null there and unknown here. Nothing in this package
// contacts a server but Rank, which is called when a user asks for it.
package directory

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Schema names the version of a list.
const Schema = "bloat/servers/1"

// Limits of a list.
const (
	maxFile    = 1 << 20
	maxServers = 1000
	maxText    = 2000
)

//go:embed servers.json
var builtIn []byte

//go:embed servers.schema.json
var schema []byte

// JSONSchema returns the published JSON Schema of a list.
func JSONSchema() []byte { return bytes.Clone(schema) }

// Directory is a list of servers.
type Directory struct {
	Schema  string  `json:"schema"`
	Servers []Entry `json:"servers"`
}

// Listing is a list as the program prints it, with what this host knows of the servers. It can be read as a list again.
type Listing struct {
	Directory
	Version string  `json:"version,omitempty"` // of the program
	Uses    []Used  `json:"uses,omitempty"`
	Ranking []Place `json:"ranking,omitempty"`
}

// Used says how often this host used a server, and how often it may.
type Used struct {
	ID             string `json:"id"`
	Today          int    `json:"runs_today"`
	Ever           int    `json:"runs_ever"`
	PerDay         int    `json:"runs_per_day"`
	SaidByOperator bool   `json:"said_by_operator"`
}

// Place is a server in a ranking.
type Place struct {
	ID      string  `json:"id"`
	Port    uint16  `json:"port"`
	Address string  `json:"address,omitempty"`
	RTT     *int64  `json:"rtt_ns"` // nil where Error is not
	Error   *string `json:"error"`
}

// Entry is one server, or one service that hands out servers. A nil pointer or list, and an empty text, is what nobody knows.
type Entry struct {
	ID        string    `json:"id"`
	Operator  *string   `json:"operator"`
	Protocol  string    `json:"protocol"`  // "netperf", "iperf3", "ndt7", ...
	Host      *string   `json:"host"`      // name or address; nil where Discovery hands out servers
	Port      *uint16   `json:"port"`      // of Protocol
	Aliases   []string  `json:"aliases"`   // other names of the same host
	Also      []Service `json:"also"`      // what else it speaks
	Discovery *string   `json:"discovery"` // where a client asks for a server
	Families  []int     `json:"families"`  // 4, 6
	Location  *string   `json:"location"`
	Auth      Auth      `json:"auth"`
	Policy    string    `json:"policy"` // what the operator asks, for people
	// MaxRunsPerDay bounds the runs of one host in any 24 hours; see RunsPerDay for what holds where it is nil.
	MaxRunsPerDay    *int    `json:"max_runs_per_day"`
	MaxSeconds       *int    `json:"max_seconds"`       // of load in one run
	AllowsAutomation *bool   `json:"allows_automation"` // tests that nobody starts by hand: repeats, batches, sweeps
	UnattendedGap    *Gap    `json:"unattended_gap"`    // between tests that nobody starts by hand
	Capacity         *string `json:"capacity"`          // a hint for people
	Checked          *string `json:"checked"`           // date of the last check that the server is there, YYYY-MM-DD
	CheckedBy        *string `json:"checked_by"`
	Source           string  `json:"source"` // of all that is claimed here
}

// Service is a protocol and its port.
type Service struct {
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

// Auth says what a client needs and where its user gets it.
type Auth struct {
	Method *string `json:"method"` // "none", "passphrase", "token", "licence"
	Where  *string `json:"where"`
}

// Gap is a random time between unattended tests: exponential, with bounds.
type Gap struct {
	Mean int `json:"mean_seconds"`
	Min  int `json:"min_seconds"`
	Max  int `json:"max_seconds"`
}

// BuiltIn returns the list that the program carries.
func BuiltIn() (*Directory, error) { return Parse(builtIn) }

// Parse reads a list. A key that is not known is an error, so that a mistyped rule is not taken for no rule.
func Parse(b []byte) (*Directory, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("the directory of servers has %d bytes: want at most %d", len(b), maxFile)
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	var l Listing
	if err := decoder.Decode(&l); err != nil {
		return nil, fmt.Errorf("read the directory of servers near byte %d: %w", decoder.InputOffset(), err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("the directory of servers goes on after its end, at byte %d", decoder.InputOffset())
	}
	d := &l.Directory
	if d.Schema != Schema {
		return nil, fmt.Errorf("the directory of servers has the schema %q: want %q", d.Schema, Schema)
	}
	return d, d.check()
}

// check says what is wrong with a list, all of it at once.
func (d *Directory) check() error {
	if len(d.Servers) > maxServers {
		return fmt.Errorf("%d servers: want at most %d", len(d.Servers), maxServers)
	}
	var errs []error
	ids := map[string]bool{}
	for i := range d.Servers {
		e := &d.Servers[i]
		if err := e.check(); err != nil {
			errs = append(errs, fmt.Errorf("server %d (%q): %w", i+1, e.ID, err))
		}
		if ids[e.ID] {
			errs = append(errs, fmt.Errorf("server %d: the id %q stands twice", i+1, e.ID))
		}
		ids[e.ID] = true
	}
	return errors.Join(errs...)
}

func (e *Entry) check() error {
	switch {
	case e.ID == "" || e.Protocol == "" || e.Policy == "" || e.Source == "":
		return errors.New("want an id, a protocol, a policy and a source")
	case e.Host == nil && e.Discovery == nil && e.Protocol != "ookla" || e.Host != nil && normal(*e.Host) == "":
		return errors.New("want a host, or the place to ask for one")
	case slices.ContainsFunc(e.Families, func(f int) bool { return f != 4 && f != 6 }):
		return fmt.Errorf("families %v: want 4 or 6", e.Families)
	case e.Port != nil && *e.Port == 0:
		return errors.New("port 0: want 1 to 65535, or null")
	case e.MaxRunsPerDay != nil && *e.MaxRunsPerDay < 0 || e.MaxSeconds != nil && *e.MaxSeconds < 1:
		return errors.New("max_runs_per_day and max_seconds want a number that is not negative, or null")
	}
	if g := e.UnattendedGap; g != nil && (g.Min < 0 || g.Mean < 1 || g.Max < g.Min || g.Max > 365*24*3600) {
		return errors.New("unattended_gap wants a mean, and a minimum that is not above the maximum")
	}
	if e.Checked != nil {
		if _, err := time.Parse(time.DateOnly, *e.Checked); err != nil {
			return fmt.Errorf("checked: %w", err)
		}
	}
	for _, text := range []string{e.ID, e.Protocol, e.Policy, e.Source, value(e.Host), value(e.Capacity), value(e.Auth.Where)} {
		if len(text) > maxText {
			return fmt.Errorf("a text of %d bytes: want at most %d", len(text), maxText)
		}
	}
	return nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// normal is a host as it is compared: lower case, without the root's dot; an address in its shortest form.
func normal(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String()
	}
	return host
}

// Find returns the entry of a host by its name or an alias. Where several protocols of a host have an entry each, the strictest in
// automation is returned, because a host's operator has one mind.
func (d *Directory) Find(host string) (*Entry, bool) {
	host = normal(host)
	var found *Entry
	for i := range d.Servers {
		e := &d.Servers[i]
		if e.Host == nil || normal(*e.Host) != host && !slices.ContainsFunc(e.Aliases, func(a string) bool { return normal(a) == host }) {
			continue
		}
		if found == nil || !e.automatic() && found.automatic() {
			found = e
		}
	}
	return found, found != nil
}

func (e *Entry) automatic() bool { return e.AllowsAutomation != nil && *e.AllowsAutomation }

// Key is what uses of the entry are counted under: its host, or its id where servers are handed out.
func (e *Entry) Key() string {
	if e.Host == nil {
		return "id:" + e.ID
	}
	return normal(*e.Host)
}

// PortOf returns the port of a protocol that the host is known to speak.
func (e *Entry) PortOf(protocol string) (uint16, bool) {
	if e.Protocol == protocol && e.Port != nil {
		return *e.Port, true
	}
	for _, s := range e.Also {
		if s.Protocol == protocol {
			return s.Port, true
		}
	}
	return 0, false
}
