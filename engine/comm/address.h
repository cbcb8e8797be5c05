// The address of this host that collectives listen on.
#ifndef MILEPOST_ENGINE_COMM_ADDRESS_H_
#define MILEPOST_ENGINE_COMM_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace milepost::comm {

// Numeric ("127.0.0.1", "fe80::1%eth0"): the first address of the network interface `interface`,
// or, where that is empty, of `host`, a name or an address. INVALID_ARGUMENT names what does not
// exist. May block on the name service.
absl::StatusOr<std::string> ResolveAddress(const std::string& host, const std::string& interface);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_ADDRESS_H_
