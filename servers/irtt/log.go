package irtt

import (
	"fmt"
	"time"
)

// logger bounds how much is logged, whatever is sent to the server.
type logger struct {
	log    func(string)
	bucket bucket
	left   uint64 // lines left out since the last one
}

const (
	linesPerSecond = 10
	linesAtOnce    = 20
)

func newLogger(log func(string)) logger { return logger{log: log, bucket: newBucket(linesAtOnce)} }

// allow reports whether a line may be printed at now. It is asked before the line is made, which costs more than the answer.
func (l *logger) allow(now time.Time) bool {
	if l.log == nil {
		return false
	}
	if !l.bucket.take(now, time.Second/linesPerSecond) {
		l.left++
		return false
	}
	return true
}

func (l *logger) print(line string) {
	if l.left > 0 {
		line += fmt.Sprintf(" (%d lines before it left out)", l.left)
		l.left = 0
	}
	l.log(line)
}
