// Who makes a call, and what the caller may do. Pure and thread-safe.
#ifndef MILEPOST_COORDINATOR_SECURITY_PRINCIPAL_H_
#define MILEPOST_COORDINATOR_SECURITY_PRINCIPAL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/auth.pb.h"

namespace milepost::coordinator {

inline constexpr char kEveryProject[] = "*";
inline constexpr char kDefaultProject[] = "default";

// "local": everybody on loopback without TLS. They may do everything.
v1::Principal LocalPrincipal();
// The holder of the certificate of "workers/<id>". `pool` is the pool that the certificate names.
v1::Principal WorkerPrincipal(const std::string& worker, const std::string& pool = "");
// The holder of "joinTokens/<id>".
v1::Principal JoinerPrincipal(const std::string& token);

// True when the principal has `role`, or one that includes it, for the project ("*": for all
// projects). An admin is also a submitter, and a submitter also a viewer. A worker is neither.
bool HasRole(const v1::Principal& principal, absl::string_view project, v1::Role role);
// True when it has the role for some project.
bool HasRoleSomewhere(const v1::Principal& principal, v1::Role role);
// True when it has everything that `grant` gives.
bool Includes(const v1::Principal& principal, const v1::Grant& grant);

// "viewer", "submitter", "worker", "admin"
std::string RoleName(v1::Role role);

// Checks a project's name: 1 to 63 letters, digits, '-', '_' and '.'.
absl::Status CheckProject(absl::string_view project);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_PRINCIPAL_H_
