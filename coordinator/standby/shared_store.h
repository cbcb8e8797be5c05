// Checks that a directory is the store that a cluster's coordinators share. A store that is not
// mounted looks like a new one. So etcd keeps the store's name (coordinator/store/store_id.h).
//
//   MP_ASSIGN_OR_RETURN(bool known, CheckSharedStore(&etcd, "/milepost/coordinator", dir));
//   MP_RETURN_IF_ERROR(ClaimSharedStore(&etcd, "/milepost/coordinator", dir));   // once elected
//
// FAILED_PRECONDITION: the directory is not the shared store, and nothing may be done in it. It is
// another store than etcd's, or it has neither a name nor a store that a coordinator has used.
// Other errors are those of etcd and of the disk. Calls block on both, on etcd for a few seconds at
// most.
#ifndef MILEPOST_COORDINATOR_STANDBY_SHARED_STORE_H_
#define MILEPOST_COORDINATOR_STANDBY_SHARED_STORE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/election/etcd_client.h"

namespace milepost::coordinator {

// Changes nothing. False: etcd knows no store, because it is new or has lost its data.
absl::StatusOr<bool> CheckSharedStore(EtcdClient* etcd, const std::string& key,
                                      const std::string& dir);

// Does the same for the winner of an election under `key`. In addition, a single coordinator's
// store gets a name, and etcd records it.
absl::Status ClaimSharedStore(EtcdClient* etcd, const std::string& key, const std::string& dir);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STANDBY_SHARED_STORE_H_
