package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// maxName is the longest host name that DNS can carry (RFC 1035 section 2.3.4), in text and without a closing dot.
const maxName = 253

// maxZone bounds the name of a network device: more than any system gives one (Linux 15 bytes, Windows numbers).
const maxZone = 64

// Resolve implements Network. A name that no resolver can know (a leading dash, white space, characters of a shell, more
// than 253 bytes) is refused before anything is asked; the error quotes it with its control characters escaped.
func (k *Kernel) Resolve(ctx context.Context, name string, family Family) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		if !isZone(a.Zone()) {
			return nil, fmt.Errorf("address %q: the zone behind %% is no network device's name", name)
		}
		a = a.Unmap()
		if family != AnyFamily && FamilyOf(a) != family {
			return nil, fmt.Errorf("%s has no %s address: it is itself an %s address", name, family, FamilyOf(a))
		}
		return []netip.Addr{a}, nil
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	addrs, err := k.lookup(ctx, name, family)
	if err == nil && len(addrs) > 0 {
		return addrs, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("look up %s: %w", name, context.Cause(ctx))
	}
	if family != AnyFamily && notFound(err) {
		// "no such host" would be wrong for a host of the other family only.
		if others, _ := k.lookup(ctx, name, AnyFamily); len(others) > 0 {
			return nil, fmt.Errorf("%s has no %s address, only %v", name, family, others[0])
		}
	}
	if err == nil {
		return nil, fmt.Errorf("%s has no %s address", name, family)
	}
	return nil, fmt.Errorf("look up %s (%s): %w; check the name and this host's resolver, or give an address", name, family, err)
}

// lookup asks the resolver and returns the addresses of the family, unmapped, in the resolver's order, each once.
func (k *Kernel) lookup(ctx context.Context, name string, family Family) ([]netip.Addr, error) {
	network := "ip"
	switch family {
	case IPv4:
		network = "ip4"
	case IPv6:
		network = "ip6"
	}
	found, err := k.resolver.LookupNetIP(ctx, network, name)
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(found))
	seen := make(map[netip.Addr]bool, len(found))
	for _, a := range found {
		a = a.Unmap()
		if seen[a] || family != AnyFamily && FamilyOf(a) != family {
			continue
		}
		seen[a] = true
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// notFound reports whether a look-up came to its end and found nothing, as against one that got no answer.
func notFound(err error) bool {
	if err == nil {
		return true
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsNotFound
	}
	var addr *net.AddrError // "no suitable address": all were of the other family
	return errors.As(err, &addr)
}

// checkName refuses what cannot be a host name.
func checkName(name string) error {
	trimmed := strings.TrimSuffix(name, ".")
	switch {
	case trimmed == "":
		return fmt.Errorf("host name %q is empty", name)
	case len(trimmed) > maxName:
		return fmt.Errorf("host name %q... has %d bytes, and DNS carries at most %d", trimmed[:32], len(trimmed), maxName)
	case name[0] == '-':
		return fmt.Errorf("host name %q begins with a dash: an option in the place of a host?", name)
	}
	for i := range len(name) {
		if c := name[i]; !isNameByte(c) {
			return fmt.Errorf("host name %q has a character that names cannot have at byte %d: "+
				"want letters, digits, dots, dashes and underscores (an international name in its xn-- form), or an address", name, i)
		}
	}
	for label := range strings.SplitSeq(trimmed, ".") {
		if len(label) == 0 || len(label) > 63 {
			return fmt.Errorf("host name %q has a part between dots of %d bytes: want 1 to 63", name, len(label))
		}
	}
	return nil
}

// isZone reports whether s can be the name or the number of a network device; "" can.
func isZone(s string) bool {
	for i := range len(s) {
		if !isNameByte(s[i]) && s[i] != ':' && s[i] != '@' {
			return false
		}
	}
	return len(s) <= maxZone
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_'
}
