package link

// Cells is how a link layer cuts what it carries.
type Cells uint8

// The kinds of cells.
const (
	NoCells Cells = iota
	ATM           // cells of 53 bytes carry 48 each, the last one padded (AAL5)
	PTM           // 64 bytes go as 65 (IEEE 802.3, 64B/65B)
)

// Framing is what a link layer adds to an IP packet. The zero value adds nothing.
type Framing struct {
	Overhead int // bytes added to each packet
	Min      int // bytes that a packet with its overhead has at least
	Cells    Cells
}

// EthernetOverhead is what Linux's qdiscs charge beyond an IP packet on an Ethernet device: the header, without preamble, checksum and gap.
const EthernetOverhead = 14

// Limits of Framing.
const (
	MaxOverhead = 1024
	maxMin      = 2048
)

// Wire returns the bytes that an IP packet of this size takes on the link.
func (f Framing) Wire(size int) int {
	n := max(size+f.Overhead, f.Min)
	switch f.Cells {
	case ATM:
		return (n + 47) / 48 * 53
	case PTM:
		return n + (n+63)/64
	}
	return n
}

// FramingNames are the names that FramingOf knows.
func FramingNames() []string {
	names := make([]string, len(framings))
	for i, f := range framings {
		names[i] = f.name
	}
	return names
}

// FramingOf returns the framing with this name, as the manual page of Linux's cake lists them; "qdisc" is what other Linux qdiscs charge
// on an Ethernet device.
func FramingOf(name string) (Framing, bool) {
	for _, f := range framings {
		if f.name == name {
			return f.framing, true
		}
	}
	return Framing{}, false
}

var framings = [...]struct {
	name    string
	framing Framing
}{
	{"raw", Framing{}},
	{"qdisc", Framing{Overhead: EthernetOverhead}},
	{"ethernet", Framing{38, 84, NoCells}}, // header 14, checksum 4, preamble 8, gap 12
	{"ether-vlan", Framing{42, 88, NoCells}},
	{"docsis", Framing{18, 64, NoCells}},
	{"pppoe-ptm", Framing{30, 0, PTM}},
	{"bridged-ptm", Framing{22, 0, PTM}},
	{"pppoa-vcmux", Framing{10, 0, ATM}},
	{"pppoa-llc", Framing{14, 0, ATM}},
	{"pppoe-vcmux", Framing{32, 0, ATM}},
	{"pppoe-llcsnap", Framing{40, 0, ATM}},
	{"bridged-vcmux", Framing{24, 0, ATM}},
	{"bridged-llcsnap", Framing{32, 0, ATM}},
	{"ipoa-vcmux", Framing{8, 0, ATM}},
	{"ipoa-llcsnap", Framing{16, 0, ATM}},
	{"conservative", Framing{48, 0, ATM}},
}
