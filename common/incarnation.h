// The number of a start of a worker process. The coordinator takes the process with the highest
// number for the newest, and refuses older ones. A process chooses its own number, usually the
// seconds since 1970. A wrong clock, or somebody with the worker's certificate, can make the number
// as high as possible. Two rules still let the worker come back:
// - A refused process that was never let in takes the number after the known one.
// - Any number up to kMostIncarnation is accepted. Beyond it, only the number after the known one
//   is. So nobody reaches the end of the numbers.
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
// Counting on from kMostIncarnation never reaches a number above this one.
inline constexpr int64_t kNoIncarnation = kMostIncarnation + (int64_t{1} << 61);

// The refusal WORKER_SUPERSEDED (common/error_details.h) of `incarnation`, with the known number.
// `worker` is a name such as "workers/a".
absl::Status Superseded(absl::string_view worker, int64_t incarnation, int64_t known);
// The known number in such a refusal. Nullopt: it is another status.
std::optional<int64_t> KnownIncarnation(const absl::Status& status);

}  // namespace milepost

#endif  // MILEPOST_COMMON_INCARNATION_H_
