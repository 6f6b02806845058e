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

// lossy is the kernel, on whose connections each has been sent again two segments.
type lossy struct{ *host.Kernel }

func (l lossy) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	info, err := l.Kernel.TCPInfo(c)
	info.Retransmits, info.HasRetransmits = 2, true
	return info, err
}

func TestRetransmissionsAreThoseOfAllConnections(t *testing.T) {
	t.Parallel()
	at := answering(t, func(w io.Writer, q wire.Request, body io.Reader) bool {
		_, _ = io.Copy(io.Discard, body)
		p := wire.Response{Status: 200, Reason: "OK", Close: q.Length > 0}
		_, err := w.Write(p.AppendTo(nil, ""))
		return err == nil && !p.Close
	})
	f := (&Client{Host: lossy{host.NewKernel()}, URL: mustURL("http://" + at)}).NewFlow(FlowOptions{Direction: load.Upload, Bytes: 3000, Body: 1000, Length: 10 * time.Second})
	r, err := f.Run(t.Context())
	if err != nil || r.Retransmits != 3*2 || !r.HasRetransmits {
		t.Errorf("%d segments were sent again on three connections, known %v, %v; want 6", r.Retransmits, r.HasRetransmits, err)
	}
}
