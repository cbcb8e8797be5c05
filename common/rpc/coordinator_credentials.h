// A coordinator's certificate, for several doors of one server.
#ifndef MILEPOST_COMMON_RPC_COORDINATOR_CREDENTIALS_H_
#define MILEPOST_COMMON_RPC_COORDINATOR_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost {

// `count` of them, each as CoordinatorCredentials(folder) has it (common/rpc/endpoint.h). The files
// are watched once for all.
absl::StatusOr<std::vector<std::shared_ptr<grpc::ServerCredentials>>> CoordinatorCredentials(
    const std::string& folder, int count);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_COORDINATOR_CREDENTIALS_H_
