package netperf

import "strconv"

// ErrorNumber is the second word of an answer: 0, one of netserver's own numbers, or an errno of the server's platform.
type ErrorNumber int32

// The numbers that we send or tell apart; errno values are Linux's, which is what servers run on.
const (
	NotPermitted  ErrorNumber = 1  // EPERM: against this server's rules
	Busy          ErrorNumber = 16 // EBUSY
	BadValue      ErrorNumber = 22 // EINVAL
	NoProtocol    ErrorNumber = 93 // EPROTONOSUPPORT
	NoFamily      ErrorNumber = 97 // EAFNOSUPPORT
	NoAddress     ErrorNumber = 99 // EADDRNOTAVAIL
	BadPassphrase ErrorNumber = 403
	UnknownTest   ErrorNumber = 998
)

var errorTexts = map[ErrorNumber]string{
	NotPermitted: "operation not permitted", 13: "permission denied", 12: "out of memory", Busy: "busy",
	BadValue: "invalid argument", 23: "too many open files in the system", 24: "too many open files", 32: "broken pipe",
	NoProtocol: "protocol not supported", 95: "operation not supported", NoFamily: "address family not supported",
	98: "address already in use", NoAddress: "cannot assign requested address", 104: "connection reset by peer", 105: "no buffer space",
	110: "connection timed out", 111: "connection refused", 113: "no route to host",
	BadPassphrase: "passphrase missing or wrong", 992: "sending a response failed", UnknownTest: "test not supported by the server",
}

// String returns the number with what it means, errno values by Linux's numbering.
func (e ErrorNumber) String() string {
	n := strconv.Itoa(int(e))
	if text, known := errorTexts[e]; known {
		return text + " (" + n + ")"
	}
	return "error " + n
}
