// What this user knows about coordinators: their authority, and the token to send them.
//
// The file is ~/.config/milepost/credentials, or lies under $XDG_CONFIG_HOME; it is JSON with mode
// 0600. It is refused when others can read or write it. Copies of the authorities' certificates lie
// beside it. FindLogin and SaveLogin block on the disk.
#ifndef MILEPOST_CLIENT_CLI_LOGIN_H_
#define MILEPOST_CLIENT_CLI_LOGIN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/endpoint.h"

namespace milepost::client {

struct Login {
  std::string coordinator;  // host:port
  std::string authority;    // file of the certificate that signed the coordinator's; empty: no TLS
  std::string token;
  std::string project;  // for new jobs; empty: "default"
};

// The folder. Empty: neither XDG_CONFIG_HOME nor HOME is set.
std::string LoginFolder();

// The login for the coordinator at `address`; empty: for the last one logged in to. If nothing is
// known, only the address is set. PERMISSION_DENIED: others may read the file.
absl::StatusOr<Login> FindLogin(const std::string& address);

// Stores the login as the newest, with a copy of its authority.
absl::Status SaveLogin(const Login& login);

// Applies MILEPOST_CA, MILEPOST_TOKEN and MILEPOST_PROJECT to the login.
Login WithEnvironment(Login login);

// FAILED_PRECONDITION: the address is not of this host and no authority is known, as nothing is
// sent there in plain text. Or there is a token, but no authority.
absl::StatusOr<Endpoint> EndpointOf(const Login& login);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOGIN_H_
