// Tokens of Kubernetes' service accounts, which a cluster projects into pods. They are JSON Web
// Tokens signed by the cluster. They say to which account they belong, for whom they are, and until
// when.
//
//   MP_ASSIGN_OR_RETURN(KeySet keys, KeySet::Parse(jwks));
//   MP_ASSIGN_OR_RETURN(std::string claims, keys.Verify(token));
//   MP_ASSIGN_OR_RETURN(ServiceAccount who,
//                       ReadClaims(claims, {.issuer = "https://kubernetes.default.svc"}, now));
//   // who.name == "ml/milepost-h100"
//
// Signatures are RS or ES with SHA-256, -384 or -512 (RFC 7518), as clusters make them. What is
// read is bounded. Errors say nothing about the token's contents. Pure and thread-safe. Sources:
// RFC 7515 (signatures), 7517 (keys), 7519 (claims); Kubernetes, "Managing Service Accounts".
#ifndef MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNT_TOKEN_H_
#define MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNT_TOKEN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

inline constexpr size_t kMostKeySetBytes = 256 << 10;
inline constexpr size_t kMostAccountTokenBytes = 8 << 10;

// True when the text has the form of a signed JSON Web Token. It may still be forged.
bool IsAccountToken(absl::string_view text);

// The keys with which a cluster signs, from its JSON Web Key Set (/openid/v1/jwks).
class KeySet {
 public:
  // INVALID_ARGUMENT: it is not a key set, or has no key for signatures, or only short ones (RSA
  // below 2048 bits). Keys of other kinds are skipped.
  static absl::StatusOr<KeySet> Parse(absl::string_view json);

  // The claims of a token that one of the keys has signed. NOT_FOUND: the token names a key that is
  // not in the set. UNAUTHENTICATED: anything else is wrong with it.
  absl::StatusOr<std::string> Verify(absl::string_view token) const;

 private:
  struct Key;
  std::vector<std::shared_ptr<const Key>> keys_;
};

struct ClaimRules {
  std::string issuer;
  std::string audience = "milepost";  // the token must be for it, among others
};

struct ServiceAccount {
  std::string name;  // "<namespace>/<name>"
  absl::Time expire;
};

// UNAUTHENTICATED: the claims are from another issuer, for somebody else, expired, not yet valid,
// or not of a service account.
absl::StatusOr<ServiceAccount> ReadClaims(absl::string_view claims, const ClaimRules& rules,
                                          absl::Time now);

// True for "<namespace>/<name>", each by Kubernetes' rules for names.
bool IsServiceAccountName(absl::string_view name);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNT_TOKEN_H_
