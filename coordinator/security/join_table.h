// The join tokens of hosts, and the workers that have joined. Thread-safe; time is an argument.
//
//   JoinTable table(records, std::move(tokens), std::move(workers));
//   MP_ASSIGN_OR_RETURN(v1::CreateJoinTokenResponse made, table.Create(request, creator, now));
//   MP_ASSIGN_OR_RETURN(v1::Principal who, table.Authenticate(made.secret(), now));
//   MP_ASSIGN_OR_RETURN(std::string pool, table.Join(who.name(), {.worker_id = "gpu-01", ...},
//                                                    now + lifetime, now));
//
// A worker's id belongs to the pool that it has joined, as long as its certificate is valid or the
// coordinator knows the worker. Nobody can take over the id with a token of another pool. The ids
// of these workers cannot be taken over either: workers that did not join with a token, that are
// connected, or that have just joined.
//
// Changes are stored before the call returns. When room is needed, expired and revoked tokens are
// removed, and workers whose certificates have expired, the longest ended first.
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

// Where the table's records are stored. They must be on the disk when a call returns. Calls come
// one at a time.
class JoinRecords {
 public:
  virtual ~JoinRecords() = default;
  virtual absl::Status Put(const v1::JoinTokenRecord& token) = 0;
  virtual absl::Status RemoveToken(const std::string& name) = 0;
  // Stores both or neither. `used` is the token, if it was used. May be null.
  virtual absl::Status Put(const v1::JoinedWorkerRecord& worker,
                           const v1::JoinTokenRecord* used) = 0;
  virtual absl::Status RemoveWorker(const std::string& worker_id) = 0;
};

struct JoinLimits {
  size_t tokens = 10'000;
  size_t workers = 100'000;
  size_t workers_of_token = 20'000;  // so that one token leaves room for others
};

// Who wants to join, and what the coordinator knows about the id.
struct JoinAsk {
  std::string worker_id;
  std::string key_sha256;                       // of its public key
  std::string address;                          // the address from which it asks
  bool known = false;                           // a worker of this id exists
  bool alive = false;                           // connected, or was until just now
  absl::Time connected = absl::InfinitePast();  // time of the last connection
};

class JoinTable {
 public:
  static constexpr absl::Duration kLongestLife = absl::Hours(24 * 366);
  static constexpr int kMostUses = 1'000'000;
  static constexpr int kMostAddresses = 64;

  // `records` must outlive the table.
  JoinTable(JoinRecords* records, std::vector<v1::JoinTokenRecord> tokens,
            std::vector<v1::JoinedWorkerRecord> workers, const JoinLimits& limits = {});

  // True when the text has the form of a join token.
  static bool IsJoinToken(absl::string_view text);
  // UNAUTHENTICATED: the token is not valid. The message says that it expired or was revoked only
  // if the token is genuine. Never waits for the disk.
  absl::StatusOr<v1::Principal> Authenticate(absl::string_view text, absl::Time now);
  // Does the same for a caller with a genuine service account's token. It uses the join token for
  // that account; of several, the one that ends last.
  absl::StatusOr<v1::Principal> AuthenticateAccount(const ServiceAccount& account, absl::Time now);
  // Checks that a token that was authenticated before is still valid.
  absl::Status CheckHolds(const std::string& name, absl::Time now);

  // Returns the response without `authority`. INVALID_ARGUMENT: the request. ALREADY_EXISTS:
  // another valid token lets the service account join another pool. RESOURCE_EXHAUSTED: there are
  // too many valid tokens.
  absl::StatusOr<v1::CreateJoinTokenResponse> Create(const v1::CreateJoinTokenRequest& request,
                                                     const v1::Principal& creator, absl::Time now);
  // By name, after `after`.
  std::vector<v1::JoinToken> List(const std::string& after, int limit);
  absl::StatusOr<v1::JoinToken> Revoke(const std::string& name, absl::Time now);

  // The pool to which the worker belongs from now on, with a certificate until `expire`.
  // INVALID_ARGUMENT: the id. UNAUTHENTICATED: the token is not valid. PERMISSION_DENIED: the token
  // is not for this id, address or worker. ALREADY_EXISTS: the worker is connected or has just
  // joined. RESOURCE_EXHAUSTED: the token is used up, or there are too many workers.
  absl::StatusOr<std::string> Join(const std::string& token, const JoinAsk& ask, absl::Time expire,
                                   absl::Time now);
  // Does the same for a worker that has joined. PERMISSION_DENIED unless it has the key with which
  // it joined.
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
  // Counts one worker less for the token.
  void Uncount(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);

  JoinRecords* const records_;
  const JoinLimits limits_;
  // Held while a record is stored. Authentication, on gRPC's own threads, needs only mutex_
  // meanwhile. Lock this one before mutex_.
  absl::Mutex writing_;
  absl::Mutex mutex_;
  std::map<std::string, v1::JoinTokenRecord> tokens_ ABSL_GUARDED_BY(mutex_);        // by name
  std::map<std::string, v1::JoinedWorkerRecord> workers_ ABSL_GUARDED_BY(writing_);  // by id
  // number of workers, by token
  std::map<std::string, size_t> joined_with_ ABSL_GUARDED_BY(writing_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_JOIN_TABLE_H_
