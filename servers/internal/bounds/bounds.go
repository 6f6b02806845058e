// Package bounds limits what the clients of a server can make it do: their tests, connections and bytes by address, and the lines in its log.
package bounds

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"bufferbloat/internal/host"
)

// Limits are what clients may use.
type Limits struct {
	Tests           int    // at the same time, of all
	TestsPerAddress int    // at the same time
	TestsPerHour    int    // begun by one address; 0 is no limit
	BytesPerHour    uint64 // of payload that one address moves, both ways; 0 is no limit
}

// Use is what is in use by all clients, or by one address.
type Use struct{ Connections, Tests int }

// account is what one address has in use, and what it has used of what it may use in an hour.
type account struct {
	Use
	hour     time.Time // when the hour began that the next two count in
	begun    int       // tests
	bytes    uint64    // payload, both ways
	guessing time.Time // when the minute began that failures counts in
	failures int       // wrong passphrases
}

// What is counted, and for how long.
const (
	QuotaTime   = time.Hour
	GuessTime   = time.Minute
	MaxFailures = 20 // wrong passphrases of one address in GuessTime; then none is looked at
)

const manyAccounts = 4096

// Accounts count by address what clients use. They are safe for concurrent use.
type Accounts struct {
	limits Limits
	clock  host.Clock

	mu  sync.Mutex
	all Use
	by  map[netip.Prefix]account
}

// NewAccounts returns Accounts of which nothing is in use.
func NewAccounts(clock host.Clock, l Limits) *Accounts {
	return &Accounts{limits: l, clock: clock, by: map[netip.Prefix]account{}}
}

// AccountOf is whom an address's use is counted against: the address, or the /64 that an IPv6 host can choose any address from.
func AccountOf(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits) // no error: the address is valid, and bits within its length
	return p
}

// InUse returns what is in use by all, and how many accounts are kept but for those of whom only wrong passphrases are.
func (c *Accounts) InUse() (all Use, accounts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.by {
		if one.failures == 0 || one.Use != (Use{}) {
			accounts++
		}
	}
	return c.all, accounts
}

// account returns the entry of an address, with what is too old left out. c.mu is held.
func (c *Accounts) account(a netip.Addr) account {
	one, now := c.by[AccountOf(a)], c.clock.Now()
	if now.Sub(one.hour) >= QuotaTime {
		one.hour, one.begun, one.bytes = now, 0, 0
	}
	if now.Sub(one.guessing) >= GuessTime {
		one.guessing, one.failures = now, 0
	}
	return one
}

// keep stores an entry, or forgets it where nothing in it counts any more. c.mu is held.
func (c *Accounts) keep(a netip.Addr, one account) {
	quota := c.limits.TestsPerHour > 0 && one.begun > 0 || c.limits.BytesPerHour > 0 && one.bytes > 0
	if one.Use == (Use{}) && !quota && one.failures == 0 {
		delete(c.by, AccountOf(a))
		return
	}
	if len(c.by) >= manyAccounts {
		c.forget()
	}
	c.by[AccountOf(a)] = one
}

// forget drops entries of addresses that have nothing in use: those whose hour is over, and where that is not enough any, so that memory
// stays bounded whatever comes. c.mu is held.
func (c *Accounts) forget() {
	now := c.clock.Now()
	for pass := range 2 {
		for p, one := range c.by {
			if one.Use == (Use{}) && (pass > 0 || now.Sub(one.hour) >= QuotaTime && now.Sub(one.guessing) >= GuessTime) {
				delete(c.by, p)
			}
			if pass > 0 && len(c.by) < manyAccounts/2 {
				return
			}
		}
		if len(c.by) < manyAccounts/2 {
			return
		}
	}
}

// TakeConnection counts a connection against its address, and reports whether a limit forbids that: that of the address, or that of all.
// They are four times those of tests, so that preflight checks and refusals have room beside the tests.
func (c *Accounts) TakeConnection(a netip.Addr) (ofAddress, ofAll bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.account(a)
	ofAddress, ofAll = one.Connections >= 4*c.limits.TestsPerAddress, c.all.Connections >= 4*c.limits.Tests
	if !ofAddress && !ofAll {
		c.all.Connections++
		one.Connections++
		c.keep(a, one)
	}
	return ofAddress, ofAll
}

// Excess is the limit that forbids a test.
type Excess struct {
	Hourly bool // it is one of what may be used in an hour; otherwise of what runs now
	why    string
}

func (e *Excess) Error() string { return e.why }

// TakeTest counts a test against an address, or says which limit forbids it. Where it returns nil, GiveTest is due at the end.
func (c *Accounts) TakeTest(a netip.Addr) *Excess {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.account(a)
	again := (QuotaTime - c.clock.Now().Sub(one.hour)).Round(time.Second)
	l := c.limits
	switch {
	case c.all.Tests >= l.Tests:
		return &Excess{why: fmt.Sprintf("%d tests are running, which is this server's limit", c.all.Tests)}
	case one.Tests >= l.TestsPerAddress:
		return &Excess{why: fmt.Sprintf("%d tests of %v are running, which is this server's limit for one address", one.Tests, a)}
	case l.TestsPerHour > 0 && one.begun >= l.TestsPerHour:
		return &Excess{Hourly: true, why: fmt.Sprintf("%v has begun %d tests, which is this server's limit in an hour; try again in %v", a, one.begun, again)}
	case l.BytesPerHour > 0 && one.bytes >= l.BytesPerHour:
		return &Excess{Hourly: true, why: fmt.Sprintf("%v has moved %d bytes, and this server's limit in an hour is %d; try again in %v",
			a, one.bytes, l.BytesPerHour, again)}
	}
	c.all.Tests++
	one.Tests++
	one.begun++
	c.keep(a, one)
	return nil
}

// GiveTest takes a test back, and counts the payload that it moved.
func (c *Accounts) GiveTest(a netip.Addr, bytes uint64) { c.give(a, Use{Tests: 1}, bytes) }

// GiveConnection takes a connection back.
func (c *Accounts) GiveConnection(a netip.Addr) { c.give(a, Use{Connections: 1}, 0) }

func (c *Accounts) give(a netip.Addr, less Use, bytes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.account(a)
	for _, u := range []*Use{&c.all, &one.Use} {
		u.Connections -= less.Connections
		u.Tests -= less.Tests
	}
	one.bytes += bytes
	c.keep(a, one)
}

// Allowance is how many bytes an address may still move, at least 1, or 0 where that is not limited.
func (c *Accounts) Allowance(a netip.Addr) uint64 {
	most := c.limits.BytesPerHour
	if most == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A test that runs already had less than this to begin with. Its part is not known yet, so tests at once may exceed the limit
	// together; the next one is refused.
	return max(1, most-min(most, c.account(a).bytes))
}

// Failed counts a wrong passphrase.
func (c *Accounts) Failed(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.account(a)
	one.failures++
	c.keep(a, one)
}

// Locked reports whether an address has guessed too often.
func (c *Accounts) Locked(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.account(a).failures >= MaxFailures
}
