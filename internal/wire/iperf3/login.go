package iperf3

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" // the protocol's, inside OAEP, where its collisions do not matter
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Padding is the form of a token's encryption. A server takes one of them and does not say which.
type Padding uint8

// The paddings.
const (
	OAEP  Padding = iota // from 3.17 on
	PKCS1                // up to 3.16
)

func (p Padding) String() string { return [...]string{"OAEP", "PKCS#1"}[p] }

// Login is what a token tells.
type Login struct {
	User, Password string
	At             time.Time // by the client's wall clock, whole seconds
}

const (
	userLine = "user: "
	pwdLine  = "pwd:  "
	tsLine   = "ts:   "
)

// text is the token's content before encryption.
func (l Login) text() []byte {
	return []byte(userLine + l.User + "\n" + pwdLine + l.Password + "\n" + tsLine + strconv.FormatInt(l.At.Unix(), 10))
}

// Token encrypts a login for the owner of key. A name or password with a line break, or longer than the key can carry, is an error.
func (l Login) Token(key *rsa.PublicKey, p Padding) (string, error) {
	if l.User == "" || strings.ContainsAny(l.User+l.Password, "\r\n\x00") {
		return "", errors.New("iperf3 login: want a name, and no line break in name or password")
	}
	var b []byte
	var err error
	if p == PKCS1 {
		b, err = rsa.EncryptPKCS1v15(rand.Reader, key, l.text())
	} else {
		b, err = rsa.EncryptOAEP(sha1.New(), rand.Reader, key, l.text(), nil)
	}
	if err != nil {
		return "", fmt.Errorf("iperf3 login: encrypt with a key of %d bits: %w", 8*key.Size(), err)
	}
	return base64.StdEncoding.EncodeToString(b), nil
}

// ErrToken is why a token tells nothing: it does not say more, so that nobody can learn about the key by trying.
var ErrToken = errors.New("iperf3 login: the token cannot be read with this key")

// ParseToken decrypts a token. Any error is ErrToken.
func ParseToken(token string, key *rsa.PrivateKey, p Padding) (Login, error) {
	if len(token) > 4<<10 {
		return Login{}, ErrToken
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimRight(token, "\n"))
	if err != nil {
		return Login{}, ErrToken
	}
	if p == PKCS1 {
		b, err = rsa.DecryptPKCS1v15(nil, key, b)
	} else {
		b, err = rsa.DecryptOAEP(sha1.New(), nil, key, b, nil)
	}
	if err != nil {
		return Login{}, ErrToken
	}
	return parseLogin(b)
}

// parseLogin reads the three lines of a token.
func parseLogin(b []byte) (Login, error) {
	lines := strings.Split(string(bytes.TrimRight(b, "\x00\n")), "\n")
	if len(lines) != 3 {
		return Login{}, ErrToken
	}
	user, ok1 := strings.CutPrefix(lines[0], userLine)
	password, ok2 := strings.CutPrefix(lines[1], pwdLine)
	ts, ok3 := strings.CutPrefix(lines[2], tsLine)
	seconds, err := strconv.ParseInt(ts, 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil || user == "" || seconds < 0 || seconds > 1<<40 {
		return Login{}, ErrToken
	}
	return Login{User: user, Password: password, At: time.Unix(seconds, 0)}, nil
}

// PasswordHash is what a users file holds in place of a password.
func PasswordHash(user, password string) string {
	sum := sha256.Sum256([]byte("{" + user + "}" + password))
	return hex.EncodeToString(sum[:])
}

// Users are password hashes by name.
type Users map[string]string

// ParseUsers reads a users file: a line "NAME,HASH" each; empty lines and those that begin with # are passed over.
func ParseUsers(b []byte) (Users, error) {
	users := Users{}
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, hash, ok := strings.Cut(line, ",")
		hash = strings.ToLower(strings.TrimSpace(hash))
		if raw, err := hex.DecodeString(hash); !ok || err != nil || len(raw) != sha256.Size || name == "" {
			return nil, fmt.Errorf("iperf3 users file, line %d: want NAME,SHA256 with 64 hexadecimal digits", i+1)
		}
		users[name] = hash
	}
	return users, nil
}

// ParsePublicKey reads a server's public key in PEM ("BEGIN PUBLIC KEY").
func ParsePublicKey(text []byte) (*rsa.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("iperf3 public key: no PEM block; want the text that begins with -----BEGIN PUBLIC KEY-----")
	}
	k, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		if key, err2 := x509.ParsePKCS1PublicKey(block.Bytes); err2 == nil {
			return key, nil
		}
		return nil, fmt.Errorf("iperf3 public key: %w", err)
	}
	key, ok := k.(*rsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("iperf3 public key: a %T, want an RSA key", k)
	}
	return key, nil
}

// ParsePrivateKey reads a private key in PEM without a passphrase ("BEGIN PRIVATE KEY" or "BEGIN RSA PRIVATE KEY").
func ParsePrivateKey(text []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("iperf3 private key: no PEM block; want the text that begins with -----BEGIN PRIVATE KEY-----")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("iperf3 private key: %w; a key with a passphrase has to be decrypted first (openssl rsa)", err)
	}
	key, ok := k.(*rsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("iperf3 private key: a %T, want an RSA key", k)
	}
	return key, nil
}
