// Copies of a TLS folder's files in memory, which gRPC watches instead of the files.
//
//   MP_ASSIGN_OR_RETURN(const TlsPaths paths, MirrorTlsFolder(TlsFolder("/etc/milepost/tls")));
//   FileWatcherCertificateProvider(paths.key, paths.certificate, paths.authority, 1);
//
// gRPC 1.51 ends the process when it reads an empty certificate or key. A file that is copied over
// another is empty for a moment. The copies change, one by one, only when the three files are
// usable together (CheckTlsFolder). One thread checks all folders once a second, as long as the
// process lives. Thread-safe. Blocks on the disk.
#ifndef MILEPOST_COMMON_RPC_TLS_MIRROR_H_
#define MILEPOST_COMMON_RPC_TLS_MIRROR_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/endpoint.h"

namespace milepost {

// Names in /proc of files in memory. Only this process has them.
struct TlsPaths {
  std::string key;
  std::string certificate;
  std::string authority;
};

// Returns paths of the present files, the same paths for the same folder. Errors are
// CheckTlsFolder's.
absl::StatusOr<TlsPaths> MirrorTlsFolder(const TlsFolder& folder);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_TLS_MIRROR_H_
