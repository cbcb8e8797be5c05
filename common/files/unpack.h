// Unpacks an archive of pack.h. Whoever made the archive is not trusted: nothing is written outside
// the folder, and no more than the limits allow.
//
//   MP_RETURN_IF_ERROR(UnpackFiles(archive.get(), "/tmp/rank/files"));   // an empty folder
//
// Folders and files can then only be read, and programs be run; the folder itself too. Links are as
// in the archive, within the folder.
//
// INVALID_ARGUMENT: there is something in it that archive_rules.h does not allow, a name twice, a
// file in no folder, a sparse file, more than the limits, or it is no tar file or a part of one.
// The message names it. What was unpacked until then stays: the caller removes it. Otherwise the
// error that errno gives. Blocks on the disk. Thread-safe.
#ifndef MILEPOST_COMMON_FILES_UNPACK_H_
#define MILEPOST_COMMON_FILES_UNPACK_H_

#include <string>

#include "absl/status/status.h"
#include "common/files/archive_rules.h"

namespace milepost {

// `archive`: a file, which is read from its beginning.
absl::Status UnpackFiles(int archive, const std::string& folder, const ArchiveLimits& limits = {});

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_UNPACK_H_
