package report

// appTables are the tables of directions, calls and routers, each with its head first; none that is empty.
func (r *Result) appTables() (tables [][][]string) {
	for _, t := range []struct {
		head []string
		rows [][]string
	}{{directionColumns(), r.directionRows()}, {voiceColumns(), r.voiceRows()}, {hopColumns(), r.hopRows()}} {
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
func (r *Result) writeApps(table func(head []string, rows [][]string) error, line func(string)) error {
	for _, t := range r.appTables() {
		if err := table(t[0], t[1:]); err != nil {
			return err
		}
	}
	for _, text := range r.appLines() {
		line(text)
	}
	return nil
}
