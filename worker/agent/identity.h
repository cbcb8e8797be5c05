// The worker's identity: a stable id, and an incarnation number that grows with every start. Both
// lie in the worker's data directory. Only one process at a time may use the directory.
//
//   MP_ASSIGN_OR_RETURN(Identity identity, Identity::Load(data_dir, /*wanted_id=*/"", now));
//
// The number is at least the seconds since 1970. So a worker is newer than the one before it when
// its host was installed anew under its certificate's id. The same holds when another process has
// used its id for a while and the worker starts again.
//
// The coordinator may still know a higher number. If it has never let this process in, the process
// continues from the higher number (common/incarnation.h).
//
// Blocks on a few small synced writes. The object holds the directory's lock until it is destroyed.
#ifndef MILEPOST_WORKER_AGENT_IDENTITY_H_
#define MILEPOST_WORKER_AGENT_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost::worker {

class Identity {
 public:
  // Makes the directory if it does not exist. With an empty `wanted_id` the id is the stored one.
  // At the first start it is the host's name and a random suffix. FAILED_PRECONDITION: another
  // process uses the directory, or it belongs to another id. INVALID_ARGUMENT: the id is not valid.
  // Other errors name the path and what failed.
  static absl::StatusOr<Identity> Load(const std::string& data_dir, const std::string& wanted_id,
                                       absl::Time now);

  const std::string& id() const { return id_; }
  int64_t incarnation() const { return incarnation_; }
  // Makes the number higher than `known`, from now on and for later starts. Errors name the path
  // and what failed; the number is then unchanged.
  absl::Status Exceed(int64_t known);

 private:
  UniqueFd lock_;
  std::string data_dir_;
  std::string id_;
  int64_t incarnation_ = 0;
};

// The id that a data directory belongs to. Empty: it has none yet. Blocks on the disk. Errors name
// the path and what failed.
absl::StatusOr<std::string> StoredWorkerId(const std::string& data_dir);

// This host's name; "host" when it has none that is a valid id.
std::string HostName();

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_IDENTITY_H_
