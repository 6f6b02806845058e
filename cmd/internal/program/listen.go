package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/report"
)

// Addresses returns the addresses that a server is to listen on: those of bind, of the families asked for. Without bind they are those of all families
// that h has, and complain is told of one that it has not; with none of them they are all, and listening will say why not.
func Addresses(ctx context.Context, h host.Host, bind []string, four, six bool, complain func(error)) ([]netip.Addr, error) {
	if four && six {
		return nil, errors.New("-4 and -6 exclude each other")
	}
	names := bind
	if len(bind) == 0 {
		names = []string{"0.0.0.0", "::"}
	}
	var all, good []netip.Addr
	for _, name := range names {
		addr, err := netip.ParseAddr(name)
		if err != nil {
			return nil, fmt.Errorf("--bind %q: want an address of this host", name)
		}
		is4 := host.FamilyOf(addr) == host.IPv4
		if four && !is4 || six && is4 {
			continue
		}
		all = append(all, addr)
		if len(bind) == 0 {
			l, err := h.ListenTCP(ctx, netip.AddrPortFrom(addr, 0), host.Options{})
			if err != nil {
				complain(fmt.Errorf("no %v here: %w", host.FamilyOf(addr), err))
				continue
			}
			l.Close()
		}
		good = append(good, addr)
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("no address is left to listen on")
	case len(good) == 0:
		return all, nil
	}
	return good, nil
}

// At returns a port of each address.
func At(addrs []netip.Addr, port uint16) []netip.AddrPort {
	out := make([]netip.AddrPort, len(addrs))
	for i, addr := range addrs {
		out[i] = netip.AddrPortFrom(addr, port)
	}
	return out
}

// ParsePorts reads a range of ports: FIRST-LAST, or one port.
func ParsePorts(text string) (first, last uint16, err error) {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		to = from
	}
	a, err := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	if err = errors.Join(err, err2); err != nil || a == 0 || b < a {
		return 0, 0, errors.New("want FIRST-LAST, as in 30000-30100")
	}
	return uint16(a), uint16(b), nil
}

// Log prints lines with their time to w. What a client sent and stands in a line can't steer a terminal or begin another. It is safe for concurrent use.
func Log(w io.Writer, clock host.Clock) func(string) {
	var mu sync.Mutex
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "%s %s\n", clock.Now().Format(time.DateTime), report.Printable(line))
	}
}

// Listening returns what says in a log where a server listens.
func Listening(log func(string), what string) func([]netip.AddrPort) {
	return func(at []netip.AddrPort) {
		texts := make([]string, len(at))
		for i, a := range at {
			texts[i] = a.String()
		}
		log(fmt.Sprintf("%s: listening at %s", what, strings.Join(texts, ", ")))
	}
}
