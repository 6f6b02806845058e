
"use strict";
(function () {
	const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];
	const dashes = [[], [8, 4], [2, 3]];
	const root = document.documentElement;
	window.addEventListener("error", function (e) { root.dataset.error = e.message || "error"; });

	const data = JSON.parse(document.getElementById("data").textContent);
	const charts = [];
	const css = function (name) { return getComputedStyle(root).getPropertyValue(name).trim(); };
	const several = data.runs.length > 1;

	function element(kind, parent, className, text) {
		const e = document.createElement(kind);
		if (className) e.className = className;
		if (text !== undefined) e.textContent = text;
		if (parent) parent.append(e);
		return e;
	}

	function style(line, i) {
		line.colour = colours[i % colours.length];
		line.dash = dashes[(i + Math.floor(i / colours.length)) % dashes.length];
		line.shown = true;
		return line;
	}

	// step is a round distance between ticks, for about n of them.
	function step(span, n) {
		const p = Math.pow(10, Math.floor(Math.log10(span / n)));
		return [1, 2, 5, 10].map(function (m) { return m * p; }).find(function (s) { return s >= span / n * 0.999; });
	}

	function label(v, s) { return v.toFixed(Math.max(0, Math.min(9, -Math.floor(Math.log10(s) + 1e-9)))); }

	// index returns the place of the last x that is not above v, or -1.
	function index(xs, v) {
		let low = -1, high = xs.length - 1;
		while (low < high) {
			const mid = Math.ceil((low + high) / 2);
			if (xs[mid] <= v) low = mid; else high = mid - 1;
		}
		return low;
	}

	// Chart draws lines on a canvas. view is the part of the x axis that is shown; charts over time share one.
	function Chart(parent, o) {
		const chart = this;
		chart.o = o;
		element("h3", parent, "", o.title);
		const legend = element("div", parent, "legend");
		chart.tip = element("div", parent, "tip", "\u00a0");
		const box = element("div", parent, "chart");
		chart.canvas = element("canvas", box);
		chart.canvas.setAttribute("role", "img");
		chart.canvas.setAttribute("aria-label", o.title);
		o.lines.forEach(function (line) {
			const l = element("label", legend);
			const check = element("input", l);
			check.type = "checkbox";
			check.checked = true;
			const swatch = element("span", l, "swatch" + (line.dash.length === 0 ? "" : line.dash[0] > 4 ? " dashed" : " dotted"));
			swatch.style.borderColor = line.colour;
			l.append(line.name + (line.note ? " (" + line.note + ")" : ""));
			check.addEventListener("change", function () { line.shown = check.checked; chart.draw(); });
		});
		chart.canvas.addEventListener("pointermove", function (e) { chart.hover(e); });
		chart.canvas.addEventListener("pointerleave", function () { o.group.forEach(function (c) { c.at = null; c.draw(); }); chart.tip.textContent = "\u00a0"; });
		chart.canvas.addEventListener("pointerdown", function (e) { chart.from = chart.value(e); chart.canvas.setPointerCapture(e.pointerId); });
		chart.canvas.addEventListener("pointerup", function (e) {
			const a = Math.min(chart.from, chart.value(e)), b = Math.max(chart.from, chart.value(e));
			chart.from = null;
			if (chart.place(b) - chart.place(a) > 5) chart.zoom(a, b); else chart.redraw();
		});
		chart.canvas.addEventListener("dblclick", function () { chart.reset(); });
		o.group.push(chart);
		charts.push(chart);
	}

	Chart.prototype = {
		zoom: function (a, b) {
			const v = this.o.view;
			v.low = Math.max(v.first, a);
			v.high = Math.min(v.last, b);
			this.redraw();
		},
		reset: function () { this.zoom(this.o.view.first, this.o.view.last); },
		redraw: function () { this.o.group.forEach(function (c) { c.draw(); }); },
		place: function (x) { const v = this.o.view; return 60 + (x - v.low) / (v.high - v.low) * (this.w - 72); },
		value: function (e) {
			const v = this.o.view, box = this.canvas.getBoundingClientRect();
			const f = (e.clientX - box.left - 60) / (this.w - 72);
			return v.low + Math.max(0, Math.min(1, f)) * (v.high - v.low);
		},
		hover: function (e) {
			const x = this.value(e);
			this.o.group.forEach(function (c) { c.at = x; c.draw(); });
			this.o.group.forEach(function (c) {
				const parts = [c.o.xText(x)];
				c.o.lines.forEach(function (line) {
					const i = index(line.x, x);
					if (!line.shown || i < 0) return;
					const y = line.y[i];
					parts.push(line.name + " " + (y === null ? "-" : c.o.yText(y)));
				});
				c.tip.textContent = parts.join("; ");
			});
		},
		// top is the highest value in view.
		top: function () {
			const v = this.o.view;
			let high = this.o.top || 0;
			if (!high) this.o.lines.forEach(function (line) {
				if (!line.shown) return;
				for (let i = Math.max(0, index(line.x, v.low)); i < line.x.length && line.x[i] <= v.high; i++) high = Math.max(high, line.y[i] || 0);
			});
			return high > 0 ? high * (this.o.top ? 1 : 1.06) : 1;
		},
		draw: function () {
			const c = this.canvas, ratio = window.devicePixelRatio || 1, v = this.o.view, chart = this;
			this.w = c.clientWidth;
			const h = this.o.height, w = this.w, bottom = h - 24;
			c.style.height = h + "px";
			c.width = Math.round(w * ratio);
			c.height = Math.round(h * ratio);
			const g = c.getContext("2d");
			g.scale(ratio, ratio);
			g.font = "11px system-ui, Arial, sans-serif";
			const top = this.top(), y = function (value) { return bottom - value / top * (bottom - 8); };
			this.phases(g, bottom);
			g.fillStyle = css("--ink");
			g.strokeStyle = css("--grid");
			g.lineWidth = 1;
			const sy = step(top, Math.max(2, h / 40)), sx = step(v.high - v.low, Math.max(2, w / 90));
			g.textAlign = "right";
			for (let t = 0; t <= top * 1.0001; t += sy) {
				line(g, 60, y(t), w - 12, y(t));
				g.fillText(label(t, sy), 54, y(t) + 4);
			}
			g.textAlign = "center";
			for (let t = Math.ceil(v.low / sx) * sx; t <= v.high; t += sx) {
				line(g, chart.place(t), 8, chart.place(t), bottom);
				g.fillText(label(t, sx), chart.place(t), h - 8);
			}
			g.save();
			g.beginPath();
			g.rect(60, 0, w - 72, bottom + 1);
			g.clip();
			this.o.lines.forEach(function (l) { if (l.shown) chart.line(g, l, y); });
			if (this.from !== null && this.from !== undefined && this.at !== null) {
				g.fillStyle = css("--faint");
				g.globalAlpha = 0.2;
				g.fillRect(this.place(this.from), 8, this.place(this.at) - this.place(this.from), bottom - 8);
				g.globalAlpha = 1;
			}
			if (this.at !== null && this.at !== undefined) {
				g.strokeStyle = css("--faint");
				line(g, this.place(this.at), 0, this.place(this.at), bottom);
			}
			g.restore();
		},
		phases: function (g, bottom) {
			const chart = this;
			(this.o.phases || []).forEach(function (p) {
				const a = Math.max(60, chart.place(p.start)), b = Math.min(chart.w - 12, chart.place(p.end));
				if (!p.load || b <= a) return;
				g.fillStyle = css("--shade");
				g.globalAlpha = 0.09;
				g.fillRect(a, 8, b - a, bottom - 8);
				g.globalAlpha = 1;
			});
		},
		line: function (g, l, y) {
			const v = this.o.view;
			g.strokeStyle = l.colour;
			g.fillStyle = l.colour;
			g.lineWidth = 1.6;
			g.setLineDash(l.dash);
			g.beginPath();
			let open = false, last = null;
			const alone = [];
			const end = Math.min(l.x.length - 1, index(l.x, v.high) + 1);
			for (let i = Math.max(0, index(l.x, v.low)); i <= end; i++) {
				if (l.y[i] === null) { open = false; continue; }
				const px = this.place(l.x[i]), py = y(l.y[i]);
				if (!open) {
					if (i === end || l.y[i + 1] === null) alone.push([px, py]);
					g.moveTo(px, py);
				} else {
					if (l.steps) g.lineTo(px, last);
					g.lineTo(px, py);
				}
				open = true;
				last = py;
			}
			if (l.steps && open) g.lineTo(this.w, last);
			g.stroke();
			g.setLineDash([]);
			alone.forEach(function (p) { g.fillRect(p[0] - 1.5, p[1] - 1.5, 3, 3); });
			if (l.lost && l.lost.length) {
				g.strokeStyle = several ? l.colour : css("--lost");
				for (let i = Math.max(0, index(l.lost, v.low)); i < l.lost.length && l.lost[i] <= v.high; i++) line(g, this.place(l.lost[i]), 0, this.place(l.lost[i]), 7);
			}
		}
	};

	function line(g, x0, y0, x1, y1) {
		g.beginPath();
		g.moveTo(x0, y0);
		g.lineTo(x1, y1);
		g.stroke();
	}

	function view(last) { return { first: 0, last: last, low: 0, high: last }; }

	function gather(pick) {
		const lines = [];
		data.runs.forEach(function (run) {
			pick(run).forEach(function (l) {
				const copy = Object.assign({}, l);
				if (several) copy.name = run.name + ": " + l.name;
				lines.push(style(copy, lines.length));
			});
		});
		return lines;
	}

	function number(v, unit) { return (Math.abs(v) >= 100 ? v.toFixed(1) : v.toFixed(3)) + " " + unit; }

	const live = document.getElementById("live"), parent = document.getElementById("charts");
	live.hidden = false;
	const span = Math.max.apply(null, data.runs.map(function (r) { return r.span; }).concat(0.001));
	const time = view(span), group = [], phases = data.runs.length ? data.runs[0].phases : [];
	const at = function (x) { return x.toFixed(2) + " s"; };
	const rates = gather(function (run) { return run.rates; });
	if (rates.length) new Chart(parent, { title: "Goodput (Mbit/s) over time (s)", lines: rates, height: 200, view: time, group: group, phases: phases, xText: at,
		yText: function (y) { return number(y, "Mbit/s"); } });
	const delays = gather(function (run) {
		return run.delays.map(function (d) { return Object.assign({ note: d.lost.length ? "with losses" : "" }, d); });
	});
	if (delays.length) new Chart(parent, { title: "Round-trip time (ms) over the time at which probes were sent (s)", lines: delays, height: 280, view: time, group: group,
		phases: phases, xText: at, yText: function (y) { return number(y, "ms"); } });
	const shares = gather(function (run) {
		return run.cdf.filter(function (c) { return c.n > 0; }).map(function (c) {
			return { name: c.name, x: [c.x[0]].concat(c.x), y: [0].concat(c.y), steps: true, note: "n " + c.n + (c.lost ? ", " + c.lost + " lost" : "") };
		});
	});
	if (shares.length) {
		const high = Math.max.apply(null, shares.map(function (l) { return l.x[l.x.length - 1]; }));
		new Chart(parent, { title: "Share of probes (%) by round-trip time (ms)", lines: shares, height: 280, top: 100, view: view(high * 1.06 || 1), group: [],
			xText: function (x) { return number(x, "ms"); }, yText: function (y) { return y.toFixed(2) + "%"; } });
	}
	const all = function () { charts.forEach(function (c) { c.draw(); }); };
	document.getElementById("reset").addEventListener("click", function () { charts.forEach(function (c) { c.reset(); }); });
	window.addEventListener("resize", all);
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
	all();
	root.dataset.charts = String(charts.length);
})();
