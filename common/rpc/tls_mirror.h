// Copies, in memory, of a TLS folder's files, for gRPC to watch instead of the files.
//
//   MP_ASSIGN_OR_RETURN(const TlsPaths paths, MirrorTlsFolder(TlsFolder("/etc/milepost/tls")));
//   FileWatcherCertificateProvider(paths.key, paths.certificate, paths.authority, 1);
//
// gRPC 1.51 ends the process when it reads an empty certificate or key, and a file that is copied
// over another is empty for a moment. The copies change, each by itself, only to three files that
// are of use together (CheckTlsFolder). They are looked at once a second, by one thread for all
// folders, for as long as the process lives. Thread-safe. Blocks on the disk.
#ifndef MILEPOST_COMMON_RPC_TLS_MIRROR_H_
#define MILEPOST_COMMON_RPC_TLS_MIRROR_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/endpoint.h"

namespace milepost {

// Names in /proc of files in memory. This process alone has them.
struct TlsPaths {
  std::string key;
  std::string certificate;
  std::string authority;
};

// As they are now: an error as CheckTlsFolder's. The same paths for the same folder.
absl::StatusOr<TlsPaths> MirrorTlsFolder(const TlsFolder& folder);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_TLS_MIRROR_H_
