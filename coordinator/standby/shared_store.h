// Whether a directory is the store that the coordinators of a cluster share: one that is not
// mounted looks like a new one. etcd keeps the store's name (coordinator/store/store_id.h).
//
//   MP_ASSIGN_OR_RETURN(bool known, CheckSharedStore(&etcd, "/milepost/coordinator", dir));
//   MP_RETURN_IF_ERROR(ClaimSharedStore(&etcd, "/milepost/coordinator", dir));   // elected
//
// FAILED_PRECONDITION: it is not, and nothing may be done in it: the directory is another store
// than etcd's, or it has neither a name nor a store that a coordinator has worked in. Other errors:
// etcd's, and the disk's. Calls block on both, for a few seconds at most on etcd.
#ifndef MILEPOST_COORDINATOR_STANDBY_SHARED_STORE_H_
#define MILEPOST_COORDINATOR_STANDBY_SHARED_STORE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/election/etcd_client.h"

namespace milepost::coordinator {

// Changes nothing. False: etcd knows of no store; it is new, or has lost its data.
absl::StatusOr<bool> CheckSharedStore(EtcdClient* etcd, const std::string& key,
                                      const std::string& dir);

// The same, by the winner of an election under `key`: a store of a single coordinator gets a name,
// and etcd notes it.
absl::Status ClaimSharedStore(EtcdClient* etcd, const std::string& key, const std::string& dir);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STANDBY_SHARED_STORE_H_
