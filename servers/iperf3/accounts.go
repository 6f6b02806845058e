package iperf3

import (
	"fmt"
	"net/netip"
	"time"
)

// used is what one address has in use, and what it has used of what it may use in an hour.
type used struct {
	tests int
	hour  time.Time // when the hour began that the next two count in
	begun int       // tests
	bytes uint64    // payload, both ways
}

const (
	quotaTime    = time.Hour
	manyAccounts = 4096
)

// account is whom an address's usage is counted against: the address, or the /64 that an IPv6 host can choose any address from.
func account(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits) // no error: the address is valid, and bits within its length
	return p
}

// usedBy returns what an address has used, with what is too old left out. v.mu is held.
func (v *service) usedBy(a netip.Addr) used {
	one, now := v.by[account(a)], v.host.Now()
	if now.Sub(one.hour) >= quotaTime {
		one.hour, one.begun, one.bytes = now, 0, 0
	}
	return one
}

// keep stores what an address has used, or forgets it where nothing in it counts any more. v.mu is held.
func (v *service) keep(a netip.Addr, one used) {
	quota := v.o.MaxTestsPerHour > 0 && one.begun > 0 || v.o.MaxBytesPerHour > 0 && one.bytes > 0
	if one.tests == 0 && !quota {
		delete(v.by, account(a))
		return
	}
	if len(v.by) >= manyAccounts {
		v.forget()
	}
	v.by[account(a)] = one
}

// forget drops addresses that have no test: those whose hour is over, and where that is not enough any, so that memory stays bounded. v.mu is held.
func (v *service) forget() {
	now := v.host.Now()
	for pass := range 2 {
		for p, one := range v.by {
			if one.tests == 0 && (pass > 0 || now.Sub(one.hour) >= quotaTime) {
				delete(v.by, p)
			}
			if pass > 0 && len(v.by) < manyAccounts/2 {
				return
			}
		}
		if len(v.by) < manyAccounts/2 {
			return
		}
	}
}

// take counts a test against an address, or says which limit forbids it.
func (v *service) take(a netip.Addr) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.usedBy(a)
	again := (quotaTime - v.host.Now().Sub(one.hour)).Round(time.Second)
	switch {
	case v.tests >= v.o.MaxTests:
		return fmt.Errorf("%d tests are running, which is this server's limit", v.tests)
	case one.tests >= v.o.MaxTestsPerAddress:
		return fmt.Errorf("%d tests of its address are running, which is this server's limit", one.tests)
	case v.o.MaxTestsPerHour > 0 && one.begun >= v.o.MaxTestsPerHour:
		return fmt.Errorf("its address has begun %d tests, which is this server's limit in an hour; %v are left of that", one.begun, again)
	case v.o.MaxBytesPerHour > 0 && one.bytes >= v.o.MaxBytesPerHour:
		return fmt.Errorf("its address has moved %d bytes, and this server's limit in an hour is %d; %v are left of that", one.bytes, v.o.MaxBytesPerHour, again)
	}
	v.tests++
	one.tests++
	one.begun++
	v.keep(a, one)
	return nil
}

// give takes a test back, and counts the payload that it moved.
func (v *service) give(a netip.Addr, bytes uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tests--
	one := v.usedBy(a)
	one.tests--
	one.bytes += bytes
	v.keep(a, one)
}
