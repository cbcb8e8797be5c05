// What of a folder is sent along with a job (pack.h). Internal to this folder.
#ifndef MILEPOST_COMMON_FILES_FOLDER_SCAN_H_
#define MILEPOST_COMMON_FILES_FOLDER_SCAN_H_

#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files/archive_rules.h"

namespace milepost {

struct ScannedEntry {
  std::string path;    // relative
  struct stat facts;   // as it was found
  std::string target;  // of a link
};

// Sorted by path, folders before what is in them. Errors as in pack.h.
absl::StatusOr<std::vector<ScannedEntry>> ScanFolder(const std::string& folder,
                                                     const ArchiveLimits& limits);

// The largest of what there is, for people: "data/ 3.1GiB, model.bin 512MiB". Pure.
std::string LargestOf(const std::vector<ScannedEntry>& entries);

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_FOLDER_SCAN_H_
