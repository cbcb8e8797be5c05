// `milepost-coordinator init-pki`: makes a private authority for a cluster, in a folder.
//
//   DIR/ca/           ca.crt ca.key        the authority: keep the key away from the network
//   DIR/coordinator/  ca.crt tls.crt tls.key admin-token.sha256
//   DIR/workers/ID/   ca.crt tls.crt tls.key
//   DIR/client/       ca.crt admin-token   for the first `milepost auth login`
//
// Folders have mode 0700. Files have 0600, except certificates.
#ifndef MILEPOST_COORDINATOR_SECURITY_INIT_PKI_H_
#define MILEPOST_COORDINATOR_SECURITY_INIT_PKI_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

inline constexpr char kAdminTokenFile[] = "admin-token.sha256";

struct PkiRequest {
  std::string dir;
  // Names and addresses by which the coordinator is reached. localhost and 127.0.0.1 are added.
  // Empty: those of the existing certificate.
  std::vector<std::string> hosts;
  std::vector<std::string> workers;  // ids
  absl::Duration lifetime;           // of all certificates except the authority's
};

// Makes what is missing, and issues the certificates of the coordinator and of `workers` anew. The
// authority, the admin token and every existing private key are kept. Each file is replaced
// atomically. Returns one line for each thing that was made. Blocks on the disk.
absl::StatusOr<std::vector<std::string>> InitPki(const PkiRequest& request, absl::Time now);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_INIT_PKI_H_
