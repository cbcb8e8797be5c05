// What may be in an archive of files that are sent along with a job, for whoever makes one and
// whoever unpacks it. Pure and thread-safe.
//
// An archive is a tar file (pax, where a name needs it), not compressed: so it unpacks to no more
// than its own size. It holds folders, files and symbolic links, each folder before what is in it.
#ifndef MILEPOST_COMMON_FILES_ARCHIVE_RULES_H_
#define MILEPOST_COMMON_FILES_ARCHIVE_RULES_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

struct ArchiveLimits {
  int64_t bytes = int64_t{256} << 20;  // of all files together
  int64_t entries = 20'000;            // files, folders and links
};
inline constexpr size_t kMostArchivePath = 1024;
inline constexpr size_t kMostArchiveName = 255;  // of one part of a path

// "src/train.py": relative, without "." and "..", of bounded length. INVALID_ARGUMENT says what is
// wrong, without the path.
absl::Status CheckArchivePath(absl::string_view path);

// Whether a link at `path` stays within the folder, wherever other such links lead: relative, and
// no more ".." than there are folders above it, all at its beginning. INVALID_ARGUMENT as above.
absl::Status CheckArchiveLink(absl::string_view path, absl::string_view target);

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_ARCHIVE_RULES_H_
