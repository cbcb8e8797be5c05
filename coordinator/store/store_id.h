// Which store a directory holds: a name in its file `store-id` that no other one has. A directory
// that should be mounted and is not has none.
//
//   MP_ASSIGN_OR_RETURN(const std::string id, MakeStoreId("/srv/milepost"));   // once
//   MP_ASSIGN_OR_RETURN(const std::string here, ReadStoreId("/srv/milepost"));
//
// Calls block on the disk.
#ifndef MILEPOST_COORDINATOR_STORE_STORE_ID_H_
#define MILEPOST_COORDINATOR_STORE_STORE_ID_H_

#include <string>

#include "absl/status/statusor.h"

namespace milepost::coordinator {

// Empty: it has none, or is not there. DATA_LOSS: the file is empty or cannot be read.
absl::StatusOr<std::string> ReadStoreId(const std::string& dir);

// Makes the directory if need be. ALREADY_EXISTS: it has a name.
absl::StatusOr<std::string> MakeStoreId(const std::string& dir);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_STORE_ID_H_
