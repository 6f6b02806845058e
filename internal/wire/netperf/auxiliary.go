package netperf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// MaxPassphrase is the longest passphrase, in bytes: the record's data less a NUL.
const MaxPassphrase = Size - header - 1

// AppendPassphrase appends a passphrase record, to which a server sends no answer. It refuses a phrase that the record would
// cut: one that is too long or has a NUL in it.
func AppendPassphrase(b []byte, phrase string) ([]byte, error) {
	if len(phrase) > MaxPassphrase {
		return b, fmt.Errorf("passphrase of %d bytes: the protocol carries at most %d", len(phrase), MaxPassphrase)
	}
	if strings.IndexByte(phrase, 0) >= 0 {
		return b, fmt.Errorf("passphrase with a NUL byte: the protocol carries none")
	}
	w := newWriter(b, TypePassphrase, -1)
	w.text(header, Size-header, phrase)
	return w.b, nil
}

// ParsePassphrase returns the phrase of a passphrase record.
func ParsePassphrase(b []byte) (string, error) {
	const record = "passphrase"
	r, err := newReader(record, b)
	if err != nil {
		return "", err
	}
	if t := Type(binary.BigEndian.Uint32(r.b)); t != TypePassphrase {
		return "", &ParseError{Record: record, Offset: 0, Reason: fmt.Sprintf("type %d is not %d", t, TypePassphrase)}
	}
	return r.text(header, Size-header), nil
}

// SysInfo is the answer to a request of type 600: four fields that describe the server's system.
type SysInfo struct {
	System, Release, Machine, Version string
}

// Deprecated is what netserver 2.7 puts into all four fields of a SysInfo.
const Deprecated = "Deprecated"

// ParseSysInfo reads an answer of type 601 without an error. The first byte of its text is the delimiter of the four fields;
// the last field takes the rest.
func ParseSysInfo(b []byte) (SysInfo, error) {
	const record = "system information"
	r, err := newReader(record, b)
	if err != nil {
		return SysInfo{}, err
	}
	if t := Type(binary.BigEndian.Uint32(r.b)); t != TypeSysInfoReply {
		return SysInfo{}, &ParseError{Record: record, Offset: 0, Reason: fmt.Sprintf("type %d is not %d", t, TypeSysInfoReply)}
	}
	text := r.text(header, Size-header)
	if text == "" {
		return SysInfo{}, &ParseError{Record: record, Offset: header, Reason: "no text"}
	}
	fields := strings.SplitN(text[1:], text[:1], 4)
	if len(fields) != 4 {
		reason := fmt.Sprintf("%d fields, not 4", len(fields))
		return SysInfo{}, &ParseError{Record: record, Offset: header, Reason: reason}
	}
	return SysInfo{System: fields[0], Release: fields[1], Machine: fields[2], Version: fields[3]}, nil
}

// AppendTo appends the answer to b, delimited by the first of netperf's four delimiters that no field contains. Without one a
// comma in a field is replaced by a space. What does not fit is cut.
func (s SysInfo) AppendTo(b []byte) []byte {
	all := s.System + s.Release + s.Machine + s.Version
	const delimiters = ",|_;"
	delimiter := byte(',')
	if i := strings.IndexFunc(delimiters, func(d rune) bool { return !strings.ContainsRune(all, d) }); i >= 0 {
		delimiter = delimiters[i]
	}
	var text bytes.Buffer
	for _, field := range []string{s.System, s.Release, s.Machine, s.Version} {
		text.WriteByte(delimiter)
		text.WriteString(strings.ReplaceAll(field, string(delimiter), " "))
	}
	w := newWriter(b, TypeSysInfoReply, 0)
	w.text(header, Size-header, text.String())
	return w.b
}

// CPUCalibration is the answer to a request of type 5.
type CPUCalibration struct {
	Rate float32 // 100 on Linux, which needs no calibration
	CPUs int32
}

// ParseCPUCalibration reads an answer without an error.
func ParseCPUCalibration(b []byte) (CPUCalibration, error) {
	r, err := newReader("CPU calibration", b)
	if err != nil {
		return CPUCalibration{}, err
	}
	return CPUCalibration{Rate: r.f32(0), CPUs: r.i32(1)}, nil
}

// AppendTo appends the answer to b.
func (c CPUCalibration) AppendTo(b []byte) []byte {
	w := newWriter(b, TypeCPUCalibrate, 0)
	w.f32(0, c.Rate)
	w.i32(1, c.CPUs)
	return w.b
}

// OurName is the System of a SysInfo that our own server sends; its Release is the program's version.
const OurName = "bufferbloat"
