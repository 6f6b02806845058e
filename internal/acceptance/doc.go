// Package acceptance holds the tests that run the program as a user does, through links of the kernel, and compare it with other tools.
package acceptance
