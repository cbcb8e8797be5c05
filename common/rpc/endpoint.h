// Where a coordinator is, and how this process shows who it is.
//
//   Endpoint("127.0.0.1:7070")                                     // loopback: plain text
//   MP_ASSIGN_OR_RETURN(auto credentials, WorkerCredentials("/etc/milepost/tls"));
//   auto channel = MakeChannel(Endpoint("trainer-head:7070", credentials));
//
// TLS is 1.3 and nothing older, whatever the other side offers. Files are read again once a second
// or so: what replaces them counts for connections that are made from then on.
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
  // Implicit: an address alone is an endpoint in plain text.
  Endpoint(std::string host_and_port,  // NOLINT
           std::shared_ptr<grpc::ChannelCredentials> its = nullptr)
      : address(std::move(host_and_port)), credentials(std::move(its)) {}
  Endpoint(const char* host_and_port) : address(host_and_port) {}  // NOLINT

  // "host:port". Of a coordinator also several, with commas between: common/rpc/coordinators.h.
  std::string address;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // nullptr: plain text
};

// "a:1, b:2" -> {"a:1", "b:2"}; at least one, which may be empty.
std::vector<std::string> SplitAddresses(absl::string_view addresses);

// INVALID_ARGUMENT: one of them has no host or no port, for which gRPC would take 443.
absl::Status CheckAddresses(absl::string_view addresses);

// What to do about a connection that failed with these words of gRPC's, after "; "; empty: they say
// it.
std::string TlsRemedy(absl::string_view message);

// True for "127.0.0.1:7070", "[::1]:7070", "localhost:7070": what never leaves this host. Of
// several: none does.
bool IsLoopback(absl::string_view address);

// A folder that holds one identity: the names that Kubernetes and cert-manager give the files.
struct TlsFolder {
  explicit TlsFolder(std::string folder) : path(std::move(folder)) {}
  std::string authority() const { return path + "/ca.crt"; }  // that signs the others
  std::string certificate() const { return path + "/tls.crt"; }
  std::string key() const { return path + "/tls.key"; }
  std::string path;
};

// Who may write a private key may put his own there, and who may read it may be whose it is. A
// group may be the one that a secret was mounted for. PERMISSION_DENIED otherwise.
absl::Status CheckPrivateKeyMode(const std::string& path);

// What is in them.
struct TlsFiles {
  std::string authority;
  std::string certificate;
  std::string key;
};

// They and CheckTlsFolder's error.
absl::StatusOr<TlsFiles> ReadTlsFolder(const TlsFolder& folder);

// That its files can be read, hold what their names say, and belong together; that nobody else may
// read the key. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT: the file and what is wrong.
absl::Status CheckTlsFolder(const TlsFolder& folder);

// The certificate in `folder` as a client's. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT: the
// file and what is wrong. One object per process: each keeps a thread.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(
    const std::string& folder);

// A user's: the server is checked against the authority in `ca_file`, and the token goes with every
// call. `token` may be empty.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> UserCredentials(
    const std::string& ca_file, const std::string& token);

// The certificate in `folder` as a server's. Clients may show a certificate; one that the authority
// has not signed, or not for a client, ends the connection. `count` of them, for as many ports of
// one server: its files are watched once for all.
absl::StatusOr<std::vector<std::shared_ptr<grpc::ServerCredentials>>> CoordinatorCredentials(
    const std::string& folder, int count = 1);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_ENDPOINT_H_
