// What a host is given to join with: the token, and whom it is to trust.
//
//   mpj_1a2b3c4d5e6f_0123...
//   -----BEGIN CERTIFICATE-----      the authority that signs the coordinator's certificate;
//   ...                              may be left out where it comes in another way
//
// `milepost worker token create` prints it in this form. Instead of a join token there may be the
// token of a Kubernetes service account, as the cluster puts it into a pod ("eyJ..."). Pure.
#ifndef MILEPOST_WORKER_JOIN_JOIN_TOKEN_H_
#define MILEPOST_WORKER_JOIN_JOIN_TOKEN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::worker {

struct JoinToken {
  std::string secret;
  std::string authority;  // PEM; empty: none came with it
};

// Reads it anew each time: a cluster replaces a service account's token before it ends.
using JoinTokenSource = std::function<absl::StatusOr<JoinToken>()>;

// INVALID_ARGUMENT: the first line is no such token, or what follows is no certificate. Says
// nothing of the text itself, which is a secret.
absl::StatusOr<JoinToken> ParseJoinToken(absl::string_view text);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_JOIN_JOIN_TOKEN_H_
