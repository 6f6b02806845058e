//go:build race

package lab

// raceDetector makes computation about eight times slower, and a long run prove no more.
const raceDetector = true
