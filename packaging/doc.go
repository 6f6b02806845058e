// Package packaging holds what makes packages of the programs, and the tests of it.
package packaging
