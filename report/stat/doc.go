// Package stat computes the statistics that the project reports, from plain delays and without knowing where they came from.
//
// Every quantile of every column follows one rule, Rule: linear interpolation between order statistics, Hyndman and Fan's type 7
// (The American Statistician 50, 1996). Nothing here reads a clock or a global source of randomness; equal arguments give equal results.
//
// # What comes from github.com/montanaflynn/stats
//
// Percentile, Mean and StandardDeviationPopulation of v0.14.0 give the right values for what this package asks of them, as
// TestLibraryAgreesWithExactValues shows against values computed with exact fractions. The following are not right, follow another
// rule or do not say what they do; TestLibraryDiffersWhereTheDocSaysSo keeps the values true. This package calls none of them so.
//
//   - Percentile(x, 0) is an error; type 7 defines it: the minimum, which Quantile returns.
//   - Quartile, and with it InterQuartileRange, Midhinge, Trimean and QuartileOutliers: the quartiles of 1, 2, 3, 4, 5 are 1.5, 3, 4.5 (medians
//     of the halves without the middle); type 7 has 2, 3, 4. Quartile of a single value is an error.
//   - PercentileNearestRank computes its rank in floating point: 64.4% of 250 values is rank 161 (exactly 161.0), and it takes 162.
//   - PercentileWeighted is the inverse of the empirical distribution: for 1, 2, 3, 4 with equal weights its 50% is 2, the median 2.5.
//   - Mean adds naively: the mean of ten times 0.1 is below the smallest of them (0.09999999999999999), and of 1e16, 1, 1, 1, 1 it is
//     2e15, without the 0.8 that the ones add to 2000000000000000.8 (nearest float 2000000000000000.75). Delays are whole nanoseconds, and this
//     package hands it their distances from the smallest, whose sum is exact up to 2^53 ns (104 days of delay in sum).
//   - TrimmedMean counts what it trims in floating point: 0.29 of 100 values is 28 of them, not 29.
//   - Sample and StableSample seed a global generator from the clock; a bootstrap on them could not be repeated.
//   - Describe leaves out a percentile that Percentile refuses (0), without an error.
//   - Variance and StandardDeviation are the population's (divisor n), which their names do not say.
//   - AutoCorrelation is right, and costs four passes and a copy for each lag; EffectiveSize has its own loop, and a test compares the two.
package stat
