package queue

import (
	"time"

	"bufferbloat/internal/bitrate"
)

// bucket is a token bucket in exact arithmetic: tokens are bits times 1e9, so that a nanosecond adds as many as the rate has bits per
// second. What it lets pass in any time is at most its burst and the rate times that time.
type bucket struct {
	rate   int64
	most   int64
	tokens int64
	at     time.Duration // when tokens was true
}

// token is the tokens of one byte.
const token = 8 * int64(time.Second)

func newBucket(rate bitrate.Bitrate, burst int) bucket {
	return bucket{rate: int64(rate), most: int64(burst) * token, tokens: int64(burst) * token}
}

// advance adds what has come in until now.
func (b *bucket) advance(now time.Duration) {
	elapsed := int64(now - b.at)
	b.at = now
	if elapsed >= (b.most-b.tokens)/b.rate+1 { // also where the product below would be too large
		b.tokens = b.most
		return
	}
	b.tokens += elapsed * b.rate
}

// has reports whether the bucket holds the tokens of n bytes.
func (b *bucket) has(n int) bool { return b.tokens >= int64(n)*token }

// take removes the tokens of n bytes, which may leave a debt.
func (b *bucket) take(n int) { b.tokens -= int64(n) * token }

// when returns when the bucket will hold the tokens of n bytes.
func (b *bucket) when(n int) time.Duration {
	lacks := int64(n)*token - b.tokens
	if lacks <= 0 {
		return b.at
	}
	return b.at + time.Duration((lacks+b.rate-1)/b.rate)
}

// maxBurst is the largest bucket, in bytes.
const maxBurst = 64 << 20
