package netperf

import "encoding/binary"

// Layout tells the two forms of the results apart, which nothing in the record itself does. They agree in the first eleven
// words and in the first CPU figure.
type Layout uint8

// The layouts. With the zero Layout only what both have in common is read.
const (
	UnknownLayout Layout = iota
	Layout22             // 2.6.0: 22 words before the strings
	Layout27             // 2.7.0 and 2.7.1: 27 words
)

// Results is the server's last message of a test. The fields from CPUMethod on are read and written only with a known Layout.
type Results struct {
	Error          ErrorNumber
	RxBytes        uint64 // received by the server on the data connection
	RxCalls        uint32
	RecvBuffer     int32
	TxBytes        uint64 // sent by the server, that is, handed to its stack
	TxCalls        uint32
	SendBuffer     int32
	Transactions   uint32
	ElapsedSeconds float32 // that the server ran
	CPUPercent     float32 // of all its CPUs; only where the response had FlagCPU, otherwise it is what was there before
	CPUMethod      uint32
	CPUs           uint32  // only where the response had FlagCPU
	BusiestCPU     int32   // its number; this and the next only where the response had FlagCPU
	BusiestPercent float32 // how busy that one was
	Retransmits    int32   // segments that the server sent again, -1 unknown
	Congestion     string  // of the server's data socket, TCP only
}

// places are the words and the offset where a layout has the fields that moved.
type places struct{ cpuMethod, cpus, busiest, retransmits, congestion int }

func (l Layout) places() (places, bool) {
	switch l {
	case Layout22:
		return places{cpuMethod: 13, cpus: 14, busiest: 15, retransmits: 21, congestion: 256}, true
	case Layout27:
		return places{cpuMethod: 18, cpus: 19, busiest: 20, retransmits: 26, congestion: 276}, true
	}
	return places{}, false
}

// ParseResults reads results from the first Size bytes of b, whatever their type.
func ParseResults(b []byte, l Layout) (Results, error) {
	r, err := newReader("results", b)
	if err != nil {
		return Results{}, err
	}
	p := Results{
		Error:   ErrorNumber(binary.BigEndian.Uint32(r.b[4:])),
		RxBytes: r.u64(0), RxCalls: r.u32(2), RecvBuffer: r.i32(3), TxBytes: r.u64(4), TxCalls: r.u32(6), SendBuffer: r.i32(7),
		Transactions: r.u32(9), ElapsedSeconds: r.f32(10), CPUPercent: r.f32(11), Retransmits: -1,
	}
	if at, known := l.places(); known {
		p.CPUMethod, p.CPUs, p.Retransmits = r.u32(at.cpuMethod), r.u32(at.cpus), r.i32(at.retransmits)
		p.BusiestCPU, p.BusiestPercent = r.i32(at.busiest), r.f32(at.busiest+1)
		p.Congestion = r.text(at.congestion, 16)
	}
	return p, nil
}

// AppendTo appends the record to b.
func (p Results) AppendTo(b []byte, l Layout) []byte {
	w := newWriter(b, TypeOmniResponse, int32(p.Error))
	w.u64(0, p.RxBytes)
	w.u32(2, p.RxCalls)
	w.i32(3, p.RecvBuffer)
	w.u64(4, p.TxBytes)
	w.u32(6, p.TxCalls)
	w.i32(7, p.SendBuffer)
	w.u32(9, p.Transactions)
	w.f32(10, p.ElapsedSeconds)
	w.f32(11, p.CPUPercent)
	if at, known := l.places(); known {
		w.u32(at.cpuMethod, p.CPUMethod)
		w.u32(at.cpus, p.CPUs)
		w.i32(at.busiest, p.BusiestCPU)
		w.f32(at.busiest+1, p.BusiestPercent)
		w.i32(at.retransmits, p.Retransmits)
		w.text(at.congestion, 16, p.Congestion)
	}
	return w.b
}
