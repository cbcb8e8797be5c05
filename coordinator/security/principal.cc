#include "coordinator/security/principal.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMaxProjectBytes = 63;

v1::Principal WithGrant(std::string name, v1::Role role) {
  v1::Principal principal;
  principal.set_name(std::move(name));
  v1::Grant* grant = principal.add_grants();
  grant->set_project(kEveryProject);
  grant->set_role(role);
  return principal;
}

bool StandsAlone(v1::Role role) { return role == v1::ROLE_WORKER || role == v1::ROLE_JOINER; }

bool RoleIncludes(v1::Role held, v1::Role wanted) {
  if (StandsAlone(held) || StandsAlone(wanted)) return held == wanted;
  return held != v1::ROLE_UNSPECIFIED && held >= wanted;
}

}  // namespace

v1::Principal LocalPrincipal() {
  v1::Principal local = WithGrant("local", v1::ROLE_ADMIN);
  v1::Grant* worker = local.add_grants();
  worker->set_project(kEveryProject);
  worker->set_role(v1::ROLE_WORKER);
  return local;
}

v1::Principal WorkerPrincipal(const std::string& worker, const std::string& pool) {
  v1::Principal principal = WithGrant(worker, v1::ROLE_WORKER);
  principal.set_pool(pool);
  return principal;
}

v1::Principal JoinerPrincipal(const std::string& token) {
  return WithGrant(token, v1::ROLE_JOINER);
}

bool HasRole(const v1::Principal& principal, absl::string_view project, v1::Role role) {
  return std::any_of(principal.grants().begin(), principal.grants().end(),
                     [&](const v1::Grant& grant) {
                       return (grant.project() == kEveryProject || grant.project() == project) &&
                              RoleIncludes(grant.role(), role);
                     });
}

bool HasRoleSomewhere(const v1::Principal& principal, v1::Role role) {
  return std::any_of(principal.grants().begin(), principal.grants().end(),
                     [&](const v1::Grant& grant) { return RoleIncludes(grant.role(), role); });
}

bool Includes(const v1::Principal& principal, const v1::Grant& grant) {
  return HasRole(principal, grant.project(), grant.role());
}

std::string RoleName(v1::Role role) {
  const std::string name = v1::Role_Name(role);  // "ROLE_VIEWER"
  return absl::AsciiStrToLower(name.size() > 5 ? name.substr(5) : "none");
}

absl::Status CheckProject(absl::string_view project) {
  const bool good = std::all_of(project.begin(), project.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (good && !project.empty() && project.size() <= kMaxProjectBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("project: must be 1 to ", kMaxProjectBytes,
                                                 " letters, digits, '-', '_' and '.', not '",
                                                 project.substr(0, 100), "'"));
}

}  // namespace milepost::coordinator
