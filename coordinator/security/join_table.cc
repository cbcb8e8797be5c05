#include "coordinator/security/join_table.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/error_details.h"
#include "common/pki/secret.h"
#include "common/proto_time.h"
#include "common/spec/labels.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "common/worker_id.h"
#include "coordinator/security/address_range.h"
#include "coordinator/security/principal.h"
#include "coordinator/security/token_text.h"

namespace milepost::coordinator {
namespace {

// For who has joined to connect.
constexpr absl::Duration kSettles = absl::Minutes(2);
constexpr int kMostUsed = 1'000'000'000;
constexpr int kMostStars = 4;  // fnmatch tries every length of each

std::string NameOf(const std::string& id) { return absl::StrCat("joinTokens/", id); }

absl::Status NoSuchToken() {
  return Refusal(v1::ERROR_REASON_TOKEN_UNKNOWN, "",
                 "the join token is not one of this coordinator's; `milepost worker token create` "
                 "makes one");
}

absl::Status StillGood(const v1::JoinToken& token, absl::Time now) {
  if (IsSet(token.revoke_time())) {
    return Refusal(v1::ERROR_REASON_TOKEN_REVOKED, token.name(),
                   absl::StrCat(token.name(), " was revoked"));
  }
  const absl::Time end = FromProto(token.expire_time());
  if (now < end) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_TOKEN_EXPIRED, token.name(),
                 absl::StrCat(token.name(), " expired at ",
                              absl::FormatTime(absl::RFC3339_sec, end, absl::UTCTimeZone()),
                              ": `milepost worker token create` makes a new one"));
}

absl::Time EndOfJoin(const v1::JoinToken& token) {
  const absl::Time end = FromProto(token.expire_time());
  return IsSet(token.revoke_time()) ? std::min(end, FromProto(token.revoke_time())) : end;
}

absl::Status CheckPattern(const std::string& pattern) {
  const bool good = std::all_of(pattern.begin(), pattern.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '*';
  });
  const auto stars = std::count(pattern.begin(), pattern.end(), '*');
  if (good && pattern.size() <= kMostWorkerIdBytes && stars <= kMostStars) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker_pattern: at most ", kMostWorkerIdBytes,
                   " letters, digits, '-', '_', '.' and '*' for any characters, of which at most ",
                   kMostStars, "; such as gpu-*"));
}

absl::Status CheckCreate(const v1::CreateJoinTokenRequest& request, absl::Time now) {
  if (!IsLabelValue(request.pool()) || request.pool().empty()) {
    return absl::InvalidArgumentError(
        "pool: must be 1 to 63 letters, digits, '-', '_' and '.', such as a100");
  }
  if (request.uses() < 0 || request.uses() > JoinTable::kMostUses) {
    return absl::InvalidArgumentError(absl::StrCat("uses: must be 0, for any number, to ",
                                                   JoinTable::kMostUses, ", not ", request.uses()));
  }
  MP_RETURN_IF_ERROR(CheckPattern(request.worker_pattern()));
  if (request.addresses_size() > JoinTable::kMostAddresses) {
    return absl::InvalidArgumentError(
        absl::StrCat("addresses: must be at most ", JoinTable::kMostAddresses));
  }
  for (const std::string& range : request.addresses()) {
    MP_RETURN_IF_ERROR(Annotate(AddressRange::Parse(range).status(), "addresses"));
  }
  if (!request.service_account().empty() && !IsServiceAccountName(request.service_account())) {
    return absl::InvalidArgumentError(
        "service_account: must be NAMESPACE/NAME of a Kubernetes service account, such as "
        "ml/milepost-h100");
  }
  if (!IsSet(request.expire_time())) {
    return absl::InvalidArgumentError("expire_time: is required: a join token ends");
  }
  const absl::Time end = FromProto(request.expire_time());
  if (end > now && end <= now + JoinTable::kLongestLife) return absl::OkStatus();
  return absl::InvalidArgumentError("expire_time: must be in the future, and within a year");
}

absl::Time EndOf(const v1::JoinedWorkerRecord& worker) { return FromProto(worker.expire_time()); }

bool MayComeFrom(const v1::JoinToken& token, const std::string& address) {
  return token.addresses().empty() ||
         std::any_of(token.addresses().begin(), token.addresses().end(),
                     [&](const std::string& text) {
                       const auto range = AddressRange::Parse(text);
                       return range.ok() && range->Has(address);
                     });
}

absl::Status NotAllowed(const std::string& worker_id, const std::string& why) {
  return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, absl::StrCat("workers/", worker_id), why);
}

}  // namespace

JoinTable::JoinTable(JoinRecords* records, std::vector<v1::JoinTokenRecord> tokens,
                     std::vector<v1::JoinedWorkerRecord> workers, const JoinLimits& limits)
    : records_(records), limits_(limits) {
  absl::MutexLock writing(&writing_);
  absl::MutexLock lock(&mutex_);
  for (v1::JoinTokenRecord& record : tokens) {
    const std::string name = record.token().name();
    tokens_[name] = std::move(record);
  }
  for (v1::JoinedWorkerRecord& record : workers) {
    const std::string id = record.worker_id();
    ++joined_with_[record.join_token()];
    workers_[id] = std::move(record);
  }
}

bool JoinTable::IsJoinToken(absl::string_view text) {
  return !TokenIdOf(text, TokenKind::kJoin).empty();
}

absl::StatusOr<v1::Principal> JoinTable::Authenticate(absl::string_view text, absl::Time now) {
  const std::string name = NameOf(TokenIdOf(text, TokenKind::kJoin));
  const std::string digest = Sha256(text);
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(name);
  if (found == tokens_.end() || !SameSecret(found->second.sha256(), digest)) return NoSuchToken();
  const v1::JoinToken& token = found->second.token();
  MP_RETURN_IF_ERROR(StillGood(token, now));
  v1::Principal principal = JoinerPrincipal(token.name());
  *principal.mutable_expire_time() = token.expire_time();
  return principal;
}

absl::StatusOr<v1::Principal> JoinTable::AuthenticateAccount(const ServiceAccount& account,
                                                             absl::Time now) {
  absl::MutexLock lock(&mutex_);
  absl::Status problem = Refusal(
      v1::ERROR_REASON_TOKEN_UNKNOWN, "",
      absl::StrCat("no join token is for the service account ", account.name,
                   ": `milepost worker token create --service-account ", account.name, "`"));
  const v1::JoinToken* latest = nullptr;
  for (const auto& [name, record] : tokens_) {
    const v1::JoinToken& token = record.token();
    if (token.service_account() != account.name) continue;
    const absl::Status good = StillGood(token, now);
    if (!good.ok()) {
      problem = good;
    } else if (latest == nullptr ||
               FromProto(latest->expire_time()) < FromProto(token.expire_time())) {
      latest = &token;
    }
  }
  if (latest == nullptr) return problem;
  v1::Principal principal = JoinerPrincipal(latest->name());
  *principal.mutable_expire_time() =
      ToProto(std::min(account.expire, FromProto(latest->expire_time())));
  return principal;
}

absl::Status JoinTable::CheckHolds(const std::string& name, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(name);
  if (found == tokens_.end()) return NoSuchToken();
  return StillGood(found->second.token(), now);
}

absl::StatusOr<v1::JoinTokenRecord> JoinTable::Find(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = tokens_.find(name);
  if (found != tokens_.end()) return found->second;
  return Refusal(v1::ERROR_REASON_JOIN_TOKEN_NOT_FOUND, name,
                 absl::StrCat("there is no join token '", CutUtf8(name, 100), "'"));
}

absl::Status JoinTable::CheckAccount(const v1::CreateJoinTokenRequest& request, absl::Time now) {
  const std::string& account = request.service_account();
  if (account.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, record] : tokens_) {
    const v1::JoinToken& token = record.token();
    if (token.service_account() != account || EndOfJoin(token) <= now) continue;
    if (token.pool() == request.pool()) continue;  // what comes after it
    return Refusal(v1::ERROR_REASON_SERVICE_ACCOUNT_TAKEN, name,
                   absl::StrCat(name, " is for the service account ", account, ", and of pool ",
                                token.pool(), ": `milepost worker token revoke ", name, "` first"));
  }
  return absl::OkStatus();
}

// The longest ended one goes.
absl::Status JoinTable::MakeRoomForToken(absl::Time now) {
  std::string ended;
  {
    absl::MutexLock lock(&mutex_);
    if (tokens_.size() < limits_.tokens) return absl::OkStatus();
    const auto first =
        std::min_element(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) {
          return EndOfJoin(a.second.token()) < EndOfJoin(b.second.token());
        });
    if (EndOfJoin(first->second.token()) > now) {
      return Refusal(v1::ERROR_REASON_TOO_MANY_TOKENS, "joinTokens",
                     absl::StrCat("there are ", tokens_.size(),
                                  " join tokens that have not ended, of at most ", limits_.tokens,
                                  ": revoke some (`milepost worker token list`)"));
    }
    ended = first->first;
  }
  MP_RETURN_IF_ERROR(records_->RemoveToken(ended));
  absl::MutexLock lock(&mutex_);
  tokens_.erase(ended);
  return absl::OkStatus();
}

absl::StatusOr<v1::CreateJoinTokenResponse> JoinTable::Create(
    const v1::CreateJoinTokenRequest& request, const v1::Principal& creator, absl::Time now) {
  MP_RETURN_IF_ERROR(CheckCreate(request, now));
  const NewToken made = MakeToken(TokenKind::kJoin);
  v1::JoinTokenRecord record;
  const bool has_secret = request.service_account().empty();
  if (has_secret) record.set_sha256(made.sha256);
  v1::JoinToken* token = record.mutable_token();
  token->set_service_account(request.service_account());
  token->set_name(NameOf(made.id));
  token->set_pool(request.pool());
  token->set_uses(request.uses());
  token->set_worker_pattern(request.worker_pattern());
  *token->mutable_addresses() = request.addresses();
  *token->mutable_create_time() = ToProto(now);
  *token->mutable_expire_time() = request.expire_time();
  token->set_creator(creator.name());
  absl::MutexLock writing(&writing_);
  MP_RETURN_IF_ERROR(CheckAccount(request, now));
  MP_RETURN_IF_ERROR(MakeRoomForToken(now));
  MP_RETURN_IF_ERROR(records_->Put(record));
  v1::CreateJoinTokenResponse response;
  *response.mutable_token() = *token;
  if (has_secret) response.set_secret(made.text);
  absl::MutexLock lock(&mutex_);
  tokens_[record.token().name()] = std::move(record);
  return response;
}

std::vector<v1::JoinToken> JoinTable::List(const std::string& after, int limit) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::JoinToken> tokens;
  for (auto it = tokens_.upper_bound(after);
       it != tokens_.end() && static_cast<int>(tokens.size()) < limit; ++it) {
    tokens.push_back(it->second.token());
  }
  return tokens;
}

absl::StatusOr<v1::JoinToken> JoinTable::Revoke(const std::string& name, absl::Time now) {
  absl::MutexLock writing(&writing_);
  MP_ASSIGN_OR_RETURN(v1::JoinTokenRecord record, Find(name));
  if (IsSet(record.token().revoke_time())) return record.token();
  *record.mutable_token()->mutable_revoke_time() = ToProto(now);
  MP_RETURN_IF_ERROR(records_->Put(record));
  absl::MutexLock lock(&mutex_);
  tokens_[name] = record;
  return record.token();
}

// `again`: the worker has joined with this key before.
absl::Status JoinTable::CheckAsk(const v1::JoinToken& token, const JoinAsk& ask, bool again,
                                 absl::Time now) {
  const std::string& id = ask.worker_id;
  const std::string& pattern = token.worker_pattern();
  if (!pattern.empty() && fnmatch(pattern.c_str(), id.c_str(), 0) != 0) {
    return NotAllowed(id, absl::StrCat(token.name(), " is for workers called ", pattern, ", not ",
                                       id, ": start it with another --id"));
  }
  if (!MayComeFrom(token, ask.address)) {
    return NotAllowed(
        id, absl::StrCat(token.name(), " is for hosts of ", absl::StrJoin(token.addresses(), ", "),
                         ", not for ", ask.address.empty() ? "this one" : ask.address));
  }
  const auto found = workers_.find(id);
  const bool joined = found != workers_.end() && (ask.known || EndOf(found->second) > now);
  if (joined && found->second.pool() != token.pool()) {
    return NotAllowed(
        id, absl::StrCat("worker ", id, " is of pool ", found->second.pool(), ", and ",
                         token.name(), " of pool ", token.pool(), ": start it with another --id"));
  }
  if (!joined && ask.known) {
    return NotAllowed(id, absl::StrCat("worker ", id,
                                       " has not joined with a token: it has a certificate of its "
                                       "own. Start this one with another --id"));
  }
  // Two hosts of one name, started together, would take each other's place without end.
  const absl::Time since = joined ? FromProto(found->second.join_time()) : absl::InfinitePast();
  const bool fresh = now - since < kSettles && ask.connected < since;
  if (!again && (ask.alive || fresh)) {
    return Refusal(v1::ERROR_REASON_WORKER_CONNECTED, absl::StrCat("workers/", id),
                   absl::StrCat("worker ", id, fresh ? " has just joined" : " is connected",
                                ": stop it, or start this one with another --id"));
  }
  // An answer that was lost.
  if (again && found->second.join_token() == token.name()) return absl::OkStatus();
  if (token.uses() == 0 || token.used() < token.uses()) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_JOIN_TOKEN_USED_UP, token.name(),
                 absl::StrCat(token.name(), " was for ", token.uses(),
                              token.uses() == 1 ? " host, which has" : " hosts, which have",
                              " joined: `milepost worker token create` makes another"));
}

// The longest ended one goes: of the token's own, when these are too many.
absl::Status JoinTable::MakeRoomForWorker(const std::string& worker_id, const std::string& token,
                                          absl::Time now) {
  if (workers_.contains(worker_id)) return absl::OkStatus();
  const auto counted = joined_with_.find(token);
  const size_t own = counted == joined_with_.end() ? 0 : counted->second;
  const bool too_many_of_own = own >= limits_.workers_of_token;
  if (!too_many_of_own && workers_.size() < limits_.workers) return absl::OkStatus();
  auto first = workers_.end();
  for (auto it = workers_.begin(); it != workers_.end(); ++it) {
    if (too_many_of_own && it->second.join_token() != token) continue;
    if (first == workers_.end() || EndOf(it->second) < EndOf(first->second)) first = it;
  }
  if (EndOf(first->second) > now) {
    return Refusal(v1::ERROR_REASON_TOO_MANY_JOINED, too_many_of_own ? token : "workers",
                   absl::StrCat(too_many_of_own ? own : workers_.size(),
                                " workers have joined whose certificates hold, of at most ",
                                too_many_of_own ? limits_.workers_of_token : limits_.workers,
                                too_many_of_own ? " with one token: make another"
                                                : ": wait until some have ended"));
  }
  MP_RETURN_IF_ERROR(records_->RemoveWorker(first->first));
  Uncount(first->second.join_token());
  workers_.erase(first);
  return absl::OkStatus();
}

void JoinTable::Uncount(const std::string& token) {
  const auto found = joined_with_.find(token);
  if (found != joined_with_.end() && --found->second == 0) joined_with_.erase(found);
}

absl::StatusOr<std::string> JoinTable::Join(const std::string& token, const JoinAsk& ask,
                                            absl::Time expire, absl::Time now) {
  MP_RETURN_IF_ERROR(Annotate(CheckWorkerId(ask.worker_id), "worker_id"));
  absl::MutexLock writing(&writing_);
  MP_ASSIGN_OR_RETURN(v1::JoinTokenRecord record, Find(token));
  MP_RETURN_IF_ERROR(StillGood(record.token(), now));
  const auto found = workers_.find(ask.worker_id);
  const bool again = found != workers_.end() && found->second.key_sha256() == ask.key_sha256;
  MP_RETURN_IF_ERROR(CheckAsk(record.token(), ask, again, now));
  MP_RETURN_IF_ERROR(MakeRoomForWorker(ask.worker_id, token, now));
  v1::JoinedWorkerRecord worker;
  worker.set_worker_id(ask.worker_id);
  worker.set_pool(record.token().pool());
  worker.set_key_sha256(ask.key_sha256);
  worker.set_join_token(token);
  *worker.mutable_join_time() = ToProto(now);
  *worker.mutable_expire_time() = ToProto(expire);
  // One that it has had before may hold longer.
  if (again) *worker.mutable_expire_time() = ToProto(std::max(expire, EndOf(found->second)));
  if (!again || found->second.join_token() != token) {
    record.mutable_token()->set_used(std::min(record.token().used(), kMostUsed - 1) + 1);
  }
  *record.mutable_token()->mutable_last_use_time() = ToProto(now);
  MP_RETURN_IF_ERROR(records_->Put(worker, &record));
  if (found != workers_.end()) Uncount(found->second.join_token());
  ++joined_with_[token];
  workers_[ask.worker_id] = worker;
  absl::MutexLock lock(&mutex_);
  tokens_[token] = std::move(record);
  return worker.pool();
}

absl::StatusOr<std::string> JoinTable::Renew(const std::string& worker_id,
                                             const std::string& key_sha256, absl::Time expire) {
  absl::MutexLock writing(&writing_);
  const auto found = workers_.find(worker_id);
  if (found == workers_.end()) {
    return NotAllowed(worker_id, absl::StrCat("worker ", worker_id,
                                              " has not joined with a token: its certificate is "
                                              "renewed where it was made"));
  }
  if (found->second.key_sha256() != key_sha256) {
    return NotAllowed(worker_id,
                      absl::StrCat("worker ", worker_id, " has joined with another key since"));
  }
  v1::JoinedWorkerRecord worker = found->second;
  *worker.mutable_expire_time() = ToProto(std::max(expire, EndOf(worker)));
  MP_RETURN_IF_ERROR(records_->Put(worker, nullptr));
  found->second = worker;
  return worker.pool();
}

}  // namespace milepost::coordinator
