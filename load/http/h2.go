package http

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/internal/wire/http2"
)

// h2 is HTTP/2 on a link, with one stream at a time. What we permit the server to send is so much that TCP alone holds it back.
type h2 struct {
	l       *link
	r       *bufio.Reader
	encoder *hpack.Encoder
	block   bytes.Buffer // of encoder
	decoder *hpack.Decoder

	stream      uint32 // the present one
	frame       uint32 // bytes of payload that the server takes in a frame
	initial     int64  // window of a new stream
	connWindow  int64  // what we may still send
	window      int64  // the same of the stream
	early       *wire.Response
	over        bool   // the server has ended the stream
	closing     bool   // the server wants no further streams on this connection
	got         uint32 // received since the last credit
	gotStream   uint32 // the same of the stream
	left, stuff uint32 // content and padding that are left of a Data frame
	head        http2.Head
	out         []byte
}

// credit is how much is received before the server is permitted as much again.
const credit = 1 << 28

// newH2 begins HTTP/2 on a connection.
func newH2(l *link) (*h2, error) {
	c := &h2{l: l, r: bufio.NewReaderSize(l.stream, 32<<10), frame: http2.DefaultFrame, initial: http2.DefaultWindow, connWindow: http2.DefaultWindow}
	c.encoder = hpack.NewEncoder(&c.block)
	c.decoder = hpack.NewDecoder(4096, nil)
	c.decoder.SetMaxStringLength(wire.MaxLine)
	begin := http2.AppendSettings([]byte(http2.Preface), http2.Setting{ID: http2.EnablePush}, http2.Setting{ID: http2.InitialWindowSize, Value: http2.LargestWindow})
	begin = http2.AppendWindowUpdate(begin, 0, http2.LargestWindow-http2.DefaultWindow)
	_, err := l.stream.Write(begin)
	return c, err
}

// ask begins a stream with a request. A body follows where length is not 0.
func (c *h2) ask(method string, length int64) error {
	c.stream += 2
	if c.stream == 2 {
		c.stream = 1 // a client's streams have odd numbers
	}
	c.window, c.early, c.over, c.left, c.stuff, c.gotStream = c.initial, nil, false, 0, 0, 0
	c.block.Reset()
	u := c.l.place.url
	fields := []hpack.HeaderField{{Name: ":method", Value: method}, {Name: ":scheme", Value: u.Scheme}, {Name: ":authority", Value: u.Host},
		{Name: ":path", Value: c.l.place.target}, {Name: "user-agent", Value: c.l.agent()}, {Name: "accept", Value: "*/*"}, {Name: "accept-encoding", Value: "identity"}}
	if method == "POST" {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(length, 10)})
	}
	for _, f := range fields {
		if err := c.encoder.WriteField(f); err != nil {
			return err
		}
	}
	h := http2.Head{Length: uint32(c.block.Len()), Type: http2.Headers, Flags: http2.EndHeaders, Stream: c.stream}
	if length == 0 {
		h.Flags |= http2.EndStream
	}
	c.out = append(h.AppendTo(c.out[:0]), c.block.Bytes()...)
	_, err := c.l.stream.Write(c.out)
	return err
}

// answer reads frames until the head of the response.
func (c *h2) answer() (wire.Response, error) {
	for c.early == nil {
		if c.over {
			return wire.Response{}, fmt.Errorf("%w: a stream that ends without a response", ErrNotHTTP)
		}
		if err := c.next(); err != nil {
			return wire.Response{}, err
		}
		if c.left > 0 || c.stuff > 0 {
			return wire.Response{}, fmt.Errorf("%w: data before the response", ErrNotHTTP)
		}
	}
	return *c.early, nil
}

// next reads one frame and does what it asks for. Of a Data frame of the present stream the content is left to be read.
func (c *h2) next() error {
	h, err := http2.ReadHead(c.r, http2.DefaultFrame)
	if err != nil {
		return c.explain(err)
	}
	if h.Type == http2.Data {
		return c.data(h)
	}
	payload, err := h.ReadPayload(c.r)
	if err != nil {
		return err
	}
	switch h.Type {
	case http2.Headers:
		err = c.headers(h, payload)
	case http2.SettingsType:
		err = c.settings(h, payload)
	case http2.Ping:
		if h.Flags&http2.Ack == 0 && len(payload) == 8 {
			c.out = append(http2.Head{Length: 8, Type: http2.Ping, Flags: http2.Ack}.AppendTo(c.out[:0]), payload...)
			_, err = c.l.stream.Write(c.out)
		}
	case http2.WindowUpdate:
		err = c.widen(h, payload)
	case http2.Reset:
		err = c.reset(h, payload)
	case http2.GoAway:
		var last uint32
		var code http2.ErrorCode
		c.closing = true
		if last, code, err = http2.ParseGoAway(payload); err == nil && (code != 0 || last < c.stream) {
			err = fmt.Errorf("the server ends the connection: %v", code)
		}
	case http2.PushPromise, http2.Continuation:
		err = fmt.Errorf("%w: a frame of type %d where none may be", ErrNotHTTP, h.Type)
	}
	return c.explain(err)
}

// explain gives what is no HTTP/2 its name.
func (c *h2) explain(err error) error {
	var format *http2.FormatError
	if errors.As(err, &format) {
		return fmt.Errorf("%w: %w", ErrNotHTTP, err)
	}
	return err
}

func (c *h2) data(h http2.Head) error {
	content, padding, err := h.Unpad(c.r)
	if err != nil {
		return c.explain(err)
	}
	if err := c.took(h.Length, h.Stream); err != nil {
		return err
	}
	if h.Stream != c.stream {
		_, err := c.r.Discard(int(content + padding))
		return err
	}
	c.head, c.left, c.stuff = h, content, padding
	return nil
}

// took notes that a frame's bytes are received, and permits the server as many again now and then.
func (c *h2) took(bytes, stream uint32) error {
	c.got += bytes
	if stream == c.stream {
		c.gotStream += bytes
	}
	if c.got < credit {
		return nil
	}
	c.out = http2.AppendWindowUpdate(c.out[:0], 0, c.got)
	if c.gotStream > 0 {
		c.out = http2.AppendWindowUpdate(c.out, c.stream, c.gotStream)
	}
	c.got, c.gotStream = 0, 0
	_, err := c.l.stream.Write(c.out)
	return err
}

// headers reads a header block, with the frames that go on with it.
func (c *h2) headers(h http2.Head, payload []byte) error {
	block, err := h.Fragment(payload)
	if err != nil {
		return err
	}
	for end := h.Flags&http2.EndHeaders != 0; !end; {
		more, err := http2.ReadHead(c.r, http2.DefaultFrame)
		if err != nil {
			return err
		}
		if more.Type != http2.Continuation || more.Stream != h.Stream || len(block)+int(more.Length) > http2.MaxHeaders {
			return fmt.Errorf("%w: headers that do not go on, or without end", ErrNotHTTP)
		}
		rest, err := more.ReadPayload(c.r)
		if err != nil {
			return err
		}
		block, end = append(block, rest...), more.Flags&http2.EndHeaders != 0
	}
	fields, err := c.decoder.DecodeFull(block) // also of other streams: the decoder has a state
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotHTTP, err)
	}
	if h.Stream != c.stream {
		return nil
	}
	c.over = h.Flags&http2.EndStream != 0
	if c.early != nil {
		return nil // trailers
	}
	return c.response(fields)
}

// response makes a response of its fields. Interim ones are passed over.
func (c *h2) response(fields []hpack.HeaderField) error {
	p := wire.Response{Length: -1, Reason: "(HTTP/2)"}
	for _, f := range fields {
		switch f.Name {
		case ":status":
			n, err := strconv.ParseUint(f.Value, 10, 16)
			if err != nil || n < 100 || n > 599 {
				return fmt.Errorf("%w: status %.20q", ErrNotHTTP, f.Value)
			}
			p.Status = int(n)
		case "location":
			p.Location = f.Value
		}
	}
	if p.Status == 0 {
		return fmt.Errorf("%w: a response without a status", ErrNotHTTP)
	}
	if p.Status >= 200 {
		c.early = &p
	}
	return nil
}

func (c *h2) settings(h http2.Head, payload []byte) error {
	if h.Flags&http2.Ack != 0 {
		return nil
	}
	list, err := http2.ParseSettings(payload)
	if err != nil {
		return err
	}
	for _, s := range list {
		switch s.ID {
		case http2.InitialWindowSize:
			c.window += int64(s.Value) - c.initial
			c.initial = int64(s.Value)
		case http2.MaxFrameSize:
			c.frame = s.Value
		case http2.HeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(s.Value)
		}
	}
	c.out = http2.Head{Type: http2.SettingsType, Flags: http2.Ack}.AppendTo(c.out[:0])
	_, err = c.l.stream.Write(c.out)
	return err
}

func (c *h2) widen(h http2.Head, payload []byte) error {
	n, err := http2.Number(payload)
	if err != nil {
		return err
	}
	window := &c.connWindow
	switch h.Stream {
	case 0:
	case c.stream:
		window = &c.window
	default:
		return nil
	}
	if *window += int64(n & http2.LargestWindow); *window > http2.LargestWindow {
		return fmt.Errorf("%w: a window of %d bytes", ErrNotHTTP, *window)
	}
	return nil
}

func (c *h2) reset(h http2.Head, payload []byte) error {
	code, err := http2.Number(payload)
	if err != nil || h.Stream != c.stream {
		return err
	}
	if c.early != nil && code == 0 { // the answer is there, and the rest of the body is not wanted
		c.over = true
		return nil
	}
	return fmt.Errorf("the server broke off: %v", http2.ErrorCode(code))
}

// Read reads the content of the present response; io.EOF is its end.
func (c *h2) Read(p []byte) (int, error) {
	for c.left == 0 {
		if c.stuff > 0 {
			if _, err := c.r.Discard(int(c.stuff)); err != nil {
				return 0, brokenOff(err)
			}
			c.stuff = 0
		}
		if c.head.Type == http2.Data && c.head.Stream == c.stream && c.head.Flags&http2.EndStream != 0 {
			c.over = true
		}
		if c.over {
			return 0, io.EOF
		}
		if err := c.next(); err != nil {
			return 0, brokenOff(err)
		}
	}
	n, err := c.r.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	return n, brokenOff(err)
}

// brokenOff is err, where the end of the connection is not that of the object.
func brokenOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// send sends a body of so many bytes in whole TLS records, until the flow's time is up. It reads what the server says where its windows are used up, and stops
// where the answer comes before the end.
func (c *h2) send(ctx context.Context, r *running, o pump.Options) (out pump.Outcome, err error) {
	frame := append(make([]byte, http2.HeadSize), payload()[:tlsRecord-http2.HeadSize]...)
	begin := r.host.Now()
	for out.Bytes < o.Limit {
		if err := r.pace(ctx, o, begin, out.Bytes); err != nil {
			return r.stopped(ctx, out, o.Until, err)
		}
		if err := c.room(r, o); err != nil {
			return r.stopped(ctx, out, o.Until, err)
		}
		if c.early != nil || c.over {
			out.End = pump.Broken
			return out, errEarly
		}
		n := min(uint64(len(frame)-http2.HeadSize), o.Limit-out.Bytes, uint64(min(c.window, c.connWindow)), uint64(c.frame))
		h := http2.Head{Length: uint32(n), Type: http2.Data, Stream: c.stream}
		if out.Bytes+n == o.Limit {
			h.Flags = http2.EndStream
		}
		h.AppendTo(frame[:0])
		if _, err := c.l.stream.Write(frame[:http2.HeadSize+n]); err != nil || ctx.Err() != nil || !r.host.Now().Before(o.Until) {
			return r.stopped(ctx, out, o.Until, err)
		}
		c.window, c.connWindow = c.window-int64(n), c.connWindow-int64(n)
		out.Bytes += n
		r.records.Add(n)
	}
	out.End = pump.Full
	return out, nil
}

var errEarly = errors.New("the server answers before the end of the body")

// room reads frames until there is room in both windows. What TLS holds back has to go out before, because the server makes room as it gets it.
func (c *h2) room(r *running, o pump.Options) error {
	if c.window > 0 && c.connWindow > 0 {
		return nil
	}
	if err := c.l.secure.inner.cork(0); err != nil {
		return err
	}
	began := r.host.Now()
	for c.window <= 0 || c.connWindow <= 0 {
		if err := c.next(); err != nil {
			return err
		}
		if c.early != nil || c.over {
			break
		}
	}
	r.starved += r.host.Now().Sub(began)
	return c.l.secure.inner.cork(corked(o))
}
