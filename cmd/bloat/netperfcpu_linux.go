package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// runOn has all threads of this program run on one CPU; those that are still to begin inherit it.
func runOn(cpu int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil {
			return fmt.Errorf("run on CPU %d: %w", cpu, err)
		}
	}
	return nil
}
