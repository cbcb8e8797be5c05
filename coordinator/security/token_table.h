// The tokens of users. Thread-safe; time is an argument.
//
//   TokenTable table(records, [&](const auto& r, bool sync) { return store->PutToken(r, sync); },
//                    [&](const std::string& name) { return store->DeleteToken(name); });
//   MP_ASSIGN_OR_RETURN(v1::CreateTokenResponse made, table.Create(request, principal, now));
//   MP_ASSIGN_OR_RETURN(v1::Principal who, table.Authenticate(made.secret(), now));
//
// Changes are stored before the call returns, so a revoked token stays revoked. When a new token
// needs room, tokens that expired or were revoked are removed, the longest ended first. The admin
// tokens of `init-pki` stay, because they would be imported again.
#ifndef MILEPOST_COORDINATOR_SECURITY_TOKEN_TABLE_H_
#define MILEPOST_COORDINATOR_SECURITY_TOKEN_TABLE_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/security/token_text.h"
#include "milepost/v1/auth.pb.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

struct TokenLimits {
  size_t of_all = 100'000;
  // Tokens that grant something in one project. So its admins leave room for others.
  size_t of_project = 10'000;
};

class TokenTable {
 public:
  static constexpr int kMaxGrants = 64;
  static constexpr size_t kMaxUserBytes = 128;
  // The accuracy of last_use_time: a record is written at most once in this time.
  static constexpr absl::Duration kUseStep = absl::Minutes(10);

  // `sync`: the record is on the disk when it returns.
  using Put = std::function<absl::Status(const v1::TokenRecord&, bool sync)>;
  using Remove = std::function<absl::Status(const std::string& name)>;
  TokenTable(std::vector<v1::TokenRecord> records, Put put, Remove remove,
             const TokenLimits& limits = {});

  // Imports the admin token of `init-pki`, unless a token with its id was already known, revoked or
  // not.
  absl::Status ImportAdmin(const NewToken& token, absl::Time now);

  // UNAUTHENTICATED: the token is not valid. The message says that it expired or was revoked only
  // if the token is genuine. Notes the use, unless another record is being stored at the moment. A
  // failure to store the use is ignored.
  absl::StatusOr<v1::Principal> Authenticate(absl::string_view text, absl::Time now);
  // Checks that a token that was authenticated before is still valid.
  absl::Status CheckHolds(const std::string& name, absl::Time now);

  // INVALID_ARGUMENT: the request. PERMISSION_DENIED: it asks for more than `creator` has, or
  // `creator` is not an admin there. RESOURCE_EXHAUSTED: the permitted number of tokens have not
  // ended.
  absl::StatusOr<v1::CreateTokenResponse> Create(const v1::CreateTokenRequest& request,
                                                 const v1::Principal& creator, absl::Time now);
  // The tokens that `caller` may revoke, by name, after `after`.
  std::vector<v1::Token> List(const v1::Principal& caller, const std::string& after, int limit);
  // NOT_FOUND also when the caller may not revoke the token.
  absl::StatusOr<v1::Token> Revoke(const std::string& name, const v1::Principal& caller,
                                   absl::Time now);

 private:
  // Tokens that count together: all tokens, or those of one project.
  struct Pool {
    size_t tokens = 0;
    std::set<std::pair<absl::Time, std::string>> ends;  // of tokens that may be removed then
  };

  void NoteUse(const std::string& name, absl::Time now);
  // Removes ended tokens until there is room in every pool of `token`.
  absl::Status MakeRoom(const v1::Token& token, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  // The name of the token to remove to make room in the pool. Empty: there is room.
  absl::StatusOr<std::string> FindEnded(const std::string& pool, absl::Time now);
  void PutLocked(v1::TokenRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseLocked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status CheckRequest(const v1::CreateTokenRequest& request, absl::Time now);

  const Put put_;
  const Remove remove_;
  const TokenLimits limits_;
  // Held while a record is stored, which may take long. Authentication, on gRPC's own threads,
  // needs only mutex_ meanwhile. Lock this one before mutex_.
  absl::Mutex writing_;
  absl::Mutex mutex_;
  std::map<std::string, v1::TokenRecord> records_ ABSL_GUARDED_BY(mutex_);  // by name
  std::map<std::string, Pool> pools_ ABSL_GUARDED_BY(mutex_);               // no pool is empty
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_TOKEN_TABLE_H_
