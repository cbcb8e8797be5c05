// The tokens that hosts join with, and the workers that have. Thread-safe; time is an argument.
//
//   JoinTable table(records, std::move(tokens), std::move(workers));
//   MP_ASSIGN_OR_RETURN(v1::CreateJoinTokenResponse made, table.Create(request, creator, now));
//   MP_ASSIGN_OR_RETURN(v1::Principal who, table.Authenticate(made.secret(), now));
//   MP_ASSIGN_OR_RETURN(std::string pool, table.Join(who.name(), {.worker_id = "gpu-01", ...},
//                                                    now + lifetime, now));
//
// A worker's id belongs to the pool that it has joined, for as long as its certificate holds or the
// coordinator knows the worker: nobody takes it over with a token of another pool, nor the id of a
// worker that has not joined with a token, nor that of one that is connected
// or has just joined.
//
// What changes is stored before the call returns. Where a place is needed, tokens that have expired
// or were revoked go, and workers whose certificates have ended, the longest ended first.
#ifndef MILEPOST_COORDINATOR_SECURITY_JOIN_TABLE_H_
#define MILEPOST_COORDINATOR_SECURITY_JOIN_TABLE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/security/service_account_token.h"
#include "milepost/v1/auth.pb.h"
#include "milepost/v1/join.pb.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// Where they are kept: on the disk when a call returns. Calls come one at a time.
class JoinRecords {
 public:
  virtual ~JoinRecords() = default;
  virtual absl::Status Put(const v1::JoinTokenRecord& token) = 0;
  virtual absl::Status RemoveToken(const std::string& name) = 0;
  // Both or neither; `used`: the token, when it was used. May be null.
  virtual absl::Status Put(const v1::JoinedWorkerRecord& worker,
                           const v1::JoinTokenRecord* used) = 0;
  virtual absl::Status RemoveWorker(const std::string& worker_id) = 0;
};

struct JoinLimits {
  size_t tokens = 10'000;
  size_t workers = 100'000;
  size_t workers_of_token = 20'000;  // so that one token leaves places to others
};

// Who wants to join, and what the coordinator knows of the id.
struct JoinAsk {
  std::string worker_id;
  std::string key_sha256;                       // of its public key
  std::string address;                          // from where it asks
  bool known = false;                           // there is a worker of that id
  bool alive = false;                           // connected, or was just now
  absl::Time connected = absl::InfinitePast();  // last
};

class JoinTable {
 public:
  static constexpr absl::Duration kLongestLife = absl::Hours(24 * 366);
  static constexpr int kMostUses = 1'000'000;
  static constexpr int kMostAddresses = 64;

  // `records` outlives the table.
  JoinTable(JoinRecords* records, std::vector<v1::JoinTokenRecord> tokens,
            std::vector<v1::JoinedWorkerRecord> workers, const JoinLimits& limits = {});

  // Has the text the form of a join token?
  static bool IsJoinToken(absl::string_view text);
  // UNAUTHENTICATED, saying no more than that, unless the token is genuine: then also that it is
  // expired or revoked. Never waits for the disk.
  absl::StatusOr<v1::Principal> Authenticate(absl::string_view text, absl::Time now);
  // The same for who has shown a genuine token of the service account: by the join token for it, of
  // several by the one that ends last.
  absl::StatusOr<v1::Principal> AuthenticateAccount(const ServiceAccount& account, absl::Time now);
  // Of a token that was authenticated before: does it still hold?
  absl::Status CheckHolds(const std::string& name, absl::Time now);

  // Without `authority`. INVALID_ARGUMENT; ALREADY_EXISTS: another that holds has the service
  // account join another pool; RESOURCE_EXHAUSTED: there are too many that hold.
  absl::StatusOr<v1::CreateJoinTokenResponse> Create(const v1::CreateJoinTokenRequest& request,
                                                     const v1::Principal& creator, absl::Time now);
  // By name, after `after`.
  std::vector<v1::JoinToken> List(const std::string& after, int limit);
  absl::StatusOr<v1::JoinToken> Revoke(const std::string& name, absl::Time now);

  // The pool that the worker is of from now on, with a certificate until `expire`.
  // INVALID_ARGUMENT: the id; UNAUTHENTICATED: the token does not hold; PERMISSION_DENIED: it is
  // not for this id, address, or worker; ALREADY_EXISTS; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::string> Join(const std::string& token, const JoinAsk& ask, absl::Time expire,
                                   absl::Time now);
  // The same of a worker that has joined, with the key that it joined with; else PERMISSION_DENIED.
  absl::StatusOr<std::string> Renew(const std::string& worker_id, const std::string& key_sha256,
                                    absl::Time expire);

 private:
  absl::StatusOr<v1::JoinTokenRecord> Find(const std::string& name);
  absl::Status CheckAsk(const v1::JoinToken& token, const JoinAsk& ask, bool again, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  absl::Status CheckAccount(const v1::CreateJoinTokenRequest& request, absl::Time now);
  absl::Status MakeRoomForToken(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  absl::Status MakeRoomForWorker(const std::string& worker_id, const std::string& token,
                                 absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  // One fewer of its workers.
  void Uncount(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);

  JoinRecords* const records_;
  const JoinLimits limits_;
  // Held while a record is stored. Whoever is asked for a token meanwhile, on gRPC's own threads,
  // needs mutex_ alone. Taken before it.
  absl::Mutex writing_;
  absl::Mutex mutex_;
  std::map<std::string, v1::JoinTokenRecord> tokens_ ABSL_GUARDED_BY(mutex_);        // by name
  std::map<std::string, v1::JoinedWorkerRecord> workers_ ABSL_GUARDED_BY(writing_);  // by id
  std::map<std::string, size_t> joined_with_ ABSL_GUARDED_BY(writing_);  // workers, by token
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_JOIN_TABLE_H_
