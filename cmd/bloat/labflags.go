package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
	"bufferbloat/servers/lab/link/queue"
)

// defaultQueue is what --lab without a value asks for.
const defaultQueue = "fifo"

// labFlags are the flags that say what an emulated link is like.
type labFlags struct {
	queue              string // "" without --lab
	queueDown, queueUp string
	preset             string
	down, up           bitrate.Bitrate
	rtt                time.Duration
	buffer             depth
	framing            string
	device             string
	loss, jitter       string
	reorder            string
	duplicate, corrupt string
	schedule           string
	seed               uint64
	virtual            bool
	carrier            string
	realTime           bool

	why   string // why not another carrier, for the recording
	flags *pflag.FlagSet
	names []string // of those that describe the link
}

// The carriers of an emulated link.
const (
	processCarrier = "process" // everything in this process
	kernelCarrier  = "kernel"  // the kernel's TCP, in namespaces
	autoCarrier    = "auto"    // kernel where it can be had, otherwise process
)

// register registers the flags of a command that may measure an emulated link in the place of a server.
func (f *labFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.queue, "lab", "", "measure an emulated link on this machine, with this queue: fifo, fq_codel, \"pie target 20ms\", ...")
	flags.Lookup("lab").NoOptDefVal = defaultQueue
	f.describe(flags)
	flags.BoolVar(&f.virtual, "virtual", false, "lab: run in virtual time, as fast as this machine can, and the same each time")
	flags.StringVar(&f.carrier, "lab-carrier", processCarrier, "lab: process (everything in this process), kernel (the kernel's TCP, in namespaces) or auto")
	f.names = append(f.names, "virtual", "lab-carrier")
}

// describe registers the flags that say what the link is like.
func (f *labFlags) describe(flags *pflag.FlagSet) {
	f.flags = flags
	f.down, f.up, f.rtt, f.buffer = 20*bitrate.Mbit, 4*bitrate.Mbit, 40*time.Millisecond, depth{time: 250 * time.Millisecond}
	before := map[string]bool{}
	flags.VisitAll(func(g *pflag.Flag) { before[g.Name] = true })
	flags.StringVar(&f.preset, "preset", "", "lab: a link that people have; the other flags change it: "+strings.Join(presetNames(), ", "))
	flags.Var(&f.down, "down", "lab: rate to the client")
	flags.Var(&f.up, "up", "lab: rate from the client")
	flags.DurationVar(&f.rtt, "rtt", f.rtt, "lab: propagation delay, both ways together")
	flags.StringVar(&f.queueDown, "qdisc-down", "", "lab: queue of the direction to the client, where it is another")
	flags.StringVar(&f.queueUp, "qdisc-up", "", "lab: queue of the direction from the client, where it is another")
	flags.Var(&f.buffer, "buffer", "lab: depth of a FIFO: time of its rate (250ms), bytes (256k) or packets (1000p)")
	flags.StringVar(&f.framing, "framing", "", "lab: what a packet takes on the link beyond its bytes: a number of bytes, or "+strings.Join(link.FramingNames(), ", "))
	flags.StringVar(&f.device, "device", "", "lab: bytes that the device takes from the queue ahead (3000b, 64k); DOWN/UP for one each")
	flags.StringVar(&f.loss, "loss", "", "lab: share of packets lost (1%), or \"ge P R [BAD [GOOD]]\" for bursts; DOWN/UP for one each")
	flags.StringVar(&f.jitter, "jitter", "", "lab: further delay of up to so much (5ms), with normal, exponential or reorder behind a comma; DOWN/UP")
	flags.StringVar(&f.reorder, "reorder", "", "lab: share of packets that are overtaken, and by how many (1%,3); DOWN/UP")
	flags.StringVar(&f.duplicate, "duplicate", "", "lab: share of packets that arrive twice; DOWN/UP")
	flags.StringVar(&f.corrupt, "corrupt", "", "lab: share of packets that arrive damaged; DOWN/UP")
	flags.StringVar(&f.schedule, "schedule", "", "lab: file of what changes when, as in \"20s rate 5mbit for 10s\"; DOWN,UP for one each")
	flags.Uint64Var(&f.seed, "seed", 2, "lab: seed of all that is random in it: ports, hashes, losses; where none of these matters every seed gives the same run")
	flags.BoolVar(&f.realTime, "real-time", false, "lab: real-time scheduling of the kernel carrier's link, where permitted: true delays on a busy machine, whose other work waits")
	flags.VisitAll(func(g *pflag.Flag) {
		if !before[g.Name] {
			f.names = append(f.names, g.Name)
		}
	})
}

func presetNames() []string {
	var names []string
	for _, p := range lab.Presets() {
		names = append(names, p.Name)
	}
	return names
}

func (f *labFlags) on() bool { return f.queue != "" }

// check says which flag has no meaning without --lab, or beside another.
func (f *labFlags) check() error {
	if f.on() {
		switch {
		case f.carrier != processCarrier && f.carrier != kernelCarrier && f.carrier != autoCarrier:
			return fmt.Errorf("--lab-carrier %q: want %s, %s or %s", f.carrier, processCarrier, kernelCarrier, autoCarrier)
		case f.virtual && f.carrier != processCarrier:
			return fmt.Errorf("--virtual: the kernel keeps real time; leave out --lab-carrier %s", f.carrier)
		}
		return nil
	}
	for _, name := range f.names {
		if f.flags.Changed(name) {
			return fmt.Errorf("--%s describes the emulated link; it goes with --lab", name)
		}
	}
	return nil
}

// config returns the lab's parameters: those of the preset, and over them those of the flags that were given. The lab takes 0 for its
// defaults and negative values for none.
func (f *labFlags) config() (lab.Config, error) {
	var c lab.Config
	given := f.flags.Changed
	if f.preset != "" {
		p, ok := lab.PresetOf(f.preset)
		if !ok {
			return c, fmt.Errorf("--preset %q: want one of %s", f.preset, strings.Join(presetNames(), ", "))
		}
		c = p.Config
	}
	for _, r := range []struct {
		flag string
		rate bitrate.Bitrate
	}{{"--down", f.down}, {"--up", f.up}} {
		if r.rate < link.MinRate || r.rate > link.MaxRate {
			return c, fmt.Errorf("%s %v: want %v to %v, as in 20Mbit", r.flag, r.rate, link.MinRate, link.MaxRate)
		}
	}
	if f.rtt < 0 || f.rtt > link.MaxDelay {
		return c, fmt.Errorf("--rtt %v: want 0 to %v", f.rtt, link.MaxDelay)
	}
	if f.preset == "" || given("down") {
		c.Down = f.down
	}
	if f.preset == "" || given("up") {
		c.Up = f.up
	}
	if f.preset == "" || given("rtt") {
		if c.RTT = f.rtt; c.RTT == 0 {
			c.RTT = -1
		}
	}
	c.Seed, c.Virtual = f.seed, f.virtual
	return c, errors.Join(f.queues(&c), f.frame(&c), f.effects(&c), f.schedules(&c))
}

// queues sets the queues and their depth.
func (f *labFlags) queues(c *lab.Config) error {
	// --lab has a value even where none was given; a preset's own queues then stay.
	if f.preset == "" || f.flags.Changed("qdisc") || f.flags.Changed("lab") && f.queue != defaultQueue {
		c.Queue, c.QueueDown, c.QueueUp = f.queue, "", ""
	}
	if f.queueDown != "" {
		c.QueueDown = f.queueDown
	}
	if f.queueUp != "" {
		c.QueueUp = f.queueUp
	}
	if f.preset != "" && !f.flags.Changed("buffer") {
		return nil
	}
	c.Buffer, c.BufferDown, c.BufferUp = f.buffer.time, f.buffer.bytes, f.buffer.bytes
	if f.buffer.packets > 0 {
		c.Buffer = 0
		c.QueueDown, c.QueueUp = inPackets(c.QueueDown, c.Queue, f.buffer.packets), inPackets(c.QueueUp, c.Queue, f.buffer.packets)
	}
	if !f.flags.Changed("buffer") {
		return nil
	}
	for _, text := range []string{c.QueueDown, c.QueueUp} {
		if text == "" {
			text = c.Queue
		}
		if q, err := queue.Parse(text); err == nil && !isFIFO(q) {
			return fmt.Errorf("--buffer is the depth of a FIFO; for this queue write it as in --qdisc %q", strings.Fields(text)[0]+" limit "+f.buffer.String())
		}
	}
	return nil
}

func isFIFO(q queue.Discipline) bool {
	switch q.(type) {
	case queue.BFIFO, queue.PFIFO:
		return true
	}
	return false
}

// inPackets returns the text of a FIFO with a limit in packets, or that of what is no plain FIFO.
func inPackets(own, both string, packets int) string {
	if own == "" {
		own = both
	}
	if own == "" || own == "fifo" || own == "pfifo" {
		return "pfifo limit " + strconv.Itoa(packets)
	}
	return own
}

// frame sets what the link and the device do with bytes.
func (f *labFlags) frame(c *lab.Config) error {
	if f.framing != "" {
		framing, ok := link.FramingOf(f.framing)
		if !ok {
			n, err := strconv.Atoi(f.framing)
			if err != nil || n < 0 || n > link.MaxOverhead {
				return fmt.Errorf("--framing %q: want 0 to %d bytes, or one of %s", f.framing, link.MaxOverhead, strings.Join(link.FramingNames(), ", "))
			}
			framing = link.Framing{Overhead: n}
		}
		if c.Overhead, c.MinPacket, c.Cells = framing.Overhead, framing.Min, framing.Cells; c.Overhead == 0 {
			c.Overhead = -1
		}
	}
	return eachWay("device", f.device, "/", func(text string, down bool) error {
		var d depth
		if err := d.Set(text); err != nil || d.bytes == 0 {
			return fmt.Errorf("%q: want 1 to %d bytes, as in 3000b or 64k", text, link.MaxDevice)
		}
		*pick(down, &c.DeviceDown, &c.DeviceUp) = d.bytes
		return nil
	})
}

// eachWay calls set for the value of a flag, or for the two values that the separator sets apart, of the directions.
func eachWay(name, text, separator string, set func(text string, down bool) error) error {
	if text == "" {
		return nil
	}
	down, up, both := strings.Cut(text, separator)
	if !both {
		up = down
	}
	if err := errors.Join(set(strings.TrimSpace(down), true), set(strings.TrimSpace(up), false)); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // the other direction's is the same
		return fmt.Errorf("--%s %s", name, first)
	}
	return nil
}

func pick[T any](down bool, ifDown, ifUp *T) *T {
	if down {
		return ifDown
	}
	return ifUp
}

// effects sets what the medium does to packets.
func (f *labFlags) effects(c *lab.Config) error {
	both := func(down bool) *link.Effects { return pick(down, &c.EffectsDown, &c.EffectsUp) }
	return errors.Join(
		eachWay("loss", f.loss, "/", func(text string, down bool) (err error) { both(down).Loss, err = parseLoss(text); return err }),
		eachWay("jitter", f.jitter, "/", func(text string, down bool) (err error) { both(down).Jitter, err = parseJitter(text); return err }),
		eachWay("reorder", f.reorder, "/", func(text string, down bool) (err error) { both(down).Reorder, err = parseReorder(text); return err }),
		eachWay("duplicate", f.duplicate, "/", func(text string, down bool) (err error) { both(down).Duplicate, err = parseShare(text); return err }),
		eachWay("corrupt", f.corrupt, "/", func(text string, down bool) (err error) { both(down).Corrupt, err = parseShare(text); return err }))
}

// parseShare reads "1.5%" or "0.015".
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("%q: want a share from 0 to 1, or from 0%% to 100%%", text)
	}
	return v, nil
}

// parseLoss reads a share, or "ge" and the chances of a Gilbert-Elliott chain: that a burst begins, that it ends, and the loss in it and
// outside of it.
func parseLoss(text string) (link.Loss, error) {
	words := strings.Fields(text)
	if len(words) == 0 || words[0] != "ge" {
		good, err := parseShare(text)
		return link.Loss{Good: good}, err
	}
	l := link.Loss{Bad: 1}
	into := []*float64{&l.GoodToBad, &l.BadToGood, &l.Bad, &l.Good}
	if words = words[1:]; len(words) < 2 || len(words) > len(into) {
		return l, fmt.Errorf("%q: want ge, the chances that a burst begins and ends, and the loss in it and outside of it, as in \"ge 1%% 25%% 100%% 0%%\"", text)
	}
	for i, w := range words {
		var err error
		if *into[i], err = parseShare(w); err != nil {
			return l, err
		}
	}
	return l, nil
}

func parseJitter(text string) (link.Jitter, error) {
	spread, rest, _ := strings.Cut(text, ",")
	var j link.Jitter
	var err error
	if j.Spread, err = time.ParseDuration(strings.TrimSpace(spread)); err != nil || j.Spread < 0 || j.Spread > link.MaxDelay {
		return j, fmt.Errorf("%q: want a time from 0 to %v, as in 5ms", spread, link.MaxDelay)
	}
	for _, word := range strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ' ' }) {
		switch word {
		case "uniform":
			j.Distribution = link.Uniform
		case "normal":
			j.Distribution = link.Normal
		case "exponential":
			j.Distribution = link.Exponential
		case "reorder":
			j.MayReorder = true
		default:
			return j, fmt.Errorf("%q: want uniform, normal, exponential or reorder", word)
		}
	}
	return j, nil
}

func parseReorder(text string) (r link.Reorder, err error) {
	share, distance, ok := strings.Cut(text, ",")
	if r.Share, err = parseShare(share); err == nil && ok {
		if r.Distance, err = strconv.Atoi(strings.TrimSpace(distance)); err != nil || r.Distance < 1 || r.Distance > link.MaxDistance {
			return r, fmt.Errorf("%q: want 1 to %d packets", distance, link.MaxDistance)
		}
	}
	return r, err
}

// maxSchedule bounds the size of a schedule's file.
const maxSchedule = 1 << 20

// schedules reads what changes when.
func (f *labFlags) schedules(c *lab.Config) error {
	return eachWay("schedule", f.schedule, ",", func(name string, down bool) error {
		info, err := os.Stat(name)
		if err == nil && info.Size() > maxSchedule {
			err = fmt.Errorf("%s: %d bytes, want at most %d", name, info.Size(), maxSchedule)
		}
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		s, err := link.ParseSchedule(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*pick(down, &c.ScheduleDown, &c.ScheduleUp) = s
		return nil
	})
}
