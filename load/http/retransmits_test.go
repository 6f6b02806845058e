package http

import (
	"io"
	"net"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/load"
)

// lossy is the kernel, on each of whose connections two segments were sent again, and so on.
type lossy struct{ *host.Kernel }

func (l lossy) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	info, err := l.Kernel.TCPInfo(c)
	info.Retransmits, info.HasRetransmits = 2, true
	info.DeliveredCE, info.HasDeliveredCE = 3, true
	info.Busy, info.ReceiveWindowLimited, info.SendBufferLimited, info.HasBusy = 5*time.Second, time.Second, 2*time.Second, true
	return info, err
}

func TestWhatTheStackCountsIsThatOfAllConnections(t *testing.T) {
	t.Parallel()
	var f *Flow
	var seen []host.TCPInfo // while each body is under way
	at := answering(t, func(w io.Writer, q wire.Request, body io.Reader) bool {
		_, _ = io.Copy(io.Discard, body)
		if q.Length > 0 {
			info, _ := f.TCPInfo()
			seen = append(seen, info)
		}
		p := wire.Response{Status: 200, Reason: "OK", Close: q.Length > 0}
		_, err := w.Write(p.AppendTo(nil, ""))
		return err == nil && !p.Close
	})
	f = (&Client{Host: lossy{host.NewKernel()}, URL: mustURL("http://" + at)}).NewFlow(FlowOptions{Direction: load.Upload, Bytes: 3000, Body: 1000, Length: 10 * time.Second})
	r, err := f.Run(t.Context())
	if err != nil || r.Retransmits != 3*2 || !r.HasRetransmits || r.CongestionControl == "" {
		t.Errorf("%d segments were sent again on three connections, known %v, by %q, %v; want 6", r.Retransmits, r.HasRetransmits, r.CongestionControl, err)
	}
	if len(seen) != 3 {
		t.Fatalf("%d bodies came", len(seen))
	}
	for i, info := range seen {
		n := uint64(i + 1)
		if info.Retransmits != 2*n || info.DeliveredCE != 3*n || info.Busy != time.Duration(n)*5*time.Second || info.ReceiveWindowLimited != time.Duration(n)*time.Second ||
			info.SendBufferLimited != time.Duration(n)*2*time.Second {
			t.Errorf("on connection %d the counts are %+v", n, info)
		}
	}
}
