// Packs a folder, to be sent along with a job (`script.files`).
//
//   MP_ASSIGN_OR_RETURN(PackedFiles packed, PackFolder("/home/me/my-gpt"));
//   Send(packed.archive.get(), packed.sha256, packed.bytes);
//
// The same files give the same bytes: names are sorted, there are no owners and no times, and of
// the mode only whether it is a program. What .gitignore and .milepostignore name is left out,
// those of the folder, of folders in it, and .gitignore of those above it within its git
// repository. `.git` is always left out. Symbolic links are kept as they are; those that leave the
// folder are refused, and so are sockets, devices and FIFOs.
//
// INVALID_ARGUMENT: the folder, or something in it, cannot be sent; the message names it and says
// what to do. ABORTED: something has changed while it was read. Otherwise the error that errno
// gives. Blocks on the disk. Thread-safe.
#ifndef MILEPOST_COMMON_FILES_PACK_H_
#define MILEPOST_COMMON_FILES_PACK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files/archive_rules.h"
#include "common/unique_fd.h"

namespace milepost {

struct PackedFiles {
  UniqueFd archive;  // a temporary file without a name
  std::string sha256;
  int64_t bytes = 0;  // of the archive
  int64_t files = 0;
};

absl::StatusOr<PackedFiles> PackFolder(const std::string& folder, const ArchiveLimits& limits = {});

// Its second half: packs what ScanFolder has found there (folder_scan.h).
struct ScannedEntry;
absl::StatusOr<PackedFiles> PackScanned(const std::string& folder,
                                        const std::vector<ScannedEntry>& entries);

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_PACK_H_
