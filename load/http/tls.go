package http

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"sync"
	"time"

	"bufferbloat/internal/pump"
)

// versionAndCipher names what a handshake agreed on.
func versionAndCipher(s *secure) (version, cipher string) {
	return tls.VersionName(s.state.Version), tls.CipherSuiteName(s.state.CipherSuite)
}

// tlsRecord is the payload of a TLS record.
const tlsRecord = 16 << 10

// together is how much of TLS is written at once.
const together = 4 * tlsRecord

// payload is the content of a record: random, so that a compressing link gains nothing by it.
var payload = sync.OnceValue(func() []byte {
	b := make([]byte, tlsRecord)
	_, _ = rand.NewChaCha8([32]byte{'b', 'l', 'o', 'a', 't'}).Read(b)
	return b
})

// sendRecords sends whole records over TLS until the flow's time is up, or o.Limit bytes. The pump's small writes, which let a slow flow's counter move often, would
// each be a record with its 22 bytes here; and what is acknowledged in the middle of a record is known without them.
func (r *running) sendRecords(ctx context.Context, o pump.Options) (out pump.Outcome, err error) {
	defer r.link.wakeBy(ctx, o.Until)()
	// Several records go to the stack at once: it sends full segments then, and there are fewer calls.
	_ = r.link.secure.inner.cork(corked(o))
	defer func() {
		if flushErr := r.link.secure.inner.cork(0); out.End == pump.Full && flushErr != nil {
			out.End, err = pump.Broken, flushErr
		}
	}()
	if r.link.two != nil {
		return r.link.two.send(ctx, r, o)
	}
	begin := r.host.Now()
	for out.Bytes < o.Limit {
		if err := r.pace(ctx, o, begin, out.Bytes); err != nil {
			return r.stopped(ctx, out, o.Until, err)
		}
		n, err := r.link.stream.Write(payload()[:min(tlsRecord, o.Limit-out.Bytes)])
		if n > 0 {
			out.Bytes += uint64(n)
			r.records.Add(uint64(n))
		}
		if err != nil || ctx.Err() != nil || !r.host.Now().Before(o.Until) {
			return r.stopped(ctx, out, o.Until, err)
		}
	}
	out.End = pump.Full
	return out, nil
}

// corked is how much is kept for one write: nothing where there is a rate to keep to.
func corked(o pump.Options) int {
	if o.Rate > 0 {
		return 0
	}
	return together
}

// pace waits until as much may be sent as was, at the rate of o, or until the flow's time is up.
func (r *running) pace(ctx context.Context, o pump.Options, begin time.Time, sent uint64) error {
	if o.Rate == 0 {
		return nil
	}
	next := begin.Add(time.Duration(float64(sent) * 8 / float64(o.Rate) * float64(time.Second)))
	if next.After(o.Until) {
		next = o.Until
	}
	return r.host.SleepUntil(ctx, next)
}

// stopped says why the sending of records ended before its limit.
func (r *running) stopped(ctx context.Context, out pump.Outcome, until time.Time, err error) (pump.Outcome, error) {
	switch {
	case ctx.Err() != nil:
		out.End = pump.Stopped
		return out, context.Cause(ctx)
	case err == nil, pump.IsDeadline(err), !r.host.Now().Before(until):
		out.End = pump.TimeUp
		return out, nil
	}
	out.End = pump.Broken
	return out, err
}
