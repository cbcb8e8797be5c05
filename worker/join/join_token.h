// What a host needs to join: the token, and the authority that it is to trust.
//
//   mpj_1a2b3c4d5e6f_0123...
//   -----BEGIN CERTIFICATE-----      the authority that signs the coordinator's certificate;
//   ...                              optional where the host gets it in another way
//
// `milepost worker token create` prints this form. Instead of a join token there may be the token
// of a Kubernetes service account, which the cluster puts into a pod ("eyJ..."). Pure.
#ifndef MILEPOST_WORKER_JOIN_JOIN_TOKEN_H_
#define MILEPOST_WORKER_JOIN_JOIN_TOKEN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::worker {

struct JoinToken {
  std::string secret;
  std::string authority;  // PEM; empty: none came with the token
};

// Reads the token anew at each call, because a cluster replaces a service account's token before it
// expires.
using JoinTokenSource = std::function<absl::StatusOr<JoinToken>()>;

// INVALID_ARGUMENT: the first line is not such a token, or what follows is not a certificate. The
// message does not quote the text, which is secret.
absl::StatusOr<JoinToken> ParseJoinToken(absl::string_view text);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_JOIN_JOIN_TOKEN_H_
