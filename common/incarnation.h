// The number of a start of a worker process: the coordinator takes the process with the highest one
// for the newest, and refuses those before it. A process chooses its own, usually the seconds since
// 1970, so a wrong clock, or somebody who has the worker's certificate, can make one as high as it
// gets. Two rules let the worker come back all the same:
//
//   - A refused process that was never let in takes the number after the one that is known.
//   - Up to kMostIncarnation any number is taken; beyond it only the one after the one that is
//     known. Nobody reaches the end of the numbers so.
//
// Pure and thread-safe.
#ifndef MILEPOST_COMMON_INCARNATION_H_
#define MILEPOST_COMMON_INCARNATION_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr int64_t kMostIncarnation = int64_t{1} << 62;
// None is reached by counting on from there.
inline constexpr int64_t kNoIncarnation = kMostIncarnation + (int64_t{1} << 61);

// The refusal WORKER_SUPERSEDED (common/error_details.h) of `incarnation`, with the known number.
// `worker`: "workers/a".
absl::Status Superseded(absl::string_view worker, int64_t incarnation, int64_t known);
// That of a refusal; none: it is another status.
std::optional<int64_t> KnownIncarnation(const absl::Status& status);

}  // namespace milepost

#endif  // MILEPOST_COMMON_INCARNATION_H_
