// The tokens that users show. Thread-safe; time is an argument.
//
//   TokenTable table(records, [&](const auto& r, bool sync) { return store->PutToken(r, sync); },
//                    [&](const std::string& name) { return store->DeleteToken(name); });
//   MP_ASSIGN_OR_RETURN(v1::CreateTokenResponse made, table.Create(request, principal, now));
//   MP_ASSIGN_OR_RETURN(v1::Principal who, table.Authenticate(made.secret(), now));
//
// What changes is stored before the call returns, so that a revoked token stays revoked. Where a
// new token needs the place, those are removed that have expired or were revoked, the longest ended
// first, but for the admin tokens of `init-pki`, which would be imported again.
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
  // That grant something in one project, so that its admins leave places to others.
  size_t of_project = 10'000;
};

class TokenTable {
 public:
  static constexpr int kMaxGrants = 64;
  static constexpr size_t kMaxUserBytes = 128;
  // How exact last_use_time is: a record is written at most once in so long.
  static constexpr absl::Duration kUseStep = absl::Minutes(10);

  // `sync`: on the disk when it returns.
  using Put = std::function<absl::Status(const v1::TokenRecord&, bool sync)>;
  using Remove = std::function<absl::Status(const std::string& name)>;
  TokenTable(std::vector<v1::TokenRecord> records, Put put, Remove remove,
             const TokenLimits& limits = {});

  // The admin token of `init-pki`, unless one with its id was known already, revoked or not.
  absl::Status ImportAdmin(const NewToken& token, absl::Time now);

  // UNAUTHENTICATED, saying no more than that, unless the token is genuine: then also that it is
  // expired or revoked. Notes the use, unless another record is being stored just now; that it
  // cannot be stored matters to nobody.
  absl::StatusOr<v1::Principal> Authenticate(absl::string_view text, absl::Time now);
  // Of a token that was authenticated before: does it still hold?
  absl::Status CheckHolds(const std::string& name, absl::Time now);

  // INVALID_ARGUMENT; PERMISSION_DENIED for more than `creator` has, or unless it is an admin
  // there; RESOURCE_EXHAUSTED when as many as may be have not ended.
  absl::StatusOr<v1::CreateTokenResponse> Create(const v1::CreateTokenRequest& request,
                                                 const v1::Principal& creator, absl::Time now);
  // By name, after `after`: those that `caller` may revoke.
  std::vector<v1::Token> List(const v1::Principal& caller, const std::string& after, int limit);
  // NOT_FOUND also for a token that is not the caller's to revoke.
  absl::StatusOr<v1::Token> Revoke(const std::string& name, const v1::Principal& caller,
                                   absl::Time now);

 private:
  // Tokens that count together: all of them, or those of one project.
  struct Pool {
    size_t tokens = 0;
    std::set<std::pair<absl::Time, std::string>> ends;  // of those that may be removed then
  };

  void NoteUse(const std::string& name, absl::Time now);
  // Removes what has ended until there is a place in every pool of `token`.
  absl::Status MakeRoom(const v1::Token& token, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  // The name of what is to be removed for a place in the pool; empty: there is one.
  absl::StatusOr<std::string> FindEnded(const std::string& pool, absl::Time now);
  void PutLocked(v1::TokenRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseLocked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status CheckRequest(const v1::CreateTokenRequest& request, absl::Time now);

  const Put put_;
  const Remove remove_;
  const TokenLimits limits_;
  // Held while a record is stored, which may take long: whoever is asked for a token meanwhile, on
  // gRPC's own threads, needs mutex_ alone. Taken before it.
  absl::Mutex writing_;
  absl::Mutex mutex_;
  std::map<std::string, v1::TokenRecord> records_ ABSL_GUARDED_BY(mutex_);  // by name
  std::map<std::string, Pool> pools_ ABSL_GUARDED_BY(mutex_);               // none that is empty
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_TOKEN_TABLE_H_
