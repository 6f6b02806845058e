//go:build !linux

package nonce

import "crypto/rand"

func fill(b []byte) { rand.Read(b) } // never fails, crypto/rand says
