package lab

import (
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// Preset is a link that people have, by name. Where no source is named, the figures are typical ones and nothing more.
type Preset struct {
	Name   string
	About  string // one line
	Config Config
}

// Presets returns all of them. The result is the caller's.
func Presets() []Preset {
	return append(letters(), lines()...)
}

// PresetOf returns the preset with this name.
func PresetOf(name string) (Preset, bool) {
	for _, p := range Presets() {
		if p.Name == name {
			return p, true
		}
	}
	return Preset{}, false
}

const (
	mbit = bitrate.Mbit
	msec = time.Millisecond
)

// letters are the links of the letters to mailing lists that this project began with.
func letters() []Preset {
	return []Preset{
		{"cable-2014", "cable modem of 28/4.2 Mbit/s and 16 ms with deep FIFOs, the link of \"PIE testing on a cable modem\" (2014)",
			Config{Down: 28 * mbit, Up: 4200 * bitrate.Kbit, RTT: 16 * msec, Queue: "fifo", BufferDown: 1 << 20, BufferUp: 256 << 10,
				Overhead: 18, MinPacket: 64}},
		{"ethernet-100", "100 Mbit/s Ethernet with 0.32 ms, pfifo_fast of 1000 packets and 4500 bytes of byte queue limit, the link of \"SFQ and QFQ " +
			"against pfifo_fast\" and \"Calculating baseline latency properly\" (2012)",
			Config{Down: 100 * mbit, Up: 100 * mbit, RTT: 200 * time.Microsecond, Queue: "pfifo_fast", Overhead: 38, MinPacket: 84,
				DeviceDown: 4500, DeviceUp: 4500}},
		{"archer", "a home router that shapes a line of 100/20 Mbit/s by htb and fq_codel at 95%, as in \"Policing against shaping on a router\" " +
			"(2015), which gives no rates",
			Config{Down: 100 * mbit, Up: 20 * mbit, RTT: 20 * msec, QueueDown: "htb rate 95mbit leaf fq_codel",
				QueueUp: "htb rate 19mbit leaf fq_codel", Overhead: 18, MinPacket: 64}},
	}
}

// lines are kinds of access.
func lines() []Preset {
	return []Preset{
		{"dsl-6/0.5", "ADSL of 6/0.5 Mbit/s and 30 ms, PPPoE over ATM, with deep FIFOs",
			Config{Down: 6 * mbit, Up: 500 * bitrate.Kbit, RTT: 30 * msec, Queue: "fifo", BufferDown: 256 << 10, BufferUp: 64 << 10,
				Overhead: 40, Cells: link.ATM}},
		{"fibre-1000/500", "fibre of 1000/500 Mbit/s and 4 ms, with FIFOs of 50 ms",
			Config{Down: 1000 * mbit, Up: 500 * mbit, RTT: 4 * msec, Queue: "fifo", Buffer: 50 * msec, Overhead: 38, MinPacket: 84}},
		{"lte", "LTE around 40/10 Mbit/s and 50 ms, whose rate wanders, with FIFOs of a second",
			Config{Down: 40 * mbit, Up: 10 * mbit, RTT: 50 * msec, Queue: "fifo", Buffer: time.Second, Overhead: -1,
				EffectsDown:  link.Effects{Jitter: link.Jitter{Spread: 4 * msec}},
				EffectsUp:    link.Effects{Jitter: link.Jitter{Spread: 8 * msec}},
				ScheduleDown: wander(40*mbit, 2*time.Second, 100, 60, 130, 35, 90, 150, 75),
				ScheduleUp:   wander(10*mbit, 3*time.Second, 100, 50, 120, 80, 140)}},
		{"satellite-600ms", "geostationary satellite of 25/3 Mbit/s and 600 ms, with FIFOs of half a second",
			Config{Down: 25 * mbit, Up: 3 * mbit, RTT: 600 * msec, Queue: "fifo", Buffer: 500 * msec,
				EffectsDown: link.Effects{Loss: link.Loss{Good: 0.0001}}, EffectsUp: link.Effects{Loss: link.Loss{Good: 0.0001}}}},
		{"starlink-like", "satellites in low orbit around 150/15 Mbit/s and 40 ms, that change over every 15 s: another rate and delay, and a short gap",
			Config{Down: 150 * mbit, Up: 15 * mbit, RTT: 40 * msec, Queue: "fifo", Buffer: 150 * msec,
				EffectsDown:  link.Effects{Jitter: link.Jitter{Spread: 4 * msec}},
				EffectsUp:    link.Effects{Jitter: link.Jitter{Spread: 6 * msec}},
				ScheduleDown: handovers(150*mbit, 20*msec), ScheduleUp: handovers(15*mbit, 20*msec)}},
		{"wifi-like", "a wireless link of 100/50 Mbit/s and 20 ms that stalls for tens of milliseconds now and then",
			Config{Down: 100 * mbit, Up: 50 * mbit, RTT: 20 * msec, Queue: "fifo", Buffer: 200 * msec,
				EffectsDown:  link.Effects{Jitter: link.Jitter{Spread: msec, Distribution: link.Exponential}},
				EffectsUp:    link.Effects{Jitter: link.Jitter{Spread: 2 * msec, Distribution: link.Exponential}},
				ScheduleDown: stalls(0), ScheduleUp: stalls(3 * msec)}},
	}
}

// wander is a rate that takes so many percent of rate in turn, each for as long as each.
func wander(rate bitrate.Bitrate, each time.Duration, percent ...int) link.Schedule {
	var s link.Schedule
	for i, p := range percent {
		s.Steps = append(s.Steps, link.Step{At: time.Duration(i) * each, Sets: link.SetsRate, Rate: rate * bitrate.Bitrate(p) / 100})
	}
	s.Repeat = time.Duration(len(percent)) * each
	return s
}

// handovers are four satellites, 15 s each, with a gap of 80 ms and some loss at the change.
func handovers(rate bitrate.Bitrate, delay time.Duration) link.Schedule {
	const each = 15 * time.Second
	s := link.Schedule{Repeat: 4 * each}
	for i, sky := range []struct {
		percent int
		delay   time.Duration
	}{{100, 0}, {70, 6 * msec}, {120, -3 * msec}, {85, 2 * msec}} {
		at := time.Duration(i) * each
		s.Steps = append(s.Steps,
			link.Step{At: at, Sets: link.SetsRate | link.SetsDelay, Rate: rate * bitrate.Bitrate(sky.percent) / 100, Delay: delay + sky.delay},
			link.Step{At: at, For: 80 * msec, Sets: link.SetsOutage},
			link.Step{At: at, For: 300 * msec, Sets: link.SetsLoss, Loss: 0.02})
	}
	return s
}

// stalls are pauses of 20 to 180 ms at uneven times, again every 10 s.
func stalls(shift time.Duration) link.Schedule {
	s := link.Schedule{Repeat: 10 * time.Second}
	for _, stall := range []struct{ at, length time.Duration }{{400, 40}, {1300, 90}, {1900, 20}, {3500, 180}, {4100, 30}, {5800, 60}, {6300, 120}, {8700, 50}} {
		s.Steps = append(s.Steps, link.Step{At: stall.at*msec + shift, For: stall.length * msec, Sets: link.SetsOutage})
	}
	return s
}
