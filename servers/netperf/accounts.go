package netperf

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// usage is what is in use by all clients, or by one address.
type usage struct{ connections, tests int }

func (u usage) plus(d usage) usage {
	return usage{connections: u.connections + d.connections, tests: u.tests + d.tests}
}

// account is what one address has in use, and what it has used of what it may use in an hour.
type account struct {
	usage
	hour     time.Time // when the hour began that the next two count in
	begun    int       // tests
	bytes    uint64    // payload, both ways
	guessing time.Time // when the minute began that failures counts in
	failures int       // wrong passphrases
}

const (
	quotaTime    = time.Hour
	guessTime    = time.Minute
	maxFailures  = 20 // wrong passphrases of one address in guessTime; then none is looked at
	manyAccounts = 4096
)

// accountOf is whom an address's usage is counted against: the address, or the /64 that an IPv6 host can choose any address from.
func accountOf(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits) // no error: the address is valid, and bits within its length
	return p
}

// account returns the entry of an address, with what is too old left out. v.mu is held.
func (v *service) account(a netip.Addr) account {
	one, now := v.by[accountOf(a)], v.host.Now()
	if now.Sub(one.hour) >= quotaTime {
		one.hour, one.begun, one.bytes = now, 0, 0
	}
	if now.Sub(one.guessing) >= guessTime {
		one.guessing, one.failures = now, 0
	}
	return one
}

// keep stores an entry, or forgets it where nothing in it counts any more. v.mu is held.
func (v *service) keep(a netip.Addr, one account) {
	quota := v.o.MaxTestsPerHour > 0 && one.begun > 0 || v.o.MaxBytesPerHour > 0 && one.bytes > 0
	if one.usage == (usage{}) && !quota && one.failures == 0 {
		delete(v.by, accountOf(a))
		return
	}
	if len(v.by) >= manyAccounts {
		v.forget()
	}
	v.by[accountOf(a)] = one
}

// forget drops entries of addresses that have nothing in use: those whose hour is over, and where that is not enough any, so that memory
// stays bounded whatever comes. v.mu is held.
func (v *service) forget() {
	now := v.host.Now()
	for pass := range 2 {
		for p, one := range v.by {
			if one.usage == (usage{}) && (pass > 0 || now.Sub(one.hour) >= quotaTime && now.Sub(one.guessing) >= guessTime) {
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

// takeConnection counts a connection against its address, and reports whether a limit forbids that: that of the address, or that of all.
// They are four times those of tests, so that preflight checks and refusals have room beside the tests.
func (v *service) takeConnection(a netip.Addr) (ofAddress, ofAll bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.account(a)
	ofAddress, ofAll = one.connections >= 4*v.o.MaxTestsPerAddress, v.all.connections >= 4*v.o.MaxTests
	if !ofAddress && !ofAll {
		v.all.connections++
		one.connections++
		v.keep(a, one)
	}
	return ofAddress, ofAll
}

// takeTest counts a test against an address, or says which limit forbids it.
func (v *service) takeTest(a netip.Addr) *refusal {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.account(a)
	switch {
	case v.all.tests >= v.o.MaxTests:
		return refuse(wire.Busy, "%d tests are running, which is this server's limit", v.all.tests)
	case one.tests >= v.o.MaxTestsPerAddress:
		return refuse(wire.Busy, "%d tests of %v are running, which is this server's limit for one address", one.tests, a)
	case v.o.MaxTestsPerHour > 0 && one.begun >= v.o.MaxTestsPerHour:
		return refuse(wire.NotPermitted, "%v has begun %d tests, which is this server's limit in an hour; try again in %v", a, one.begun, v.untilNextHour(one))
	case v.o.MaxBytesPerHour > 0 && one.bytes >= v.o.MaxBytesPerHour:
		return refuse(wire.NotPermitted, "%v has moved %d bytes, and this server's limit in an hour is %d; try again in %v",
			a, one.bytes, v.o.MaxBytesPerHour, v.untilNextHour(one))
	}
	v.all.tests++
	one.tests++
	one.begun++
	v.keep(a, one)
	return nil
}

// untilNextHour is how long an account's hour still lasts.
func (v *service) untilNextHour(one account) time.Duration {
	return (quotaTime - v.host.Now().Sub(one.hour)).Round(time.Second)
}

// give takes back what was counted, and adds the payload that was moved.
func (v *service) give(a netip.Addr, d usage, bytes uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	less := usage{connections: -d.connections, tests: -d.tests}
	v.all = v.all.plus(less)
	one := v.account(a)
	one.usage = one.usage.plus(less)
	one.bytes += bytes
	v.keep(a, one)
}

// allowance is how many bytes an address may still move, or 0 where that is not limited.
func (v *service) allowance(a netip.Addr) uint64 {
	if v.o.MaxBytesPerHour == 0 {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	// A test that runs already had less than this to begin with. Its part is not known yet, so tests at once may exceed the limit
	// together; the next one is refused.
	return max(1, v.o.MaxBytesPerHour-min(v.o.MaxBytesPerHour, v.account(a).bytes))
}

// failed counts a wrong passphrase.
func (v *service) failed(a netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.account(a)
	one.failures++
	v.keep(a, one)
}

// locked reports whether an address has guessed too often.
func (v *service) locked(a netip.Addr) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.account(a).failures >= maxFailures
}

// idlers are the sessions that run no test, in the order in which they came to rest. The oldest makes room where room is needed: a real
// client asks as soon as it is connected.
type idlers struct{ list []*session }

// rested puts a session at the end of the list. Where the list is longer than it may be, the oldest is put out; its own goroutine does the rest.
func (v *service) rested(s *session) {
	var victim *session
	v.mu.Lock()
	v.idle.list = append(v.idle.list, s)
	if v.o.MaxIdle > 0 && len(v.idle.list) > v.o.MaxIdle {
		victim = v.idle.list[0]
		v.idle.remove(victim)
	}
	v.mu.Unlock()
	if victim != nil {
		v.log.printf("netperf: %v put out, to make room", victim.peer)
		_ = victim.conn.Close()
	}
}

// woke takes a session off the list.
func (v *service) woke(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.idle.remove(s)
}

func (i *idlers) remove(s *session) {
	for k, one := range i.list {
		if one == s {
			i.list = append(i.list[:k], i.list[k+1:]...)
			return
		}
	}
}

// evict ends the session that has been idle longest, of one account or of all, and waits until it is gone. It reports whether there was
// one.
func (v *service) evict(of netip.Prefix, self *session) bool {
	v.mu.Lock()
	var victim *session
	for _, s := range v.idle.list {
		if s != self && (!of.IsValid() || accountOf(s.peer.Addr()) == of) {
			victim = s
			break
		}
	}
	if victim != nil {
		v.idle.remove(victim)
	}
	v.mu.Unlock()
	if victim == nil {
		return false
	}
	v.log.printf("netperf: %v put out, to make room", victim.peer)
	_ = victim.conn.Close()
	<-victim.gone
	return true
}

// withRoom calls f, which opens a socket for a test, again for a while where it fails for want of descriptors: idle sessions are put out
// meanwhile, and no connections are accepted that would take what they leave.
func (v *service) withRoom(ctx context.Context, self *session, f func() error) error {
	err := f()
	if err == nil || !outOfDescriptors(err) {
		return err
	}
	v.starving.Add(1)
	defer v.starving.Add(-1)
	for until := v.host.Now().Add(roomWait); outOfDescriptors(err) && v.host.Now().Before(until); err = f() {
		if !v.evict(netip.Prefix{}, self) && v.host.SleepUntil(ctx, v.host.Now().Add(roomRetry)) != nil {
			return err
		}
	}
	return err
}

const (
	roomWait  = time.Second
	roomRetry = 5 * time.Millisecond
)

func familyOf(a netip.Addr) wire.Family {
	if host.FamilyOf(a) == host.IPv6 {
		return wire.IPv6
	}
	return wire.IPv4
}

// refusal is why a test is not run: the number for stock clients, the words for the log and for ours.
type refusal struct {
	number wire.ErrorNumber
	why    string
}

func (r *refusal) Error() string { return r.why }

func refuse(number wire.ErrorNumber, format string, args ...any) *refusal {
	return &refusal{number: number, why: fmt.Sprintf(format, args...)}
}
