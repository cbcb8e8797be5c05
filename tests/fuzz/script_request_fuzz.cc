// What a script posts to its rank: progress, checkpoints to save and to read.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "worker/script/checkpoint_request.h"
#include "worker/script/script_progress.h"

namespace milepost::worker {
namespace {

void CheckPieces(const std::vector<MemoryPiece>& pieces, const state::StateLayout& layout,
                 int64_t bytes) {
  for (const MemoryPiece& piece : pieces) {
    MP_CHECK(layout.CheckInterval(piece.interval).ok());
    MP_CHECK(piece.offset >= 0 && piece.offset <= bytes);
    MP_CHECK(layout.BytesOf(piece.interval) <= bytes - piece.offset);
  }
}

void Try(absl::string_view body) {
  ScriptProgress progress;
  if (progress.Take(body, absl::UnixEpoch()).ok()) {
    MP_CHECK(progress.progress().metrics_size() <= ScriptProgress::kMostMetrics);
    MP_CHECK(progress.progress().step() >= 0 && progress.progress().total_steps() >= 0);
  }
  const auto save = ParseSaveRequest(body);
  if (!save.ok()) return;
  const auto layout = state::StateLayout::FromProto(save->tensors);
  MP_CHECK(layout.ok());
  CheckPieces(save->pieces, *layout, save->memory.bytes);
  const auto read = ParseReadRequest(body, *layout);
  MP_CHECK(read.ok()) << "a save says all that a read does";
  CheckPieces(read->pieces, *layout, read->memory.bytes);
}

}  // namespace
}  // namespace milepost::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  milepost::worker::Try({reinterpret_cast<const char*>(data), size});
  return 0;
}
