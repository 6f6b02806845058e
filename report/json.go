package report

import (
	_ "embed"
	"encoding/json"
	"io"
	"math"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// Schema names the JSON document. Within it, fields are added and never changed.
const Schema = "bloat/result/1"

//go:embed result.schema.json
var schemaJSON string

// JSONSchema returns the JSON Schema (draft 2020-12) of the document that WriteJSON and WriteError print.
func JSONSchema() []byte { return []byte(schemaJSON) }

// document is the JSON document. Absence is null, with a reason beside it; units are in the names.
type document struct {
	Schema     string                 `json:"schema"`
	Version    string                 `json:"version"`
	Command    string                 `json:"command"`
	Status     int                    `json:"status"`
	Error      *string                `json:"error"`
	Started    *string                `json:"started"`
	Length     *time.Duration         `json:"length_ns"`
	Stopped    *string                `json:"stopped"`
	Truncated  bool                   `json:"truncated"`
	Rules      rulesDoc               `json:"rules"`
	Summary    summaryDoc             `json:"summary"`
	Source     *sourceDoc             `json:"source,omitempty"` // only where the result was read from elsewhere
	Path       *bufferbloat.Path      `json:"path"`
	Paths      []bufferbloat.Path     `json:"paths,omitempty"`
	Client     *bufferbloat.HostFacts `json:"client"`
	Plan       *bufferbloat.Plan      `json:"plan"`
	Phases     []phaseDoc             `json:"phases"`
	Induced    []inducedDoc           `json:"induced"`
	Probes     []probeDoc             `json:"probes"`
	Others     []otherDoc             `json:"others,omitempty"` // only where its source measured more
	PageScores []PageScore            `json:"page_scores,omitempty"`
	RRUL       []RRULScore            `json:"rrul,omitempty"`
	Hops       []Hop                  `json:"hops,omitempty"`
	Loops      []ClosedLoop           `json:"closed_loops,omitempty"`
	Directions []Direction            `json:"directions,omitempty"`
	Clocks     []Clocks               `json:"clocks,omitempty"`
	Plain      *string                `json:"plain,omitempty"`
	Grades     []gradeDoc             `json:"grades,omitempty"`
	Findings   []bufferbloat.Finding  `json:"findings"`
	Improved   *improvedDoc           `json:"improvement,omitempty"` // only where another run was compared with
}

type sourceDoc struct {
	Program string   `json:"program"`
	Host    *string  `json:"host"`
	Untold  []string `json:"untold"`
	Run     *string  `json:"run,omitempty"` // what it calls the run
}

type rulesDoc struct {
	Quantile         string  `json:"quantile"`
	QuantileWithLoss string  `json:"quantile_with_loss"`
	Interval         string  `json:"interval"`
	Level            float64 `json:"interval_level"`
}

// summaryDoc holds the figures that most readers want, of the primary series.
type summaryDoc struct {
	IdleMedian      *time.Duration `json:"idle_rtt_median_ns"`
	Download        *int64         `json:"download_goodput_bps"`
	Upload          *int64         `json:"upload_goodput_bps"`
	DownloadMedian  *time.Duration `json:"download_rtt_median_ns"`
	UploadMedian    *time.Duration `json:"upload_rtt_median_ns"`
	DownloadInduced *time.Duration `json:"download_induced_median_ns"`
	UploadInduced   *time.Duration `json:"upload_induced_median_ns"`
}

type phaseDoc struct {
	Name      string         `json:"name"`
	Kind      string         `json:"kind"`
	Reached   bool           `json:"reached"`
	Start     *time.Duration `json:"start_ns"`
	End       *time.Duration `json:"end_ns"`
	From      *time.Duration `json:"from_ns"`
	To        *time.Duration `json:"to_ns"`
	UnderLoad bool           `json:"under_load"`
	Goodput   []goodputDoc   `json:"goodput"`
	Latency   []latencyDoc   `json:"latency"`
	CPU       cpuDoc         `json:"cpu"`
	Total     *Total         `json:"total,omitempty"`
	Voice     []Voice        `json:"voice,omitempty"`
}

type goodputDoc struct {
	Direction load.Direction `json:"direction"`
	Goodput   *int64         `json:"goodput_bps"`
	Reason    *string        `json:"reason"`
	Bytes     *uint64        `json:"bytes"`
	First     *time.Duration `json:"first_ns"`
	Last      *time.Duration `json:"last_ns"`
	Flowed    int            `json:"streams"`
	Whole     int            `json:"streams_whole"`
	Planned   int            `json:"streams_planned"`
	CutShort  bool           `json:"cut_short"`
	CountedBy *string        `json:"counted_by"`
	Fairness  *float64       `json:"fairness_jain"`
	Flows     []flowDoc      `json:"flows"`
	Interval  *rateDoc       `json:"goodput_interval,omitempty"`
	Detail    *Detail        `json:"detail,omitempty"`
}

type flowDoc struct {
	Name        string         `json:"name"`
	Goodput     *int64         `json:"goodput_bps"`
	Error       *string        `json:"error"`
	Warning     *string        `json:"warning"`
	Bytes       *uint64        `json:"bytes"`
	CountedBy   *string        `json:"counted_by"`
	Connected   *time.Duration `json:"connected_ns"`
	First       *time.Duration `json:"first_ns"`
	Last        *time.Duration `json:"last_ns"`
	Stopped     *time.Duration `json:"stopped_ns"`
	Retransmits *uint64        `json:"retransmits"`
	Control     *string        `json:"congestion_control"`
	RemoteDSCP  *string        `json:"remote_dscp"`
	ServerBytes *uint64        `json:"server_bytes"`
	ServerCPU   *float64       `json:"server_cpu"`
	Detail      *FlowDetail    `json:"detail,omitempty"`
}

type countDoc struct {
	Due        int  `json:"due"`
	Sent       int  `json:"sent"`
	Received   int  `json:"received"`
	Late       int  `json:"late"`
	Lost       int  `json:"lost"`
	LostTotal  *int `json:"lost_total"` // null in documents of earlier versions alone
	LostUp     int  `json:"lost_up"`
	LostDown   int  `json:"lost_down"`
	Unsent     int  `json:"unsent"`
	Unfinished int  `json:"unfinished"`
	Invalid    int  `json:"invalid"`
}

type latencyDoc struct {
	Series  string    `json:"series"`
	Kind    string    `json:"kind"`
	Primary bool      `json:"primary"`
	Stated  bool      `json:"stated,omitempty"` // the figures are another program's, which kept no samples
	Count   *countDoc `json:"count"`
	N       int       `json:"n"`
	Loss    *float64  `json:"loss"`
	Reason  *string   `json:"reason"`
	NoLoss  *string   `json:"loss_reason,omitempty"`
	NoRange *string   `json:"interval_reason,omitempty"`
	Few     bool      `json:"few_samples"`

	Min    *time.Duration `json:"rtt_min_ns"`
	P10    *time.Duration `json:"rtt_p10_ns"`
	Median *time.Duration `json:"rtt_median_ns"`
	Mean   *time.Duration `json:"rtt_mean_ns"`
	P90    *time.Duration `json:"rtt_p90_ns"`
	P99    *time.Duration `json:"rtt_p99_ns"`
	Max    *time.Duration `json:"rtt_max_ns"`

	MedianInterval *intervalDoc `json:"rtt_median_interval"`
	P90Interval    *intervalDoc `json:"rtt_p90_interval"`

	// With losses counted as endless; null where the quantile lies among the lost, or nothing was decided.
	MedianWithLoss *time.Duration `json:"rtt_median_with_loss_ns"`
	P90WithLoss    *time.Duration `json:"rtt_p90_with_loss_ns"`

	Ladder []rungDoc `json:"rtt_quantiles"`
}

type intervalDoc struct {
	Low       time.Duration `json:"low_ns"`
	High      time.Duration `json:"high_ns"`
	NEff      float64       `json:"n_effective"`
	Block     int           `json:"block"`
	Resamples int           `json:"resamples"`
	Weak      bool          `json:"weak"` // too few effective samples: too narrow by an unknown amount
}

type rungDoc struct {
	Q     float64        `json:"q"`
	Value *time.Duration `json:"rtt_ns"` // null with too few samples for this quantile
}

type cpuDoc struct {
	Reason *string    `json:"reason"`
	Busy   *shareDoc  `json:"busy"`
	Cores  []shareDoc `json:"cores"`
	Own    *float64   `json:"own"`
}

type shareDoc struct {
	Mean   float64 `json:"mean"`
	StdDev float64 `json:"std_dev"`
}

type inducedDoc struct {
	Phase          string         `json:"phase"`
	Series         string         `json:"series"`
	Reason         *string        `json:"reason"`
	NoInterval     *string        `json:"interval_reason,omitempty"`
	Median         *time.Duration `json:"induced_median_ns"`
	MedianInterval *intervalDoc   `json:"induced_median_interval"`
	P90            *time.Duration `json:"induced_p90_ns"`
	P90Interval    *intervalDoc   `json:"induced_p90_interval"`
	Factor         *ratioDoc      `json:"loaded_over_idle"`
	NearResolution bool           `json:"near_resolution"`
	BaselineMoved  bool           `json:"baseline_moved"`
}

type ratioDoc struct {
	State  string   `json:"state"`
	Value  *float64 `json:"value"`
	Low    *float64 `json:"low"`
	High   *float64 `json:"high"` // null where nothing bounds it
	Reason *string  `json:"reason"`
}

type probeDoc struct {
	Name        string         `json:"name"`
	Kind        string         `json:"kind"`
	Target      string         `json:"target"`
	Address     string         `json:"address"`
	Interval    *time.Duration `json:"interval_ns"`
	DSCP        string         `json:"dscp"`
	Primary     bool           `json:"primary"`
	Reason      *string        `json:"reason"` // why this kind stands in for a better one
	Error       *string        `json:"error"`
	Void        bool           `json:"void"`
	Count       *countDoc      `json:"count"`
	Duplicates  *uint64        `json:"duplicates"`
	Reordered   *uint64        `json:"reordered"`
	Corrupt     *uint64        `json:"corrupt"`
	Stray       *uint64        `json:"stray"`
	Rejected    *uint64        `json:"rejected"`
	RejectedBy  []string       `json:"rejected_by"`
	FirstError  *string        `json:"first_error"`
	LatenessP99 *time.Duration `json:"lateness_p99_ns"`
	LatenessMax *time.Duration `json:"lateness_max_ns"`
	Resolution  *time.Duration `json:"resolution_ns"`
	// Stamps and Waking are absent where they are not known.
	Stamps *Stamps    `json:"stamps,omitempty"`
	Waking *wakingDoc `json:"waking,omitempty"`
	ECN    string     `json:"ecn,omitempty"`
	Size   int        `json:"size_bytes,omitempty"`
	Hop    int        `json:"hop,omitempty"`
	Voice  bool       `json:"voice,omitempty"`
	Marks  []Mark     `json:"marks,omitempty"`
	// MarkWays is absent where no way is told.
	MarkWays []bufferbloat.MarkWay `json:"mark_ways,omitempty"`
}

// wakingDoc is probe.Waking.
type wakingDoc struct {
	N   uint64        `json:"n"`
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// WriteJSON prints the result as one JSON document. Where Status is 1, error says why.
func (r *Result) WriteJSON(w io.Writer) error { return encode(w, r.document()) }

// WriteError prints the document of a run that could not measure: the same form, with the error, the exit
// status, and no figures. err must not be nil.
func WriteError(w io.Writer, version, command string, err error, status int) error {
	d := document{Schema: Schema, Version: version, Command: command, Status: status, Rules: rules(), Error: text(err.Error()),
		Phases: []phaseDoc{}, Induced: []inducedDoc{}, Probes: []probeDoc{}, Findings: []bufferbloat.Finding{}}
	return encode(w, &d)
}

func encode(w io.Writer, d *document) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

func rules() rulesDoc {
	return rulesDoc{Quantile: stat.Rule, QuantileWithLoss: stat.LossRule, Interval: stat.Method, Level: stat.Level}
}

// value is v where ok, and null otherwise.
func value[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// text is s, or null where it is empty.
func text(s string) *string { return value(s, s != "") }

func (r *Result) document() *document {
	d := &document{Schema: Schema, Version: r.Version, Command: r.Plan.Name, Status: r.Status(), Error: text(r.Cause()),
		Length: value(r.Length, r.Length > 0), Stopped: text(r.Stopped), Truncated: r.Truncated, Rules: rules(),
		Summary: r.summary(), Plain: text(r.Plain()), PageScores: r.PageScores, RRUL: r.RRUL, Hops: r.Hops, Loops: r.Loops, Directions: r.Directions, Clocks: r.Clocks,
		Phases: []phaseDoc{}, Induced: []inducedDoc{}, Probes: []probeDoc{}, Findings: r.Findings}
	if !r.Started.IsZero() {
		d.Started = text(r.Started.Format(time.RFC3339Nano))
	}
	if s := r.Source; s != nil {
		d.Source = &sourceDoc{Program: s.Program, Host: text(s.Host), Untold: append([]string{}, s.Untold...), Run: text(s.Run)}
		d.Rules.Quantile = r.rule()
	} else if r.read == nil || !r.read.bare {
		d.Paths = r.Paths
		d.Path, d.Client, d.Plan = &r.Path, &r.Client, r.plan()
	}
	for i := range r.Grades {
		d.Grades = append(d.Grades, r.Grades[i].document())
	}
	if d.Findings == nil {
		d.Findings = []bufferbloat.Finding{}
	}
	for i := range r.Phases {
		d.Phases = append(d.Phases, r.Phases[i].document())
	}
	for i := range r.Induced {
		d.Induced = append(d.Induced, r.Induced[i].document())
	}
	for i := range r.Series {
		d.Probes = append(d.Probes, r.Series[i].document())
	}
	for i := range r.Others {
		d.Others = append(d.Others, r.Others[i].document())
	}
	d.Improved = r.Improved.document()
	return d
}

// plan is the plan with lists in place of nothing.
func (r *Result) plan() *bufferbloat.Plan {
	p := r.Plan
	if p.Phases == nil {
		p.Phases = []bufferbloat.PhasePlan{}
	}
	if p.Probes == nil {
		p.Probes = []bufferbloat.ProbePlan{}
	}
	return &p
}

func (r *Result) summary() (s summaryDoc) {
	if idle := r.baseline(bufferbloat.Idle); idle != nil && idle.Primary().Has(Median) {
		s.IdleMedian = &idle.Primary().Median
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		for _, g := range p.Goodput {
			rate, median, induced := &s.Download, &s.DownloadMedian, &s.DownloadInduced
			if g.Direction == load.Upload {
				rate, median, induced = &s.Upload, &s.UploadMedian, &s.UploadInduced
			}
			// The first phase that has a figure speaks for the direction; one that nobody stopped and that was cut short has none.
			if *rate != nil || !g.OK || g.CutShort() && stopText(r.Stopped, r.Truncated) == "" {
				continue
			}
			*rate = value(int64(g.Rate), true)
			if l := p.Primary(); l != nil && p.UnderLoad {
				*median = value(l.Median, l.Has(Median))
			}
			for _, d := range r.Induced {
				if d.Phase == p.Name {
					*induced = value(d.Median.Value, d.OK)
				}
			}
		}
	}
	return s
}

func (p *Phase) document() phaseDoc {
	timed := p.Reached && !p.Untimed
	d := phaseDoc{Name: p.Name, Kind: string(p.Kind), Reached: p.Reached, Start: value(p.Start, timed), End: value(p.End, timed),
		From: value(p.From, timed), To: value(p.To, timed), UnderLoad: p.UnderLoad, Goodput: []goodputDoc{}, Latency: []latencyDoc{},
		CPU: cpuDoc{Reason: text(p.CPU.Why), Own: value(p.CPU.Own, p.CPU.OK), Cores: []shareDoc{}}, Total: p.Total, Voice: p.Voice}
	if p.CPU.OK && !p.CPU.OnlyCores {
		d.CPU.Busy = &shareDoc{p.CPU.Busy.Mean, p.CPU.Busy.StdDev}
	}
	for _, c := range p.CPU.Cores {
		d.CPU.Cores = append(d.CPU.Cores, shareDoc{c.Mean, c.StdDev})
	}
	for i := range p.Goodput {
		d.Goodput = append(d.Goodput, p.Goodput[i].document())
	}
	for i := range p.Latency {
		d.Latency = append(d.Latency, p.Latency[i].document())
	}
	return d
}

func (g *Goodput) document() goodputDoc {
	flowed := g.Flowed > 0 && g.Bytes > 0
	d := goodputDoc{Direction: g.Direction, Goodput: value(int64(g.Rate), g.OK), Reason: text(g.Why), Bytes: value(g.Bytes, flowed),
		First: value(g.First, flowed), Last: value(g.Last, flowed), Flowed: g.Flowed, Whole: g.Whole, Planned: g.Planned, CutShort: g.CutShort(),
		CountedBy: value(g.CountedBy.String(), flowed), Fairness: value(g.Fairness, g.HasFairness), Flows: []flowDoc{}, Interval: g.Range.document(), Detail: g.Detail}
	for i := range g.Flows {
		f := &g.Flows[i]
		d.Flows = append(d.Flows, flowDoc{Name: f.Name, Goodput: value(int64(f.Rate), f.OK), Error: text(f.Error), Warning: text(f.Warning),
			Bytes: value(f.Bytes, f.Flowed), CountedBy: text(f.CountedBy.String()), Connected: value(f.Connected, f.Flowed),
			First: value(f.First, f.Flowed), Last: value(f.Last, f.Flowed), Stopped: value(f.Stopped, f.Flowed),
			Retransmits: value(f.Retransmits, f.HasRetransmits), Control: text(f.CongestionControl), RemoteDSCP: text(f.RemoteDSCP),
			ServerBytes: value(f.ServerBytes, f.HasServerBytes), ServerCPU: value(f.ServerCPU, f.HasServerCPU && finite(f.ServerCPU)), Detail: f.Detail})
	}
	return d
}

// round1 keeps one decimal.
func round1(v float64) float64 { return math.Round(v*10) / 10 }

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func (c *Count) document() *countDoc {
	return &countDoc{Due: c.Due, Sent: c.Sent, Received: c.Received, Late: c.Late, Lost: c.Lost, LostTotal: value(c.AllLost(), true), LostUp: c.LostUp, LostDown: c.LostDown,
		Unsent: c.Unsent, Unfinished: c.Unfinished, Invalid: c.Invalid}
}

func (l *Latency) document() latencyDoc {
	ok := l.OK()
	loss, decided := l.Loss()
	d := latencyDoc{Series: l.Series, Kind: l.Kind, Primary: l.Primary, Count: l.Count.document(), N: l.N, Loss: value(loss, decided), Few: l.Few(),
		Min: value(l.Min, l.Has(Min)), P10: value(l.P10, l.Has(P10)), Median: value(l.Median, l.Has(Median)), Mean: value(l.Mean, l.Has(Mean)),
		P90: value(l.P90, l.Has(P90)), P99: value(l.P99, l.HasP99), Max: value(l.Max, l.Has(Max)),
		MedianInterval: interval(&l.MedianRange, ok && l.Stated == nil), P90Interval: interval(&l.P90Range, ok && l.Stated == nil),
		MedianWithLoss: value(l.MedianWithLoss.Value, l.withLoss() && !l.MedianWithLoss.Unbounded),
		P90WithLoss:    value(l.P90WithLoss.Value, l.withLoss() && !l.P90WithLoss.Unbounded), Ladder: []rungDoc{}}
	if s := l.Stated; s != nil {
		d.Stated, d.Count, d.NoLoss = true, nil, text(s.WhyLoss)
	} else if l.NoLoss != "" {
		d.Count, d.NoLoss = nil, text(l.NoLoss)
	}
	switch {
	case ok && l.Stated != nil:
		d.Reason = text(l.Stated.Why)
	case ok:
	case l.Count.Due == 0 && l.Stated == nil:
		d.Reason = text("no probe was due")
	case l.Count.Due > 0 && l.Count.Sent == 0:
		d.Reason = text("no probe was sent")
	default:
		d.Reason = text("no probe was answered")
	}
	if ok && d.MedianInterval == nil {
		d.NoRange = text(l.noInterval())
	}
	for _, r := range l.Ladder {
		d.Ladder = append(d.Ladder, rungDoc{r.Q, value(r.Value, r.OK)})
	}
	return d
}

// noInterval says why the median and the 90th percentile have no interval.
func (l *Latency) noInterval() string {
	if l.Stated != nil {
		return noSamples
	}
	return noInterval(l.N)
}

// interval is the interval of e, null where ok is false or e is of too few samples for one.
func interval(e *stat.Estimate, ok bool) *intervalDoc {
	ok = ok && noInterval(e.N) == ""
	return value(intervalDoc{Low: e.Low, High: e.High, NEff: round1(e.NEff), Block: e.Block, Resamples: e.Resamples, Weak: e.Weak()}, ok)
}

func (d *Induced) document() inducedDoc {
	out := inducedDoc{Phase: d.Phase, Series: d.Series, Reason: text(d.Why), Median: value(d.Median.Value, d.OK), P90: value(d.P90.Value, d.OK),
		MedianInterval: interval(&d.Median, d.OK && d.NoInterval == ""), P90Interval: interval(&d.P90, d.OK && d.NoInterval == ""), NearResolution: d.NearResolution, BaselineMoved: d.BaselineMoved}
	if d.OK {
		out.NoInterval = text(d.NoInterval)
	}
	if d.OK && d.Factor.State != "" {
		out.Factor = ratio(d.Factor)
	}
	return out
}

func ratio(r stat.Ratio) *ratioDoc {
	resolved := r.State == stat.Resolved
	bounded := resolved || r.State == stat.AtLeast
	return &ratioDoc{State: string(r.State), Value: value(r.Value, resolved), Low: value(r.Low, bounded),
		High: value(r.High, bounded && finite(r.High)), Reason: text(r.Why)}
}

func (s *Series) document() probeDoc {
	counted := !s.Uncounted
	d := probeDoc{Name: s.Name, Kind: s.Kind, Target: s.Target, Address: s.Address, Interval: value(s.Interval, s.Interval > 0), DSCP: s.DSCP, Primary: s.Primary,
		Reason: text(s.Reason), Error: text(s.Error), Void: s.Void, Count: s.Count.document(), Duplicates: value(s.Tally.Duplicates, counted), Reordered: value(s.Tally.Reordered, counted),
		Corrupt: value(s.Tally.Corrupt, counted), Stray: value(s.Tally.Stray, counted), Rejected: value(s.Tally.Rejected, counted), RejectedBy: []string{}, FirstError: text(s.Tally.FirstError),
		LatenessP99: value(s.LatenessP99, s.HasLateness), LatenessMax: value(s.LatenessMax, s.HasLateness), Resolution: value(s.Resolution, s.Resolution > 0),
		Stamps: s.Stamps, ECN: s.ECN, Size: s.Size, Hop: s.Hop, Voice: s.Voice, Marks: s.Marks, MarkWays: s.MarkWays}
	if w := s.Tally.Waking; w.N > 0 {
		d.Waking = &wakingDoc{w.N, w.P50, w.P99, w.Max}
	}
	if s.Uncounted {
		d.Count = nil
	}
	for _, a := range s.Tally.RejectedBy {
		d.RejectedBy = append(d.RejectedBy, a.String())
	}
	return d
}
