// What is known of a script's environment before it runs.
#ifndef MILEPOST_COMMON_SPEC_SCRIPT_H_
#define MILEPOST_COMMON_SPEC_SCRIPT_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace milepost {

// True for a variable that each rank of a script is given (docs/use/scripts.md), so that a spec may
// not set it. Pure and thread-safe.
bool IsSetForScripts(absl::string_view name);

// True for the SHA-256 of files that are sent along (SentFiles): 64 hexadecimal digits in lower
// case, and so also a safe name of a file.
bool IsSha256Hex(absl::string_view text);

// The archive of such files is never larger: 256 MiB of files, and what archives add.
inline constexpr int64_t kMostSentBytes = int64_t{384} << 20;

// What a worker is told as the folder of a script with such files. One that knows them pays no heed
// to it. An older one finds no such folder, and the job fails and says so.
inline constexpr char kFolderOfSentFiles[] =
    "/files sent along with the job (its worker is too old for them)";

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_SCRIPT_H_
