package iperf3

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestATokenIsReadWithItsKeyAndPaddingAlone(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	want := Login{User: "mario", Password: "ro ss:i", At: time.Unix(1_700_000_000, 0)}
	for _, p := range []Padding{OAEP, PKCS1} {
		token, err := want.Token(&key.PublicKey, p)
		if err != nil || strings.Contains(token, "\n") {
			t.Fatalf("%v: %q, %v", p, token, err)
		}
		if got, err := ParseToken(token, key, p); err != nil || got != want {
			t.Errorf("%v: got %+v, %v; want %+v", p, got, err, want)
		}
		if _, err := ParseToken(token, key, 1-p); !errors.Is(err, ErrToken) {
			t.Errorf("%v is taken for %v: %v", p, 1-p, err)
		}
	}
	for _, token := range []string{"", "!", strings.Repeat("A", 5000), "QUJD"} {
		if _, err := ParseToken(token, key, OAEP); !errors.Is(err, ErrToken) {
			t.Errorf("%.20q: %v", token, err)
		}
	}
	for _, l := range []Login{{}, {User: "a\nb"}, {User: "a", Password: "b\n"}, {User: "a", Password: strings.Repeat("x", 300)}} {
		if _, err := l.Token(&key.PublicKey, OAEP); err == nil {
			t.Errorf("%+v makes a token", l)
		}
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParsePublicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})); err != nil || !got.Equal(&key.PublicKey) {
		t.Errorf("public key: %v", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})); err != nil || !got.Equal(key) {
		t.Errorf("private key: %v", err)
	}
	for _, text := range []string{"", "x", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		if _, err := ParsePublicKey([]byte(text)); err == nil {
			t.Errorf("%.20q is a public key", text)
		}
		if _, err := ParsePrivateKey([]byte(text)); err == nil {
			t.Errorf("%.20q is a private key", text)
		}
	}
}

func TestUsersFile(t *testing.T) {
	hash := PasswordHash("mario", "rossi")
	if hash != "bf7a49a846d44b454a5d11e7acfaf13d138bbe0b7483aa3e050879700572709b" {
		t.Errorf("got %s", hash)
	}
	users, err := ParseUsers([]byte("# those who may\n\nmario," + strings.ToUpper(hash) + "\r\n"))
	if err != nil || len(users) != 1 || users["mario"] != hash {
		t.Errorf("got %v, %v", users, err)
	}
	for _, text := range []string{"mario", "mario,", "mario,abc", "," + hash} {
		if users, err := ParseUsers([]byte(text)); err == nil {
			t.Errorf("%q: got %v", text, users)
		}
	}
}
