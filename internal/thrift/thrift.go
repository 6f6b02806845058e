// Package thrift keeps a program small in memory.
package thrift

import "runtime/debug"

// Begin has the garbage collector run at half as much garbage as it would by itself, unless gogc, the environment's GOGC, says otherwise: the program
// makes little of it, and routers have little room. Who sets GOGC knows better.
func Begin(gogc string) {
	if gogc == "" {
		debug.SetGCPercent(50)
	}
}

// ForgetCode unmaps the pages of the program's own code and constants, which come back one by one as they are used. It is worth calling when a long part of the
// program begins that uses little of what was used until then, in a large program: of bloat, 6 MiB less are resident at the peak, and none of that was its own
// memory. It does nothing where the system has no such call.
func ForgetCode() { forgetCode() }
