package iperf3

import "fmt"

// ErrorCode is iperf3's number of what went wrong, as the server sends it.
type ErrorCode int32

// The codes that our server sends.
const (
	BadDuration      ErrorCode = 5
	BadStreams       ErrorCode = 6
	BadBlockSize     ErrorCode = 7
	BadWindow        ErrorCode = 8
	BadMSS           ErrorCode = 10
	BadOmit          ErrorCode = 12
	BadBurst         ErrorCode = 15
	BadUDPBlockSize  ErrorCode = 20
	BadTOS           ErrorCode = 21
	RateLimit        ErrorCode = 27
	DurationLimit    ErrorCode = 37
	BadParams        ErrorCode = 114
	NoResults        ErrorCode = 117
	ClientEnded      ErrorCode = 119
	NotAuthorised    ErrorCode = 142
	NoData           ErrorCode = 144
	PastItsTime      ErrorCode = 160
	StreamNotCreated ErrorCode = 200
	StreamNotTaken   ErrorCode = 204
)

var codeTexts = map[ErrorCode]string{
	BadDuration: "the duration is out of its range, or longer than the server allows", BadStreams: "more streams than the server allows",
	BadBlockSize: "the block size is out of range", BadUDPBlockSize: "the datagram size is out of range",
	BadWindow: "the socket buffers asked for are too large", BadMSS: "the MSS is out of range", BadOmit: "the omitted time is out of range",
	BadBurst: "the burst is out of range", BadTOS: "the DS byte is out of range",
	RateLimit:     "the rate is above the server's limit, the server wants one to be named, or this address has moved as much as it may in an hour",
	DurationLimit: "the test is longer than the server allows",
	106:           "it received no cookie", 107: "it could not write to the control connection", 108: "it could not read from the control connection",
	109: "the control connection was closed", 110: "it does not know the message", 112: "it received no state",
	BadParams: "it does not take the parameters", 116: "it could not send its results", NoResults: "it did not receive our results",
	118: "waiting for sockets failed there", ClientEnded: "it says that the client ended the test", 120: "the server was interrupted",
	121: "the server is busy with another test", 123: "it cannot set the MSS", 124: "it cannot set the socket buffers",
	125: "it cannot set the DS byte", 126: "it cannot set the traffic class", 134: "it cannot set the congestion control",
	141: "its socket buffers came out smaller than asked", NotAuthorised: "name, password, key or clock are not what it takes",
	NoData: "no data came for too long", PastItsTime: "the test ran past its time", StreamNotCreated: "it could not create a stream",
	201: "it could not prepare a stream", 202: "it could not listen for streams", 203: "it could not connect a stream",
	StreamNotTaken: "it could not accept a stream", 205: "it could not write to a stream", 206: "it could not read from a stream",
	207: "a stream was closed", 208: "our results name a stream that it does not know",
}

// Error tells the number and, where it is known, what it means.
func (c ErrorCode) Error() string {
	if text, ok := codeTexts[c]; ok {
		return fmt.Sprintf("the iperf3 server refuses (error %d): %s", int32(c), text)
	}
	return fmt.Sprintf("the iperf3 server refuses (error %d)", int32(c))
}
