// Where a rank is in its collective calls, by what PyTorch's flight recorder wrote.
// https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
//
//   const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
//   *position.mutable_collectives() = ReadRecords(json);
//
// Pure and thread-safe. Any JSON and any bytes are safe: what cannot be read is left out.
#ifndef MILEPOST_WORKER_SCRIPT_POSITION_FLIGHT_RECORD_H_
#define MILEPOST_WORKER_SCRIPT_POSITION_FLIGHT_RECORD_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/string_view.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::worker {

// At most these many groups of a rank are told of.
inline constexpr int kMostCollectiveGroups = 8;

struct RecordTime {
  int64_t ns = 0;  // when it was written, as Unix time
  // By a process that an exception out of such a call has ended. Gloo counts that call as one that
  // has ended.
  bool failed = false;
};

// Of one backend. P2P calls do not count. A rank that has made no call in the group of all ranks is
// told of as one that has begun none.
std::vector<v1::CollectivePosition> ReadRecord(const nlohmann::json& record,
                                               absl::string_view backend, const RecordTime& time);

// What python/at_start/sitecustomize.py writes:
// {"time_ns": ..., "failed": true, "gloo": record, "nccl": record}.
std::vector<v1::CollectivePosition> ReadRecords(const nlohmann::json& records);

// Keeps those that say most, at most kMostCollectiveGroups: that of all ranks is among them.
void KeepTelling(std::vector<v1::CollectivePosition>* positions);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_POSITION_FLIGHT_RECORD_H_
