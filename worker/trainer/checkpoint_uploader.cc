#include "worker/trainer/checkpoint_uploader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/trainer/checkpoint_copy.h"
#include "worker/trainer/upload_attempt.h"

namespace milepost::worker {

namespace {

state::StateLayout LayoutOf(const std::vector<v1::TensorInfo>& tensors) {
  absl::StatusOr<state::StateLayout> layout = state::StateLayout::FromProto(tensors);
  MP_CHECK(layout.ok()) << layout.status();
  return *std::move(layout);
}

}  // namespace

class CheckpointUploader::Impl {
 public:
  Impl(const Endpoint& coordinator, UploaderOptions options,
       const std::vector<runtime::StateInterval>& sources)
      : options_(std::move(options)),
        layout_(LayoutOf(options_.tensors)),
        streams_of_rank_(StreamsPerRank(layout_.bytes(), options_.world)),
        copy_bytes_(BytesOf(sources)),
        uploads_(coordinator, streams_of_rank_,
                 {.full_disk_retry = options_.full_disk_retry,
                  .prepare = [this] { return MakeCopy(); }}) {}

  absl::StatusOr<absl::Duration> Save(SourceParts sources, const v1::TrainerState& state,
                                      bool final) {
    const absl::Time begin = Clock::Real()->Now();
    MP_RETURN_IF_ERROR(uploads_.Claim(state.step()));
    absl::StatusOr<Upload> upload = Copy(sources);
    if (!upload.ok()) {
      uploads_.GiveUp();
      return upload.status();
    }
    Describe(state, &*upload);
    const absl::Duration held = Clock::Real()->Now() - begin;
    uploads_.Submit(*std::move(upload), final);
    return held;
  }

  BackgroundUpload& uploads() { return uploads_; }

 private:
  int64_t BytesOf(const runtime::StateInterval& interval) const {
    return layout_.BytesOf({interval.tensor, interval.begin, interval.end});
  }
  int64_t BytesOf(const std::vector<runtime::StateInterval>& intervals) const {
    int64_t bytes = 0;
    for (const runtime::StateInterval& interval : intervals) bytes += BytesOf(interval);
    return bytes;
  }

  // By the upload's thread.
  absl::Status MakeCopy() {
    MP_ASSIGN_OR_RETURN(copy_, CheckpointCopy::Make(copy_bytes_, options_.copy_folder));
    return absl::OkStatus();
  }

  absl::StatusOr<Upload> Copy(SourceParts sources) {
    std::vector<state::TensorSlice> slices;
    int64_t to = 0;
    MP_RETURN_IF_ERROR(sources([&](const std::vector<runtime::StateInterval>& part) {
      const int64_t begin = to;
      for (const runtime::StateInterval& source : part) {
        const int64_t bytes = BytesOf(source);
        MP_CHECK(to + bytes <= copy_.bytes()) << "the state grew";
        std::memcpy(copy_.data() + to, source.data, static_cast<size_t>(bytes));
        if (bytes > 0) {
          slices.push_back({{source.tensor, source.begin, source.end}, copy_.data() + to});
        }
        to += bytes;
      }
      copy_.Written(begin, to);
    }));
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return std::pair(a.interval.tensor, a.interval.begin) <
             std::pair(b.interval.tensor, b.interval.begin);
    });
    Upload upload;
    upload.chunks = state::SplitIntoChunks(layout_, slices);
    if (options_.copy_folder.empty()) return upload;
    for (const state::TensorSlice& chunk : upload.chunks) {
      const auto size = static_cast<size_t>(layout_.BytesOf(chunk.interval));
      upload.checksums.push_back(Xxh3(chunk.data, size));
    }
    return upload;
  }

  void Describe(const v1::TrainerState& state, Upload* upload) const {
    upload->layout = &layout_;
    upload->rank = options_.rank;
    upload->streams_of_rank = streams_of_rank_;
    v1::BeginCheckpointRequest& begin = upload->begin;
    begin.set_job(options_.job);
    begin.set_generation(options_.generation);
    begin.set_step(state.step());
    begin.set_bytes(layout_.bytes());
    begin.set_streams(streams_of_rank_ * options_.world);
    begin.mutable_tensors()->Assign(options_.tensors.begin(), options_.tensors.end());
    *begin.mutable_state() = state;
    begin.set_model_yaml(options_.model_yaml);
  }

  const UploaderOptions options_;
  const state::StateLayout layout_;
  const int streams_of_rank_;
  const int64_t copy_bytes_;
  CheckpointCopy copy_;       // made by the upload's thread; then written between Claim and Submit
  BackgroundUpload uploads_;  // last: it reads the copy
};

CheckpointUploader::CheckpointUploader(const Endpoint& coordinator, UploaderOptions options,
                                       const std::vector<runtime::StateInterval>& sources)
    : impl_(std::make_unique<Impl>(coordinator, std::move(options), sources)) {}

CheckpointUploader::~CheckpointUploader() = default;

absl::StatusOr<absl::Duration> CheckpointUploader::Save(SourceParts sources,
                                                        const v1::TrainerState& state, bool final) {
  return impl_->Save(sources, state, final);
}

absl::StatusOr<absl::Duration> CheckpointUploader::Save(
    const std::vector<runtime::StateInterval>& sources, const v1::TrainerState& state, bool final) {
  const auto whole = [&](absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)> copy) {
    copy(sources);
    return absl::OkStatus();
  };
  return impl_->Save(whole, state, final);
}

absl::Status CheckpointUploader::AwaitCopy() { return impl_->uploads().AwaitPrepared(); }

absl::Status CheckpointUploader::Wait(absl::Time deadline) {
  return impl_->uploads().Wait(deadline);
}

UploadState CheckpointUploader::State() const { return impl_->uploads().State(); }

}  // namespace milepost::worker
