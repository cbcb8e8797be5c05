#include "coordinator/security/token_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/pki/secret.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "coordinator/security/principal.h"

namespace milepost::coordinator {
namespace {

absl::Status NotGenuine() {
  return Refusal(
      v1::ERROR_REASON_TOKEN_UNKNOWN, "",
      "the token is not one of this coordinator's; `milepost auth login` with one that is");
}

constexpr char kInitPki[] = "init-pki";
constexpr char kAll[] = "";  // the pool of all tokens: no project is called that

std::set<std::string> PoolsOf(const v1::Token& token) {
  std::set<std::string> pools = {kAll};
  for (const v1::Grant& grant : token.grants()) {
    if (grant.project() != kEveryProject) pools.insert(grant.project());
  }
  return pools;
}

// From when on it may be removed.
absl::Time EndOf(const v1::Token& token) {
  absl::Time end = absl::InfiniteFuture();
  if (token.creator() == kInitPki) return end;
  if (IsSet(token.expire_time())) end = FromProto(token.expire_time());
  if (IsSet(token.revoke_time())) end = std::min(end, FromProto(token.revoke_time()));
  return end;
}

std::string TokenName(const std::string& id) { return absl::StrCat("tokens/", id); }

absl::Status Holds(const v1::Token& token, absl::Time now) {
  if (IsSet(token.revoke_time())) {
    return Refusal(v1::ERROR_REASON_TOKEN_REVOKED, token.name(),
                   absl::StrCat(token.name(), " was revoked"));
  }
  if (IsSet(token.expire_time()) && FromProto(token.expire_time()) <= now) {
    return Refusal(v1::ERROR_REASON_TOKEN_EXPIRED, token.name(),
                   absl::StrCat(token.name(), " expired at ",
                                absl::FormatTime(absl::RFC3339_sec, FromProto(token.expire_time()),
                                                 absl::UTCTimeZone()),
                                ": ask for a new one"));
  }
  return absl::OkStatus();
}

// An admin of everything that it grants, or its holder.
bool MayRevoke(const v1::Principal& caller, const v1::Token& token) {
  if (caller.name() == token.name()) return true;
  return std::all_of(token.grants().begin(), token.grants().end(), [&](const v1::Grant& grant) {
    return HasRole(caller, grant.project(), v1::ROLE_ADMIN);
  });
}

v1::Principal PrincipalOf(const v1::Token& token) {
  v1::Principal principal;
  principal.set_name(token.name());
  principal.set_user(token.user());
  *principal.mutable_grants() = token.grants();
  if (token.has_expire_time()) *principal.mutable_expire_time() = token.expire_time();
  return principal;
}

}  // namespace

TokenTable::TokenTable(std::vector<v1::TokenRecord> records, Put put, Remove remove,
                       const TokenLimits& limits)
    : put_(std::move(put)), remove_(std::move(remove)), limits_(limits) {
  absl::MutexLock lock(&mutex_);
  for (v1::TokenRecord& record : records) PutLocked(std::move(record));
}

void TokenTable::PutLocked(v1::TokenRecord record) {
  const std::string name = record.token().name();
  EraseLocked(name);
  const absl::Time end = EndOf(record.token());
  for (const std::string& pool : PoolsOf(record.token())) {
    Pool& held = pools_[pool];
    ++held.tokens;
    if (end < absl::InfiniteFuture()) held.ends.emplace(end, name);
  }
  records_[name] = std::move(record);
}

void TokenTable::EraseLocked(const std::string& name) {
  const auto found = records_.find(name);
  if (found == records_.end()) return;
  const v1::Token& token = found->second.token();
  for (const std::string& pool : PoolsOf(token)) {
    const auto held = pools_.find(pool);
    held->second.ends.erase({EndOf(token), name});
    if (--held->second.tokens == 0) pools_.erase(held);
  }
  records_.erase(found);
}

absl::StatusOr<std::string> TokenTable::FindEnded(const std::string& pool, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const size_t most = pool == kAll ? limits_.of_all : limits_.of_project;
  const auto held = pools_.find(pool);
  if (held == pools_.end() || held->second.tokens < most) return std::string();
  const auto& ends = held->second.ends;
  if (!ends.empty() && ends.begin()->first <= now) return ends.begin()->second;
  const std::string whose = pool == kAll ? "there are " : absl::StrCat("project ", pool, " has ");
  return Refusal(
      v1::ERROR_REASON_TOO_MANY_TOKENS, pool == kAll ? "tokens" : absl::StrCat("projects/", pool),
      absl::StrCat(whose, held->second.tokens, " tokens that have not ended, of at most ", most,
                   ": revoke some that nobody uses (`milepost auth token list`), "
                   "and make tokens that expire"));
}

absl::Status TokenTable::MakeRoom(const v1::Token& token, absl::Time now) {
  for (const std::string& pool : PoolsOf(token)) {
    while (true) {
      MP_ASSIGN_OR_RETURN(const std::string ended, FindEnded(pool, now));
      if (ended.empty()) break;
      MP_RETURN_IF_ERROR(remove_(ended));
      absl::MutexLock lock(&mutex_);
      EraseLocked(ended);
    }
  }
  return absl::OkStatus();
}

absl::Status TokenTable::ImportAdmin(const NewToken& token, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const std::string name = TokenName(token.id);
  if (records_.count(name) > 0) return absl::OkStatus();
  v1::TokenRecord record;
  record.set_sha256(token.sha256);
  record.mutable_token()->set_name(name);
  record.mutable_token()->set_user("admin");
  record.mutable_token()->set_creator(kInitPki);
  v1::Grant* grant = record.mutable_token()->add_grants();
  grant->set_project(kEveryProject);
  grant->set_role(v1::ROLE_ADMIN);
  *record.mutable_token()->mutable_create_time() = ToProto(now);
  MP_RETURN_IF_ERROR(put_(record, /*sync=*/true));
  PutLocked(std::move(record));
  return absl::OkStatus();
}

absl::StatusOr<v1::Principal> TokenTable::Authenticate(absl::string_view text, absl::Time now) {
  const std::string name = TokenName(TokenIdOf(text));
  const std::string digest = Sha256(text);
  v1::Principal principal;
  bool fresh = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = records_.find(name);
    if (found == records_.end() || !SameSecret(found->second.sha256(), digest)) {
      return NotGenuine();
    }
    const v1::Token& token = found->second.token();
    MP_RETURN_IF_ERROR(Holds(token, now));
    principal = PrincipalOf(token);
    fresh = IsSet(token.last_use_time()) && now - FromProto(token.last_use_time()) < kUseStep;
  }
  if (!fresh) NoteUse(name, now);
  return principal;
}

void TokenTable::NoteUse(const std::string& name, absl::Time now) {
  if (!writing_.TryLock()) return;  // a later call notes it
  v1::TokenRecord used;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = records_.find(name);
    if (found != records_.end()) {
      *found->second.mutable_token()->mutable_last_use_time() = ToProto(now);
      used = found->second;
    }
  }
  // It may have been removed since it was shown.
  if (used.has_token()) put_(used, /*sync=*/false).IgnoreError();
  writing_.Unlock();
}

absl::Status TokenTable::CheckHolds(const std::string& name, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = records_.find(name);
  if (found == records_.end()) return NotGenuine();
  return Holds(found->second.token(), now);
}

absl::Status TokenTable::CheckRequest(const v1::CreateTokenRequest& request, absl::Time now) {
  if (request.user().empty() || request.user().size() > kMaxUserBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "user: must have 1 to ", kMaxUserBytes, " bytes: the audit log names whose token it is"));
  }
  // Lines of the audit log and of lists name it: no two users may look the same there.
  const bool plain = std::all_of(request.user().begin(), request.user().end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-+@:/", c);
  });
  if (!plain) {
    return absl::InvalidArgumentError(
        "user: may have letters and digits of ASCII and . _ - + @ : / in it");
  }
  if (request.grants().empty() || request.grants_size() > kMaxGrants) {
    return absl::InvalidArgumentError(
        absl::StrCat("grants: must be 1 to ", kMaxGrants, ", not ", request.grants_size()));
  }
  for (const v1::Grant& grant : request.grants()) {
    if (grant.project() != kEveryProject) MP_RETURN_IF_ERROR(CheckProject(grant.project()));
    const bool known = grant.role() == v1::ROLE_VIEWER || grant.role() == v1::ROLE_SUBMITTER ||
                       grant.role() == v1::ROLE_ADMIN;
    if (known) continue;
    return absl::InvalidArgumentError(
        "grants: role must be viewer, submitter or admin; workers have certificates "
        "(`milepost-coordinator init-pki DIR --worker ID`)");
  }
  if (IsSet(request.expire_time()) && FromProto(request.expire_time()) <= now) {
    return absl::InvalidArgumentError("expire_time: is over already");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CreateTokenResponse> TokenTable::Create(const v1::CreateTokenRequest& request,
                                                           const v1::Principal& creator,
                                                           absl::Time now) {
  MP_RETURN_IF_ERROR(CheckRequest(request, now));
  for (const v1::Grant& grant : request.grants()) {
    if (HasRole(creator, grant.project(), v1::ROLE_ADMIN)) continue;
    return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, grant.project(),
                   absl::StrCat(creator.name(), " is no admin of ",
                                grant.project() == kEveryProject ? "every project"
                                                                 : "project " + grant.project(),
                                ", and can make no tokens for it"));
  }
  const NewToken made = MakeToken();
  v1::TokenRecord record;
  record.set_sha256(made.sha256);
  v1::Token* token = record.mutable_token();
  token->set_name(TokenName(made.id));
  token->set_user(request.user());
  *token->mutable_grants() = request.grants();
  *token->mutable_create_time() = ToProto(now);
  if (IsSet(request.expire_time())) *token->mutable_expire_time() = request.expire_time();
  token->set_creator(creator.name());
  absl::MutexLock writing(&writing_);
  MP_RETURN_IF_ERROR(MakeRoom(*token, now));
  MP_RETURN_IF_ERROR(put_(record, /*sync=*/true));
  v1::CreateTokenResponse response;
  *response.mutable_token() = *token;
  response.set_secret(made.text);
  absl::MutexLock lock(&mutex_);
  PutLocked(std::move(record));
  return response;
}

std::vector<v1::Token> TokenTable::List(const v1::Principal& caller, const std::string& after,
                                        int limit) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Token> tokens;
  for (auto it = records_.upper_bound(after);
       it != records_.end() && static_cast<int>(tokens.size()) < limit; ++it) {
    if (MayRevoke(caller, it->second.token())) tokens.push_back(it->second.token());
  }
  return tokens;
}

absl::StatusOr<v1::Token> TokenTable::Revoke(const std::string& name, const v1::Principal& caller,
                                             absl::Time now) {
  absl::MutexLock writing(&writing_);
  v1::TokenRecord record;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = records_.find(name);
    if (found == records_.end() || !MayRevoke(caller, found->second.token())) {
      return Refusal(v1::ERROR_REASON_TOKEN_NOT_FOUND, name,
                     absl::StrCat("there is no token '", CutUtf8(name, 100), "'"));
    }
    record = found->second;
  }
  if (IsSet(record.token().revoke_time())) return record.token();
  *record.mutable_token()->mutable_revoke_time() = ToProto(now);
  MP_RETURN_IF_ERROR(put_(record, /*sync=*/true));
  absl::MutexLock lock(&mutex_);
  PutLocked(record);
  return record.token();
}

}  // namespace milepost::coordinator
