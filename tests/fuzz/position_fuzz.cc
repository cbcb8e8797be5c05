// What a rank's programs write of where they are: stacks, and PyTorch's record of collective calls.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "common/check.h"
#include "worker/script/position/flight_record.h"
#include "worker/script/position/python_stack.h"
#include "worker/script/position/unpickle.h"

namespace milepost::worker {
namespace {

void CheckPositions(std::vector<v1::CollectivePosition> positions) {
  KeepTelling(&positions);
  MP_CHECK(positions.size() <= kMostCollectiveGroups);
  for (const v1::CollectivePosition& one : positions) {
    MP_CHECK(one.begun() >= 0 && one.completed() >= 0);
    MP_CHECK(one.ByteSizeLong() < 1000);
    std::string bytes;
    MP_CHECK(one.SerializeToString(&bytes));
  }
}

void Try(absl::string_view text) {
  MP_CHECK(PlaceInStack(text, "/job").size() < 1000);
  CheckPositions(ReadRecords(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)));
  const auto record = Unpickle(text);
  if (record.ok()) CheckPositions(ReadRecord(*record, "nccl", {.ns = INT64_MAX, .failed = true}));
}

}  // namespace
}  // namespace milepost::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  milepost::worker::Try({reinterpret_cast<const char*>(data), size});
  return 0;
}
