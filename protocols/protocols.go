// Package protocols carries out flows and probes over protocols that not every program needs: iperf3 and HTTP for flows, DNS, TLS and HTTP for probes,
// and netperf's own closed loops of requests and responses; and it asks Wi-Fi devices for their stations.
package protocols

import (
	"crypto/rsa"
	"crypto/x509"

	"bufferbloat"
	"bufferbloat/load/netperf"
	"bufferbloat/watch/wifi"
)

// Options are what the protocols need beside a plan. They are stored nowhere.
type Options struct {
	Roots          *x509.CertPool // whom flows and probes over TLS believe; nil is the system's own
	AnyCertificate bool           // has HTTP flows believe every web server, which a finding says
	Login          *Login         // for an iperf3 server that wants a user name; nil for none
}

// Login is who the client is to an iperf3 server that asks.
type Login struct {
	User, Password string
	Key            *rsa.PublicKey // the server's
	PKCS1          bool           // encrypt as iperf3 before 3.17 wants it
}

// All returns all that this package has.
func All(o Options) bufferbloat.Kinds {
	return bufferbloat.Kinds{
		Flows: map[bufferbloat.Protocol]bufferbloat.FlowKind{bufferbloat.IPerf3: iperf3Flows{o}, bufferbloat.IPerf3UDP: iperf3Flows{o},
			bufferbloat.HTTP: httpFlows{o}, bufferbloat.HTTP2: httpFlows{o}},
		Probes: map[bufferbloat.ProbeKind]bufferbloat.Prober{bufferbloat.TLS: o.tlsProbe, bufferbloat.DNS: dnsProbe, bufferbloat.Fetch: o.fetchProbe,
			bufferbloat.Page: o.pageProbe},
		Stations: wifi.Read,
		Closed: func(c *netperf.Client, o netperf.TransactionOptions) bufferbloat.Transactions {
			return c.NewTransactions(o)
		},
	}
}
