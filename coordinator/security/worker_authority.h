// Signs the certificates of workers that join with a token.
//
//   MP_ASSIGN_OR_RETURN(WorkerAuthority authority, WorkerAuthority::Open({.dir = "/etc/pki/ca",
//                                                                         .tls_dir = tls_dir}));
//   MP_ASSIGN_OR_RETURN(KeyPair keys, authority.Read());
//   MP_ASSIGN_OR_RETURN(v1::WorkerCertificate made,
//                       authority.Issue(keys, "gpu-01", "a100", request, now));
//
// Files are read each time, so replaced files count from then on. Thread-safe. Blocks on the disk.
#ifndef MILEPOST_COORDINATOR_SECURITY_WORKER_AUTHORITY_H_
#define MILEPOST_COORDINATOR_SECURITY_WORKER_AUTHORITY_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/pki/certificate.h"
#include "milepost/v1/join.pb.h"

namespace milepost::coordinator {

inline constexpr size_t kMostRequestBytes = 16 << 10;

struct WorkerAuthorityOptions {
  std::string dir;      // holds ca.crt and ca.key
  std::string tls_dir;  // the coordinator's folder; its ca.crt says whom it trusts
  absl::Duration lifetime = absl::Hours(24 * 7);
};

class WorkerAuthority {
 public:
  // Errors are those of Read.
  static absl::StatusOr<WorkerAuthority> Open(WorkerAuthorityOptions options);

  // NOT_FOUND, PERMISSION_DENIED: a file is missing, or others may read the key. INVALID_ARGUMENT:
  // the files do not belong together. FAILED_PRECONDITION: the coordinator does not trust what this
  // authority signs.
  absl::StatusOr<KeyPair> Read() const;

  // INVALID_ARGUMENT: the request is malformed.
  absl::StatusOr<v1::WorkerCertificate> Issue(const KeyPair& keys, const std::string& worker_id,
                                              const std::string& pool, const std::string& request,
                                              absl::Time now) const;

  // The authority that a joining host is to trust: the coordinator's ca.crt.
  absl::StatusOr<std::string> Trusted() const;
  // The lifetime of a certificate.
  absl::Duration lifetime() const { return options_.lifetime; }

 private:
  explicit WorkerAuthority(WorkerAuthorityOptions options) : options_(std::move(options)) {}
  // `path`: of the authority's certificate.
  absl::Status CheckTrusted(const std::string& certificate, const std::string& path) const;

  WorkerAuthorityOptions options_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_WORKER_AUTHORITY_H_
