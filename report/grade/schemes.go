package grade

// Schemes returns the schemes in the order in which they are shown. Thresholds are those of the sources named, as of 2026; a source that changes them
// becomes a further version here, and the old one stays.
func Schemes() []Scheme {
	dsl := [5]float64{5, 30, 60, 200, 400}
	libre := [5]float64{5, 25, 50, 75, 100}
	libreIdle := [5]float64{75, 100, 125, 150, 175}
	const aim = "speed.cloudflare.com, src/config/internalConfig.ts"
	return []Scheme{
		{"DSLReports bufferbloat", "FAQ 17930", "dslreports.com/faq/17930", "mean of the mean increases in download and upload",
			&Letters{Limits: dsl, Combine: MeanOfDirections, Statistic: Means}},
		{"8x8 utility", "maximum acceptable limits", "docs.8x8.com", "increase; its source does not say of what: the worst mean increase",
			&Letters{Limits: dsl, Combine: WorstDirection, Statistic: Means}},
		{"LibreQoS bufferbloat", "code", "LibreQoS test, README.md and gradeCalculations.js", "mean loaded - 25th percentile idle, each direction",
			&Letters{Limits: dsl, Combine: EachDirection, Statistic: MeanOverP25}},
		{"LibreQoS bufferbloat", "shipped JSON", "LibreQoS test, client/latencyGradeThresholds.json", "mean loaded - 25th percentile idle, each direction",
			&Letters{Limits: libre, Combine: EachDirection, Statistic: MeanOverP25}},
		{"LibreQoS total", "shipped JSON", "LibreQoS test, client/latencyGradeThresholds.json", "idle grade and mean grade of download, upload and both at once",
			&Total{Idle: libreIdle, Bloat: Letters{Limits: libre, Statistic: MeanOverP25}}},
		{"v.recipes", "page of 2026", "v.recipes/bufferbloat", "increase; its source does not say of what: the worst mean increase",
			&Letters{Limits: [5]float64{15, 50, 100, 300, 500}, LastIn: true, Combine: WorstDirection, Statistic: Means}},
		{"lagas.lt", "methodology", "lagas.lt/methodology", "highest of the increases in download, upload and both at once",
			&Letters{Limits: dsl, Inclusive: true, Combine: WorstDirection, Statistic: Means}},
		{"Cloudflare AIM", "loaded increase", aim, "highest of the loaded medians - idle median", Increase{}},
		{"Cloudflare AIM", "gaming", aim, "sum of points for idle latency, loss and loaded increase", &Points{Use: "gaming", Cuts: [4]float64{5, 15, 25, 30}}},
		{"Cloudflare AIM", "rtc", aim, "sum of points for idle latency, loss, loaded increase and idle jitter",
			&Points{Use: "rtc", Jitter: true, Cuts: [4]float64{5, 15, 25, 40}}},
		{"Cloudflare AIM", "streaming", aim, "sum of points for idle latency, loss, download and loaded increase",
			&Points{Use: "streaming", Rate: true, Cuts: [4]float64{15, 20, 40, 60}}},
		{"Quality of Outcome", "goresponsiveness, gaming", "goresponsiveness", "50th, 95th and 99th percentiles under load of every direction",
			&Outcome{Needs: []Need{{0.5, 30, 150}, {0.95, 65, 200}, {0.99, 100, 250}}}},
	}
}
