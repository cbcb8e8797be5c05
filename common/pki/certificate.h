// Makes and reads X.509 certificates of a small private authority. gRPC does the TLS.
//
//   MP_ASSIGN_OR_RETURN(KeyPair authority, MakeAuthority("milepost", key, now, absl::Hours(24)));
//   const Certificate wanted = {.name = "a", .uri = WorkerUri("a")};
//   MP_ASSIGN_OR_RETURN(std::string pem, IssueCertificate(authority, wanted, key, now));
//
// Keys are ECDSA over P-256, signatures use SHA-256, and everything is PEM. A certificate is for a
// server or for a client (extended key usage), so neither can stand in for the other. Pure except
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

// The contents of a certificate.
struct Certificate {
  std::string name;                // common name
  std::vector<std::string> hosts;  // a server's DNS names and IP addresses
  std::string uri;                 // a client's identity; empty: a server
  std::string pool;                // a worker's pool; empty: none is named
  absl::Time not_before;           // only set by ReadCertificate
  absl::Time not_after;            // likewise
};

absl::StatusOr<std::string> MakePrivateKey();

// Makes a self-signed authority. INVALID_ARGUMENT: `key` is not a private key.
absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, const std::string& key,
                                      absl::Time now, absl::Duration lifetime);

// Makes a certificate for the holder of `key`, signed by `authority`. It is valid from a few
// minutes before `now`, because clocks differ. INVALID_ARGUMENT: some PEM is malformed, or a host
// is neither a name nor an address.
absl::StatusOr<std::string> IssueCertificate(const KeyPair& authority, const Certificate& wanted,
                                             const std::string& key, absl::Time now,
                                             absl::Duration lifetime);

// Makes a certificate request (PKCS #10, RFC 2986) in PEM form. It proves that its maker has `key`.
absl::StatusOr<std::string> MakeCertificateRequest(const std::string& name, const std::string& key);

// Makes the certificate for the key of a request, and ignores the rest of the request.
// INVALID_ARGUMENT: it is not a request, its maker does not have the key, or the key is weaker than
// 112 bits (RSA of 2048).
absl::StatusOr<std::string> IssueForRequest(const KeyPair& authority, const Certificate& wanted,
                                            const std::string& request, absl::Time now,
                                            absl::Duration lifetime);

// The SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate request: 32 bytes.
// INVALID_ARGUMENT as above.
absl::StatusOr<std::string> KeyDigestOfRequest(const std::string& request);

// True when one of the certificates in `bundle` is the one in `certificate`. INVALID_ARGUMENT: some
// PEM is malformed.
absl::StatusOr<bool> HasCertificate(const std::string& bundle, const std::string& certificate);

// INVALID_ARGUMENT: `pem` is not a PEM certificate.
absl::StatusOr<Certificate> ReadCertificate(const std::string& pem);

// INVALID_ARGUMENT: some PEM is malformed, or the key does not belong to the (first) certificate.
absl::Status CheckKeyIsOf(const std::string& certificate_pem, const std::string& key_pem);

// The URI of a worker in its certificate: "milepost://workers/ID".
std::string WorkerUri(absl::string_view id);
// The id. Empty: the URI is not a worker's.
std::string WorkerIdOfUri(absl::string_view uri);
// The URI of the worker's pool, beside that: "milepost://pools/POOL".
std::string PoolUri(absl::string_view pool);
// The pool. Empty: the URI is not a pool's.
std::string PoolOfUri(absl::string_view uri);

}  // namespace milepost

#endif  // MILEPOST_COMMON_PKI_CERTIFICATE_H_
