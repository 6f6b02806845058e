package main

import (
	"os"
	"runtime/debug"
)

// beThrifty has the garbage collector run at half as much garbage as it would by itself: the program makes little of it, and routers have little
// room. Who sets GOGC knows better.
func beThrifty() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}
