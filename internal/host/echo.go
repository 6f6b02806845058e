package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// echoChecksum is the Internet checksum (RFC 1071) of an ICMP message, its checksum field taken as zero.
func echoChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		if i != 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum&0xffff + sum>>16
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	return ^uint16(sum)
}

// echoOpenError is the error of DialEcho where no kind of socket could be opened; ping and raw are why, nil where not tried.
func echoOpenError(to netip.Addr, ping, raw error) error {
	var tried []error
	if ping != nil {
		tried = append(tried, fmt.Errorf("unprivileged: %w", ping))
	}
	if raw != nil {
		tried = append(tried, fmt.Errorf("raw: %w", raw))
	}
	err := fmt.Errorf("open ICMP socket to %v: %w", to, joined(tried))
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w; %s", err, echoPermissionHint)
	}
	return err
}

// joined is errors.Join on one line.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return fmt.Errorf("%w, %w", errs[0], errs[1])
}
