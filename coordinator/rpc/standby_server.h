// What a coordinator is while another one is active: it listens, its health is NOT_SERVING, and
// every call ends at once with UNAVAILABLE and a message that says where the active one is.
//
//   MP_ASSIGN_OR_RETURN(auto standby, StandbyServer::Start("10.0.0.2:7070", tls_dir));
//   standby->SetActive("10.0.0.1:7070");
//
// Thread-safe.
#ifndef MILEPOST_COORDINATOR_RPC_STANDBY_SERVER_H_
#define MILEPOST_COORDINATOR_RPC_STANDBY_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace milepost::coordinator {

class StandbyServer {
 public:
  // Listening when it returns. Errors as those of CoordinatorServer::Start about its address.
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(const std::string& listen,
                                                              const std::string& tls_dir);
  // Stops within a few milliseconds; the address is free then.
  ~StandbyServer();

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }
  // Empty: none is known.
  void SetActive(const std::string& address);

 private:
  class Service;
  struct Rpc;
  explicit StandbyServer(std::unique_ptr<Rpc> rpc);

  std::unique_ptr<Rpc> rpc_;
  std::string address_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_STANDBY_SERVER_H_
