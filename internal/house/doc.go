// Package house holds the tests that keep the architecture: which package may know which, and what a room may not do.
package house
