package netperf

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/servers/internal/bounds"
	"bufferbloat/servers/internal/listen"
)

// takeTest counts a test against an address, or says which limit forbids it.
func (v *service) takeTest(a netip.Addr) *refusal {
	no := v.clients.TakeTest(a)
	switch {
	case no == nil:
		return nil
	case no.Hourly:
		return refuse(wire.NotPermitted, "%v", no)
	}
	return refuse(wire.Busy, "%v", no)
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
		v.log.Printf("netperf: %v put out, to make room", victim.peer)
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
		if s != self && (!of.IsValid() || bounds.AccountOf(s.peer.Addr()) == of) {
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
	v.log.Printf("netperf: %v put out, to make room", victim.peer)
	_ = victim.conn.Close()
	<-victim.gone
	return true
}

// withRoom calls f, which opens a socket for a test, again for a while where it fails for want of descriptors: idle sessions are put out
// meanwhile, and no connections are accepted that would take what they leave.
func (v *service) withRoom(ctx context.Context, self *session, f func() error) error {
	err := f()
	if err == nil || !listen.OutOfDescriptors(err) {
		return err
	}
	v.starving.Add(1)
	defer v.starving.Add(-1)
	for until := v.host.Now().Add(roomWait); listen.OutOfDescriptors(err) && v.host.Now().Before(until); err = f() {
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
