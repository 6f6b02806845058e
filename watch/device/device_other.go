//go:build !linux

package device

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

func unsupported() error { return fmt.Errorf("on %s: %w", runtime.GOOS, errors.ErrUnsupported) }

func readLink(int) (Link, error) { return Link{}, unsupported() }

func egress(_, _ netip.Addr) (int, error) { return 0, unsupported() }

func readFacts(_ Link, f *Facts) { f.Missing["all"] = unsupported().Error() }

func readBQL(Link) ([]BQL, error) { return nil, unsupported() }

func readWireless(string) (Wireless, bool) { return Wireless{}, false }
