// X.509 certificates of a small private authority: made here, read here. TLS itself is gRPC's.
//
//   MP_ASSIGN_OR_RETURN(KeyPair authority, MakeAuthority("milepost", key, now, absl::Hours(24)));
//   const Certificate wanted = {.name = "a", .uri = WorkerUri("a")};
//   MP_ASSIGN_OR_RETURN(std::string pem, IssueCertificate(authority, wanted, key, now));
//
// Keys are ECDSA over P-256, signatures SHA-256, everything is PEM. A certificate is either a
// server's or a client's (extended key usage), so that neither can stand in for the other. Pure but
// for randomness; thread-safe.
#ifndef MILEPOST_COMMON_PKI_CERTIFICATE_H_
#define MILEPOST_COMMON_PKI_CERTIFICATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace milepost {

struct KeyPair {
  std::string certificate;
  std::string key;
};

// What a certificate says.
struct Certificate {
  std::string name;                // common name
  std::vector<std::string> hosts;  // DNS names and IP addresses that a server answers to
  std::string uri;                 // who a client is; empty: a server
  std::string pool;                // of a worker; empty: none is named
  absl::Time not_before;           // output of ReadCertificate
  absl::Time not_after;            // the same
};

absl::StatusOr<std::string> MakePrivateKey();

// Signs itself. INVALID_ARGUMENT: `key` is not a private key.
absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, const std::string& key,
                                      absl::Time now, absl::Duration lifetime);

// Signed by `authority`, for the holder of `key`, from a few minutes before `now` on (clocks
// differ). INVALID_ARGUMENT: a PEM that is none, or a host that is neither a name nor an address.
absl::StatusOr<std::string> IssueCertificate(const KeyPair& authority, const Certificate& wanted,
                                             const std::string& key, absl::Time now,
                                             absl::Duration lifetime);

// A certificate request (PKCS #10, RFC 2986) in PEM form: shows that its maker has `key`.
absl::StatusOr<std::string> MakeCertificateRequest(const std::string& name, const std::string& key);

// The certificate for the key of a request; what else the request says does not count.
// INVALID_ARGUMENT: it is none, who made it has not the key, or the key is weaker than 112 bits
// (RSA of 2048).
absl::StatusOr<std::string> IssueForRequest(const KeyPair& authority, const Certificate& wanted,
                                            const std::string& request, absl::Time now,
                                            absl::Duration lifetime);

// SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate request, 32 bytes.
// INVALID_ARGUMENT as above.
absl::StatusOr<std::string> KeyDigestOfRequest(const std::string& request);

// Is one of the certificates in `bundle` the one in `certificate`? INVALID_ARGUMENT: a PEM that is
// none.
absl::StatusOr<bool> HasCertificate(const std::string& bundle, const std::string& certificate);

// INVALID_ARGUMENT: not a PEM certificate.
absl::StatusOr<Certificate> ReadCertificate(const std::string& pem);

// INVALID_ARGUMENT: a PEM that is none, or a key that is not the (first) certificate's.
absl::Status CheckKeyIsOf(const std::string& certificate_pem, const std::string& key_pem);

// How a worker's certificate names it: "milepost://workers/ID".
std::string WorkerUri(absl::string_view id);
// The id; empty when the URI is not a worker's.
std::string WorkerIdOfUri(absl::string_view uri);
// How it names the worker's pool, beside that: "milepost://pools/POOL".
std::string PoolUri(absl::string_view pool);
// The pool; empty when the URI is no pool's.
std::string PoolOfUri(absl::string_view uri);

}  // namespace milepost

#endif  // MILEPOST_COMMON_PKI_CERTIFICATE_H_
