// Who makes a call, and what it may do.
#ifndef MILEPOST_COORDINATOR_SECURITY_PRINCIPAL_H_
#define MILEPOST_COORDINATOR_SECURITY_PRINCIPAL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/auth.pb.h"

namespace milepost::coordinator {

inline constexpr char kEveryProject[] = "*";
inline constexpr char kDefaultProject[] = "default";

// "local": everybody on loopback without TLS, who may do everything.
v1::Principal LocalPrincipal();
// The holder of the certificate of "workers/<id>", of this pool where it names one.
v1::Principal WorkerPrincipal(const std::string& worker, const std::string& pool = "");
// The holder of "joinTokens/<id>".
v1::Principal JoinerPrincipal(const std::string& token);

// Does it have `role`, or one that includes it, for the project ("*": for all of them)? An admin is
// a submitter, and that a viewer; a worker is neither.
bool HasRole(const v1::Principal& principal, absl::string_view project, v1::Role role);
// For some project.
bool HasRoleSomewhere(const v1::Principal& principal, v1::Role role);
// Everything that `grant` gives.
bool Includes(const v1::Principal& principal, const v1::Grant& grant);

// "viewer", "submitter", "worker", "admin"
std::string RoleName(v1::Role role);

// A project's name: 1 to 63 letters, digits, '-', '_' and '.'.
absl::Status CheckProject(absl::string_view project);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_PRINCIPAL_H_
