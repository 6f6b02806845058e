package lab

import (
	"fmt"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
	"bufferbloat/servers/lab/link/queue"
)

// Config is the link and how it is driven. The zero value is a 20/4 Mbit/s line with 40 ms and a bloated queue, in real time.
type Config struct {
	// Down is the rate from server to client, Up the other way, both of IP packets with Overhead. 0 means 20 and 4 Mbit/s.
	Down, Up bitrate.Bitrate
	RTT      time.Duration // propagation, both ways together, split evenly; 0 means 40 ms, negative means none
	// Queue is the discipline of both directions, as queue.Parse reads it, such as "fq_codel target 10ms"; "" means "fifo". QueueDown and
	// QueueUp, where they are not "", take its place in their direction.
	Queue, QueueDown, QueueUp string
	// Buffer is the depth of a FIFO in time: it holds the bytes that the direction's rate carries in so long. 0 means 250 ms. A direction
	// whose BufferDown or BufferUp is set takes that many bytes instead. A FIFO whose text has a limit, and other disciplines, have limits of
	// their own.
	Buffer               time.Duration
	BufferDown, BufferUp int
	Overhead             int        // bytes charged per packet beyond IP; 0 means 14, as Linux's qdiscs charge an Ethernet header, negative means none
	MinPacket            int        // bytes charged for a packet with its overhead at least
	Cells                link.Cells // that the link carries packets in
	DeviceDown, DeviceUp int        // bytes that the device takes from the queue ahead, link.Options.Device

	EffectsDown, EffectsUp   link.Effects
	ScheduleDown, ScheduleUp link.Schedule

	Seed    uint64 // of port numbers, sequence numbers, hashes and all that is random in queues and effects
	Virtual bool   // virtual instead of real time
}

// Description is a Config with all defaults filled in.
type Description struct {
	Carrier            string          // "in process, real time" or "in process, virtual time"
	Down, Up           bitrate.Bitrate // at the link layer, Overhead included; 0 means unlimited
	RTT                time.Duration   // propagation, both ways together
	Queue              string          // as it was asked for, such as "fifo"
	QueueDown, QueueUp string          // with all parameters, as queue.Parse reads them
	BufferDown         int             // bytes that the queue can hold, each way
	BufferUp           int
	Overhead           int // bytes that the link charges beyond the IP packet
}

// direction is one of the two directions of a Config.
type direction struct {
	name     string
	rate     bitrate.Bitrate
	delay    time.Duration
	text     string // of the queue
	buffer   int
	device   int
	effects  link.Effects
	schedule link.Schedule
	seed     uint64
	queue    queue.Discipline
}

// withDefaults fills in the defaults, except those that a direction has.
func (c Config) withDefaults() (Config, error) {
	if c.Down == 0 {
		c.Down = 20 * bitrate.Mbit
	}
	if c.Up == 0 {
		c.Up = 4 * bitrate.Mbit
	}
	if c.RTT == 0 {
		c.RTT = 40 * time.Millisecond
	}
	if c.Queue == "" {
		c.Queue = "fifo"
	}
	if c.Buffer == 0 {
		c.Buffer = 250 * time.Millisecond
	}
	if c.Overhead == 0 {
		c.Overhead = link.EthernetOverhead
	}
	c.RTT, c.Overhead = max(c.RTT, 0), max(c.Overhead, 0)
	switch {
	case c.RTT > link.MaxDelay:
		return c, fmt.Errorf("lab RTT %v: want at most %v", c.RTT, link.MaxDelay)
	case c.Buffer < 0 || c.Buffer > link.MaxDelay:
		return c, fmt.Errorf("lab buffer %v: want a time up to %v", c.Buffer, link.MaxDelay)
	}
	for _, d := range c.directions() {
		if err := d.check(c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// directions returns the two directions, download first.
func (c Config) directions() [2]direction {
	choose := func(text string) string {
		if text == "" {
			return c.Queue
		}
		return text
	}
	return [2]direction{
		{name: "download", rate: c.Down, delay: c.RTT / 2, text: choose(c.QueueDown), buffer: c.BufferDown, device: c.DeviceDown,
			effects: c.EffectsDown, schedule: c.ScheduleDown, seed: 2 * c.Seed},
		{name: "upload", rate: c.Up, delay: c.RTT - c.RTT/2, text: choose(c.QueueUp), buffer: c.BufferUp, device: c.DeviceUp,
			effects: c.EffectsUp, schedule: c.ScheduleUp, seed: 2*c.Seed + 1},
	}
}

// check parses the queue of d, and gives a FIFO its buffer.
func (d *direction) check(c Config) error {
	if d.rate != Unlimited && (d.rate < link.MinRate || d.rate > link.MaxRate) {
		return fmt.Errorf("lab %s rate %v: want %v to %v", d.name, d.rate, link.MinRate, link.MaxRate)
	}
	var err error
	if d.queue, err = queue.Parse(d.text); err != nil {
		return fmt.Errorf("lab %s: %w", d.name, err)
	}
	fifo, ok := d.queue.(queue.BFIFO)
	if !ok || fifo.Limit != 0 {
		return nil
	}
	if fifo.Limit, err = d.bytes(c, fifo.Time); err != nil {
		return err
	}
	fifo.Time = 0
	d.queue = fifo
	return nil
}

// bytes returns the depth of a FIFO.
func (d *direction) bytes(c Config, depth time.Duration) (int, error) {
	set := d.buffer
	if depth == 0 {
		depth = c.Buffer
	} else {
		set = 0
	}
	switch {
	case set == 0 && d.rate == Unlimited:
		set = unlimitedBuffer
	case set == 0:
		set = int(min(float64(d.rate)/8*depth.Seconds(), queue.MaxFIFO))
	}
	if set < mtu+c.Overhead || set > queue.MaxFIFO {
		return 0, fmt.Errorf("lab %s buffer of %d bytes: want %d (one packet) to %d; give it a longer time",
			d.name, set, mtu+c.Overhead, queue.MaxFIFO)
	}
	return set, nil
}

// Links returns the two directions of the link, for a driver of its own, and the link's parameters as they are in effect; the Carrier is left
// to the driver. drop and clone are those of link.Options. An error names the parameter, its value and its range.
func (c Config) Links(drop func(link.Packet, link.Reason), clone func(any) any) (d Description, down, up *link.Link, err error) {
	if c, err = c.withDefaults(); err != nil {
		return d, nil, nil, err
	}
	down, up, err = c.links(drop, clone)
	return c.describe(), down, up, err
}

// describe takes a Config with its defaults filled in.
func (c Config) describe() Description {
	both := c.directions()
	for i := range both {
		both[i].check(c) // which withDefaults has found to be without a mistake
	}
	wire := mtu + c.Overhead
	d := Description{Down: max(c.Down, 0), Up: max(c.Up, 0), RTT: c.RTT, Queue: both[0].text, Overhead: c.Overhead,
		QueueDown: both[0].queue.String(), QueueUp: both[1].queue.String(),
		BufferDown: both[0].queue.Capacity(wire), BufferUp: both[1].queue.Capacity(wire)}
	if both[0].text != both[1].text {
		d.Queue = fmt.Sprintf("%s down, %s up", both[0].text, both[1].text)
	}
	return d
}

// links takes a Config with its defaults filled in.
func (c Config) links(drop func(link.Packet, link.Reason), clone func(any) any) (down, up *link.Link, err error) {
	var both [2]*link.Link
	for i, d := range c.directions() {
		if err := d.check(c); err != nil {
			return nil, nil, err
		}
		both[i], err = link.New(link.Options{Rate: max(d.rate, 0), Delay: d.delay, Framing: link.Framing{Overhead: c.Overhead, Min: c.MinPacket, Cells: c.Cells},
			Queue: d.queue.New, Device: d.device, Effects: d.effects, Schedule: d.schedule, Seed: d.seed, Drop: drop, Clone: clone})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return both[0], both[1], nil
}
