#include "worker/script/tensor_union.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

constexpr int64_t kMostListBytes = int64_t{256}
                                   << 20;  // of all ranks' lists, each padded to the longest

// What a rank says first: enough where all are alike.
struct Heading {
  int64_t step = 0;
  int64_t bytes = 0;
  uint64_t digest = 0;
};

absl::Status CheckSteps(const std::vector<Heading>& headings) {
  for (size_t rank = 1; rank < headings.size(); ++rank) {
    if (headings[rank].step == headings[0].step) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks save different steps: rank 0 step ", headings[0].step, ", rank ", rank, " step ",
        headings[rank].step, "; every rank of the job must call save() at the same steps"));
  }
  return absl::OkStatus();
}

bool SameTensor(const v1::TensorInfo& a, const v1::TensorInfo& b) {
  return a.dtype() == b.dtype() &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end());
}

class Union {
 public:
  absl::Status Add(int rank, const v1::BeginCheckpointRequest& list) {
    for (const v1::TensorInfo& tensor : list.tensors()) {
      const auto [found, added] =
          known_.try_emplace({tensor.name(), tensor.kind()}, tensors_.size(), rank);
      if (added) {
        tensors_.push_back(tensor);
      } else if (!SameTensor(tensors_[found->second.first], tensor)) {
        return absl::FailedPreconditionError(
            absl::StrCat("tensor ", tensor.name(), " has another shape or dtype on rank ", rank,
                         " than on rank ", found->second.second));
      }
    }
    return absl::OkStatus();
  }
  std::vector<v1::TensorInfo> Take() { return std::move(tensors_); }

 private:
  std::vector<v1::TensorInfo> tensors_;
  // Name and kind, to the place in the list and the first rank that has it.
  std::map<std::pair<std::string, std::string>, std::pair<size_t, int>> known_;
};

}  // namespace

absl::StatusOr<std::vector<v1::TensorInfo>> AgreeOnTensors(comm::Communicator& communicator,
                                                           int64_t step,
                                                           const std::vector<v1::TensorInfo>& own) {
  v1::BeginCheckpointRequest list;
  list.mutable_tensors()->Assign(own.begin(), own.end());
  const std::string bytes = list.SerializeAsString();
  const auto world = static_cast<size_t>(communicator.world());
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<Heading> headings(world);
  headings[rank] = {step, static_cast<int64_t>(bytes.size()), Xxh3(bytes)};
  MP_RETURN_IF_ERROR(communicator.AllGather(headings.data(), world * sizeof(Heading)));
  MP_RETURN_IF_ERROR(CheckSteps(headings));
  size_t longest = 0;
  bool alike = true;
  for (const Heading& other : headings) {
    longest = std::max(longest, static_cast<size_t>(other.bytes));
    alike = alike && other.digest == headings[0].digest && other.bytes == headings[0].bytes;
  }
  if (alike) return own;
  if (static_cast<int64_t>(longest * world) > kMostListBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ranks' lists of tensors are too long: ", longest, " bytes on one of ",
                     world, " ranks; save fewer and larger tensors"));
  }
  std::string all(longest * world, '\0');
  std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<int64_t>(rank * longest));
  MP_RETURN_IF_ERROR(communicator.AllGather(all.data(), all.size()));
  Union joined;
  for (size_t i = 0; i < world; ++i) {
    v1::BeginCheckpointRequest other;
    if (!other.ParseFromArray(all.data() + i * longest, static_cast<int>(headings[i].bytes))) {
      return absl::InternalError(absl::StrCat("the tensors of rank ", i, " are unreadable"));
    }
    MP_RETURN_IF_ERROR(joined.Add(static_cast<int>(i), other));
  }
  return joined.Take();
}

}  // namespace milepost::worker
