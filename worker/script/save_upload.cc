#include "worker/script/save_upload.h"

#include <spdlog/spdlog.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/memory_state/snapshot_claims.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kUploadPatience = absl::Minutes(5);
constexpr absl::Duration kUploadPause = absl::Milliseconds(500);

absl::StatusOr<std::string> UploadPart(Uploader& uploader, const Upload& upload,
                                       const std::function<bool()>& give_up) {
  const absl::Time deadline = Clock::Real()->Now() + kUploadPatience;
  while (true) {
    const UploadResult result = uploader.Run(upload);
    if (result.end == UploadEnd::kCommitted) return result.checkpoint;
    if (give_up()) return absl::CancelledError("told to leave");
    const absl::Time now = Clock::Real()->Now();
    if (result.end != UploadEnd::kRetry || now >= deadline) return result.status;
    uploader.AwaitConnection(now + kUploadPause);
  }
}

}  // namespace

Upload UploadOf(const SavingRank& saving, int64_t step, const std::vector<v1::TensorInfo>& tensors,
                const state::StateLayout& layout, const std::vector<state::TensorSlice>& slices) {
  Upload upload;
  upload.layout = &layout;
  upload.rank = saving.rank;
  upload.streams_of_rank = StreamsPerRank(layout.bytes(), saving.world);
  upload.chunks = state::SplitIntoChunks(layout, slices);
  v1::BeginCheckpointRequest& begin = upload.begin;
  begin.set_job(saving.job);
  begin.set_generation(saving.generation);
  begin.set_step(step);
  begin.set_bytes(layout.bytes());
  begin.set_streams(upload.streams_of_rank * saving.world);
  begin.mutable_tensors()->Assign(tensors.begin(), tensors.end());
  begin.mutable_state()->set_step(step);
  return upload;
}

absl::StatusOr<std::optional<std::string>> UploadSave(const Endpoint& coordinator,
                                                      const SavingRank& saving,
                                                      const SaveInMemory& save,
                                                      comm::Communicator& communicator,
                                                      const std::function<bool()>& give_up) {
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(save.tensors));
  const Upload upload = UploadOf(saving, save.step, save.tensors, layout, save.slices);
  Uploader uploader(coordinator, upload.streams_of_rank);
  const absl::StatusOr<std::string> name = UploadPart(uploader, upload, give_up);
  // It is one checkpoint: where one rank has seen it committed, all ranks' parts are there.
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> seen,
                      GatherBytes(name.ok() ? *name : "", communicator));
  for (const std::string& checkpoint : seen) {
    if (!checkpoint.empty()) return std::make_optional(checkpoint);
  }
  spdlog::warn("step {}, in the hosts' memory, could not be made a checkpoint: {}", save.step,
               std::string(name.status().message()));
  return std::optional<std::string>();
}

}  // namespace milepost::worker
