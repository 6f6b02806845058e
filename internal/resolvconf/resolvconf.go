// Package resolvconf reads the resolvers that a host's settings name.
package resolvconf

import (
	"net/netip"
	"strings"
)

// Port is the UDP port of DNS.
const Port = 53

// Nameservers returns the resolvers that the text of a resolv.conf names, in its order, with the port of DNS. Lines that it can't read are
// passed over, as resolvers do.
func Nameservers(text []byte) []netip.AddrPort {
	var found []netip.AddrPort
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			found = append(found, netip.AddrPortFrom(a.Unmap(), Port))
		}
	}
	return found
}
