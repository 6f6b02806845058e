package report

// writeApps prints the tables of calls and routers and the scores of pages, where there are any.
func (r *Result) writeApps(table func(head []string, rows [][]string) error, line func(string)) error {
	if rows := r.voiceRows(); len(rows) > 0 {
		if err := table(voiceColumns(), rows); err != nil {
			return err
		}
	}
	if rows := r.hopRows(); len(rows) > 0 {
		if err := table(hopColumns(), rows); err != nil {
			return err
		}
	}
	for _, text := range r.queueTexts() {
		line(text)
	}
	for i := range r.PageScores {
		line(r.PageScores[i].text())
	}
	for i := range r.RRUL {
		for _, text := range r.RRUL[i].text() {
			line(text)
		}
	}
	return nil
}
