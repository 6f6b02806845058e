// Package wifi reads what the kernel knows of a Wi-Fi device's stations, over nl80211: how strong, how fast and how often sent again.
//
// A client has one station, its access point. What comes from the kernel is read with its bounds, as everything from outside is.
package wifi

import (
	"fmt"
	"net"

	"bufferbloat/internal/bitrate"
	"bufferbloat/watch/rtnl"
)

// Station is one that the device has a link with. What the driver does not tell is not valid.
type Station struct {
	MAC    [6]byte
	Signal int8 // dBm, of the last packet received; valid with HasSignal
	// TxRate and RxRate are of the last packet of data, at the radio; 0 where not told. No goodput is as high.
	TxRate, RxRate           bitrate.Bitrate
	TxPackets, TxRetries     uint64 // since the link began; 32-bit counters of the kernel
	TxFailed                 uint64 // that were given up
	HasSignal, HasTxCounters bool
}

func (s *Station) String() string { return net.HardwareAddr(s.MAC[:]).String() }

// Read returns the stations of the device with this index, none where it is no Wi-Fi device or has no link. The error wraps errors.ErrUnsupported where there
// is no nl80211, as on a host without Wi-Fi.
func Read(index int) ([]Station, error) { return read(index) }

// maxStations bounds what is kept of an access point's stations.
const maxStations = 64

// The numbers of nl80211 (linux/nl80211.h).
const (
	getStation = 17

	attrIndex   = 3
	attrMAC     = 6
	attrStation = 21

	infoSignal, infoTxRate, infoTxPackets                   = 7, 8, 10
	infoTxRetries, infoTxFailed, infoRxRate                 = 11, 12, 14
	rateOf16Bits, rateOf32Bits                              = 1, 5
	headerSize                                              = 4 // of generic netlink
	rateUnit                                bitrate.Bitrate = 100 * bitrate.Kbit
)

// Parse reads a message about a station, behind the header of netlink.
func Parse(b []byte) (Station, error) {
	var s Station
	if len(b) < headerSize {
		return s, &rtnl.MalformedError{Offset: len(b), What: "half a header of generic netlink"}
	}
	known := false
	err := rtnl.Attrs(b[headerSize:], func(kind uint16, value []byte) error {
		switch kind {
		case attrMAC:
			if len(value) != len(s.MAC) {
				return &rtnl.MalformedError{What: fmt.Sprintf("a station's address of %d bytes", len(value))}
			}
			copy(s.MAC[:], value)
			known = true
		case attrStation:
			return rtnl.Attrs(value, s.info)
		}
		return nil
	})
	if err == nil && !known {
		err = &rtnl.MalformedError{Offset: len(b), What: "a station without its address"}
	}
	return s, err
}

// info takes in one of the facts about a station.
func (s *Station) info(kind uint16, value []byte) error {
	switch kind {
	case infoSignal:
		if len(value) > 0 {
			s.Signal, s.HasSignal = int8(value[0]), true
		}
	case infoTxRate:
		return rate(&s.TxRate, value)
	case infoRxRate:
		return rate(&s.RxRate, value)
	case infoTxPackets:
		count(&s.TxPackets, value)
	case infoTxRetries:
		s.HasTxCounters = count(&s.TxRetries, value) || s.HasTxCounters
	case infoTxFailed:
		count(&s.TxFailed, value)
	}
	return nil
}

func count(to *uint64, value []byte) bool {
	n, ok := rtnl.Uint32(value)
	if ok {
		*to = uint64(n)
	}
	return ok
}

// rate reads a bit rate; of two, the one of 32 bits says more.
func rate(to *bitrate.Bitrate, value []byte) error {
	wide := false
	return rtnl.Attrs(value, func(kind uint16, v []byte) error {
		if n, ok := rtnl.Uint32(v); ok && kind == rateOf32Bits {
			*to, wide = bitrate.Bitrate(n)*rateUnit, true
		}
		if n, ok := rtnl.Uint16(v); ok && kind == rateOf16Bits && !wide {
			*to = bitrate.Bitrate(n) * rateUnit
		}
		return nil
	})
}

// family reads the number of a family of generic netlink from the answer to a question for it, behind the header of netlink; 0 where it is not told.
func family(b []byte) (id uint16, err error) {
	const attrID = 1
	if len(b) < headerSize {
		return 0, &rtnl.MalformedError{Offset: len(b), What: "half a header of generic netlink"}
	}
	err = rtnl.Attrs(b[headerSize:], func(kind uint16, value []byte) error {
		if n, ok := rtnl.Uint16(value); ok && kind == attrID {
			id = n
		}
		return nil
	})
	return id, err
}
