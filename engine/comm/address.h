// The address of this host on which collectives listen.
#ifndef MILEPOST_ENGINE_COMM_ADDRESS_H_
#define MILEPOST_ENGINE_COMM_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace milepost::comm {

// Returns a numeric address ("127.0.0.1", "fe80::1%eth0"): the first address of the network
// interface `interface`. If that is empty, it is the first address of `host`, which is a name or an
// address. INVALID_ARGUMENT names what does not exist. May block on the name service.
absl::StatusOr<std::string> ResolveAddress(const std::string& host, const std::string& interface);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_ADDRESS_H_
