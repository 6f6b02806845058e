package bufferbloat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load/netperf"
)

// Bounds of the look at the path before the load.
const (
	resolveTimeout = 10 * time.Second
	stagger        = 300 * time.Millisecond // until the next address is tried beside one that has not answered (RFC 8305: 100 ms to 2 s)
	maxAddresses   = 8
)

func (r *run) resolve(ctx context.Context, name string, family host.Family) ([]netip.Addr, error) {
	ctx, cancel := host.WithTimeout(ctx, r.h, resolveTimeout)
	defer cancel()
	return r.h.Resolve(ctx, name, family)
}

// client returns a netperf client for a server at a.
func (r *run) client(s Server, a netip.Addr) *netperf.Client {
	return &netperf.Client{Host: r.h, Server: quoteOdd(s.Host), Addr: netip.AddrPortFrom(a, s.NetperfPort), Passphrase: r.o.Passphrase,
		Socket: socket(s)}
}

// socket returns the settings of all sockets to a server.
func socket(s Server) host.Options { return host.Options{Source: s.Source, Interface: s.Interface} }

// leaving returns the server as what has a source and a device of its own goes to it; the zero Addr and "" are the server's.
func (s Server) leaving(source netip.Addr, device string) Server {
	if source.IsValid() {
		s.Source = source
	}
	s.Interface = cmp.Or(device, s.Interface)
	return s
}

// unreachable makes one error of what each address of a host said.
func unreachable(name string, addrs []netip.Addr, errs []error) error {
	var all []error
	for i, err := range errs {
		if err != nil {
			all = append(all, err)
		} else {
			all = append(all, fmt.Errorf("%v: no answer", addrs[i]))
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	texts := make([]string, len(all))
	for i, err := range all {
		texts[i] = err.Error()
	}
	return &unreachableError{fmt.Sprintf("none of the %d addresses of %s can be used: %s", len(all), quoteOdd(name),
		strings.Join(texts, "; ")), errors.Join(all...)}
}

type unreachableError struct {
	text string
	all  error
}

func (e *unreachableError) Error() string { return e.text }
func (e *unreachableError) Unwrap() error { return e.all }

// outcome is what race saw: the winner's information, and each address's error.
type outcome[T any] struct {
	info   T
	errors []error
}

// race tries the addresses in order, each stagger after the one before or as soon as that has failed, and returns the index of the first
// that succeeds, or -1. It ends the other tries and waits for them.
func race[T any](ctx context.Context, clock host.Clock, addrs []netip.Addr, try func(context.Context, netip.Addr) (T, error)) (int, outcome[T]) {
	type answer struct {
		i    int
		info T
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	var tries sync.WaitGroup
	defer tries.Wait()
	defer cancel()
	answers, next := make(chan answer, len(addrs)), make(chan struct{}, len(addrs))
	out := outcome[T]{errors: make([]error, len(addrs))}
	started, open := 0, 0
	begin := func() {
		if started == len(addrs) {
			return
		}
		i := started
		started++
		open++
		tries.Go(func() {
			info, err := try(ctx, addrs[i])
			answers <- answer{i, info, err}
		})
		timer := clock.AfterFunc(stagger, func() { next <- struct{}{} })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	for begin(); open > 0; {
		select {
		case a := <-answers:
			open--
			if a.err == nil {
				out.info = a.info
				return a.i, out
			}
			out.errors[a.i] = a.err
			begin()
		case <-next:
			begin()
		}
	}
	return -1, out
}

// alternate returns the addresses with the families in turn, beginning with the first address's, otherwise in their order (RFC 8305, section 4).
func alternate(addrs []netip.Addr) []netip.Addr {
	if len(addrs) == 0 {
		return nil
	}
	var lists [2][]netip.Addr
	first := host.FamilyOf(addrs[0])
	for _, a := range addrs {
		if host.FamilyOf(a) == first {
			lists[0] = append(lists[0], a)
		} else {
			lists[1] = append(lists[1], a)
		}
	}
	var out []netip.Addr
	for len(lists[0])+len(lists[1]) > 0 {
		for i := range lists {
			if len(lists[i]) > 0 {
				out, lists[i] = append(out, lists[i][0]), lists[i][1:]
			}
		}
	}
	return out
}
