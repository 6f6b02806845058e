package report

// appTables are the tables of directions, calls, closed loops, marks and routers, each with its head first; none that is empty.
func (r *Result) appTables() (tables [][][]string) {
	for _, t := range []struct {
		head []string
		rows [][]string
	}{{directionColumns(), r.directionRows()}, {voiceColumns(), r.voiceRows()}, {loopColumns(), r.loopRows()}, {markColumns(), r.markRows()}, {hopColumns(), r.hopRows()}} {
		if len(t.rows) > 0 {
			tables = append(tables, append([][]string{t.head}, t.rows...))
		}
	}
	return tables
}

// appLines say where queues are, how pages fare and what RRUL makes of it, a line each.
func (r *Result) appLines() []string {
	lines := r.queueTexts()
	for i := range r.PageScores {
		lines = append(lines, r.PageScores[i].text())
	}
	for i := range r.RRUL {
		lines = append(lines, r.RRUL[i].text()...)
	}
	return lines
}

// writeApps prints both.
func (r *Result) writeApps(table func(head []string, rows [][]string), line func(string)) {
	for _, t := range r.appTables() {
		table(t[0], t[1:])
	}
	for _, text := range r.appLines() {
		line(text)
	}
}

// apps refuses figures that lack what belongs to them.
func (c *checker) apps(r *Result) {
	for i := range r.PageScores {
		s := &r.PageScores[i]
		if s.Score != nil && (s.Idle == nil || s.Loaded == nil) {
			c.complain("page_scores", "a score without the times that it is of")
		}
	}
	for i := range r.Hops {
		h := &r.Hops[i]
		if (h.Induced == nil) != (h.Step == nil) || h.Queue && h.Step == nil {
			c.complain("hops", "a router with a part of its figures")
		}
		c.times("hops", h.Idle, h.Loaded)
	}
	for i := range r.Series {
		for _, w := range r.Series[i].MarkWays {
			if w.N == 0 || w.Preserved+w.Bleached+w.Altered != w.N || max(w.Preserved, w.Bleached, w.Altered, w.ECNCleared, w.CE) > w.N {
				c.complain("mark_ways", "counts that do not add up")
			}
		}
	}
	for i := range r.Loops {
		l := &r.Loops[i]
		if l.Unanswered != nil && !(*l.Unanswered >= 0 && *l.Unanswered <= 1) || l.Rate != nil && !(*l.Rate >= 0 && finite(*l.Rate)) {
			c.complain("closed_loops", "a rate or a share that can't be")
		}
		c.times("closed_loops", l.Median, l.P90, l.P99)
	}
	for i := range r.Directions {
		if d := &r.Directions[i]; (d.Up == nil) != (d.Down == nil) {
			c.complain("directions", "a figure for one direction alone")
		}
	}
	for i := range r.Phases {
		for j := range r.Phases[i].Voice {
			for _, w := range []*VoiceWay{&r.Phases[i].Voice[j].Up, &r.Phases[i].Voice[j].Down} {
				c.times("voice", w.OneWay, w.IPDVMean, w.IPDVP99, w.IPDVMax, w.RTPJitter)
			}
		}
	}
}
