package bounds

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/memnet"
)

func TestTheLogIsRateLimitedAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		l := NewLog(&memnet.Net{}, func(line string) { lines = append(lines, line) })
		for range 1000 {
			l.Printf("x")
		}
		if len(lines) != 64 {
			t.Errorf("%d lines of a burst of 1000, want 64", len(lines))
		}
		time.Sleep(10 * time.Second)
		l.Printf("y")
		if got, want := lines[len(lines)-1], "y (936 lines left out before this one)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		NewLog(&memnet.Net{}, nil).Printf("nobody listens")
	})
}

func TestUseIsCountedPerAddressAndPerNetworkOfAnIPv6Host(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false}, {"fe80::1%eth0", "fe80::2%eth1", true},
	} {
		if got := AccountOf(netip.MustParseAddr(c.a)) == AccountOf(netip.MustParseAddr(c.b)); got != c.same {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
}

func TestAddressesAreForgottenInTime(t *testing.T) {
	c := NewAccounts(&memnet.Net{}, Limits{Tests: 1, TestsPerAddress: 1, TestsPerHour: 1000})
	for i := range 10 * manyAccounts {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if no := c.TakeTest(a); no != nil {
			t.Fatal(no)
		}
		c.GiveTest(a, 1)
	}
	if n := len(c.by); n > manyAccounts {
		t.Errorf("%d addresses are kept, want at most %d", n, manyAccounts)
	}
}

func TestWhatIsGivenBackAndNotLimitedByTheHourIsForgotten(t *testing.T) {
	c, a := NewAccounts(&memnet.Net{}, Limits{Tests: 1, TestsPerAddress: 1}), netip.MustParseAddr("192.0.2.1")
	c.TakeConnection(a)
	if no := c.TakeTest(a); no != nil {
		t.Fatal(no)
	}
	if no := c.TakeTest(a); no == nil || no.Hourly {
		t.Errorf("a second test where one may run: %v", no)
	}
	if all, n := c.InUse(); all != (Use{1, 1}) || n != 1 {
		t.Errorf("in use: %+v, %d accounts", all, n)
	}
	c.GiveTest(a, 1e9)
	c.GiveConnection(a)
	if all, n := c.InUse(); all != (Use{}) || n != 0 || len(c.by) != 0 {
		t.Errorf("in use after the end: %+v, %d accounts, %v", all, n, c.by)
	}
}

func TestAnHourLimitsTestsAndBytesOfAnAddressAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		for name, l := range map[string]Limits{"tests": {TestsPerHour: 1}, "bytes": {BytesPerHour: 100}} {
			l.Tests, l.TestsPerAddress = 9, 9
			c := NewAccounts(&memnet.Net{}, l)
			if no := c.TakeTest(one); no != nil {
				t.Fatal(no)
			}
			c.GiveTest(one, 100)
			if no := c.TakeTest(one); no == nil || !no.Hourly {
				t.Errorf("%s: beyond the limit: %v", name, no)
			}
			if no := c.TakeTest(other); no != nil {
				t.Errorf("%s: another address: %v", name, no)
			}
			time.Sleep(QuotaTime)
			if no := c.TakeTest(one); no != nil {
				t.Errorf("%s: an hour later: %v", name, no)
			}
		}
	})
}

func TestGuessesLockAnAddressForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := NewAccounts(&memnet.Net{}, Limits{}), netip.MustParseAddr("192.0.2.1")
		for range MaxFailures {
			if c.Locked(a) {
				t.Error("locked too early")
			}
			c.Failed(a)
		}
		if !c.Locked(a) || c.Locked(netip.MustParseAddr("192.0.2.2")) {
			t.Error("not locked, or another is")
		}
		time.Sleep(GuessTime)
		if c.Locked(a) {
			t.Error("still locked after a minute")
		}
	})
}
