// The address of a coordinator, and the credentials by which this process identifies itself.
//
//   Endpoint("127.0.0.1:7070")                                     // loopback: plain text
//   MP_ASSIGN_OR_RETURN(auto credentials, WorkerCredentials("/etc/milepost/tls"));
//   auto channel = MakeChannel(Endpoint("trainer-head:7070", credentials));
//
// TLS is always 1.3, whatever the other side offers. Files are read again about once a second, and
// new files apply to connections that are made later.
#ifndef MILEPOST_COMMON_RPC_ENDPOINT_H_
#define MILEPOST_COMMON_RPC_ENDPOINT_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost {

struct Endpoint {
  Endpoint() = default;
  // Implicit: a mere address is an endpoint in plain text.
  Endpoint(std::string host_and_port,  // NOLINT
           std::shared_ptr<grpc::ChannelCredentials> its = nullptr)
      : address(std::move(host_and_port)), credentials(std::move(its)) {}
  Endpoint(const char* host_and_port) : address(host_and_port) {}  // NOLINT

  // "host:port". For a coordinator also several, separated by commas: common/rpc/coordinators.h.
  std::string address;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // nullptr: plain text
};

// "a:1, b:2" -> {"a:1", "b:2"}. The result has at least one address, which may be empty.
std::vector<std::string> SplitAddresses(absl::string_view addresses);

// INVALID_ARGUMENT: an address has no host, or no port, for which gRPC would take 443.
absl::Status CheckAddresses(absl::string_view addresses);

// What to do about a connection that failed with gRPC's text `message`, after "; ". Empty: the text
// is enough.
std::string TlsRemedy(absl::string_view message);

// True for addresses whose traffic never leaves this host: "127.0.0.1:7070", "[::1]:7070",
// "localhost:7070". Several addresses must all be such.
bool IsLoopback(absl::string_view address);

// A folder that holds one identity. Its files have the names that Kubernetes and cert-manager use.
struct TlsFolder {
  explicit TlsFolder(std::string folder) : path(std::move(folder)) {}
  std::string authority() const { return path + "/ca.crt"; }  // signs the others
  std::string certificate() const { return path + "/tls.crt"; }
  std::string key() const { return path + "/tls.key"; }
  std::string path;
};

// PERMISSION_DENIED: the group or others may write the private key, or others may read it. Who may
// write it could replace it, and who may read it could pose as its owner. The group may read it,
// because a secret may be mounted for a group.
absl::Status CheckPrivateKeyMode(const std::string& path);

// The contents of the files.
struct TlsFiles {
  std::string authority;
  std::string certificate;
  std::string key;
};

// Returns the files' contents, or CheckTlsFolder's error.
absl::StatusOr<TlsFiles> ReadTlsFolder(const TlsFolder& folder);

// Checks that the files can be read, hold what their names say, and belong together. Also checks
// the key's mode (CheckPrivateKeyMode). NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT: the message
// has the file and what is wrong.
absl::Status CheckTlsFolder(const TlsFolder& folder);

// Client credentials from the certificate in `folder`. NOT_FOUND, PERMISSION_DENIED,
// INVALID_ARGUMENT: the message has the file and what is wrong. Make one object per process,
// because each keeps a thread.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(
    const std::string& folder);

// A user's credentials. The server is checked against the authority in `ca_file`, and every call
// carries the token. `token` may be empty.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> UserCredentials(
    const std::string& ca_file, const std::string& token);

// Server credentials from the certificate in `folder`. Clients may show a certificate. A
// certificate that the authority did not sign, or not for a client, ends the connection. Returns
// `count` of them, for as many ports of one server, which share one watch of the files.
absl::StatusOr<std::vector<std::shared_ptr<grpc::ServerCredentials>>> CoordinatorCredentials(
    const std::string& folder, int count = 1);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_ENDPOINT_H_
