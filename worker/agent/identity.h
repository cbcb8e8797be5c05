// Who this worker is: a stable id and an incarnation number that grows with every start, both kept
// in the worker's data directory, which one process at a time may use.
//
//   MP_ASSIGN_OR_RETURN(Identity identity, Identity::Load(data_dir, /*wanted_id=*/"", now));
//
// The number is at least the seconds since 1970: a worker whose host was installed anew, under the
// id of its certificate, is newer than the one before; so is one that is started again after
// another process had taken its id for a while.
//
// Where the coordinator knows a higher number all the same, a process that it has never let in goes
// on from that one (common/incarnation.h).
//
// Blocks on a few small synced writes. The lock is held until the object is gone.
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
  // Makes the directory if it is not there. `wanted_id` empty: the stored id, or at the first start
  // the host's name and a random suffix. FAILED_PRECONDITION: another process has the directory, or
  // it is another id's; INVALID_ARGUMENT: not a valid id; others: the path and what failed.
  static absl::StatusOr<Identity> Load(const std::string& data_dir, const std::string& wanted_id,
                                       absl::Time now);

  const std::string& id() const { return id_; }
  int64_t incarnation() const { return incarnation_; }
  // From now on, and for later starts, the number is higher than `known`. Errors: the path and what
  // failed; the number is as it was.
  absl::Status Exceed(int64_t known);

 private:
  UniqueFd lock_;
  std::string data_dir_;
  std::string id_;
  int64_t incarnation_ = 0;
};

// The id that a data directory belongs to; empty: it has none yet. Blocks on the disk. Errors: the
// path and what failed.
absl::StatusOr<std::string> StoredWorkerId(const std::string& data_dir);

// This host's name; "host" when it has none that is a valid id.
std::string HostName();

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_IDENTITY_H_
