// What this user knows of coordinators: their authority and the token to show them.
//
// The file is ~/.config/milepost/credentials (or under $XDG_CONFIG_HOME), JSON, 0600. It is refused
// when others can read or write it. Beside it lie copies of the authorities' certificates.
#ifndef MILEPOST_CLIENT_CLI_LOGIN_H_
#define MILEPOST_CLIENT_CLI_LOGIN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/endpoint.h"

namespace milepost::client {

struct Login {
  std::string coordinator;  // host:port
  std::string authority;    // file of the certificate that signs the coordinator's; empty: no TLS
  std::string token;
  std::string project;  // for new jobs; empty: "default"
};

// The folder; empty where neither XDG_CONFIG_HOME nor HOME is set.
std::string LoginFolder();

// Of the coordinator at `address`, or of the one that was logged in to last when that is empty.
// Nothing set but the address: nothing is known. PERMISSION_DENIED: others may read the file.
absl::StatusOr<Login> FindLogin(const std::string& address);

// Keeps it, as the one logged in to last, with a copy of its authority.
absl::Status SaveLogin(const Login& login);

// The login as the environment changes it: MILEPOST_CA, MILEPOST_TOKEN, MILEPOST_PROJECT.
Login WithEnvironment(Login login);

// FAILED_PRECONDITION when the address is not of this host and no authority is known: nothing is
// sent there in plain text; or when there is a token but no authority.
absl::StatusOr<Endpoint> EndpointOf(const Login& login);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOGIN_H_
