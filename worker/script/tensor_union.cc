#include "worker/script/tensor_union.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "milepost/v1/store.pb.h"

namespace milepost::worker {
namespace {

constexpr int64_t kMostListBytes = int64_t{256} << 20;  // of all ranks, each padded to the longest
constexpr int64_t kUnknownStep = -1;

using Tensors = std::vector<v1::TensorInfo>;

// What a rank says first.
struct Heading {
  int64_t step = kUnknownStep;
  int64_t bytes = 0;  // of its list
  int32_t durable = 1;
  int32_t owed = 0;
};

absl::Status CheckSteps(const std::vector<Heading>& headings) {
  for (size_t rank = 0; rank < headings.size(); ++rank) {
    if (headings[rank].step == kUnknownStep) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " could not say what it saves"));
    }
    if (headings[rank].step != headings[0].step) {
      return absl::FailedPreconditionError(
          absl::StrCat("the ranks save different steps: rank 0 step ", headings[0].step, ", rank ",
                       rank, " step ", headings[rank].step,
                       "; every rank of the job must call save() at the same steps"));
    }
    if (headings[rank].durable == headings[0].durable) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", headings[0].step, ": rank 0 and rank ", rank,
        " do not both want a durable save; every rank of the job must give the same `durable`"));
  }
  return absl::OkStatus();
}

bool SameTensor(const v1::TensorInfo& a, const v1::TensorInfo& b) {
  return a.dtype() == b.dtype() &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end());
}

// Tensors by name and kind.
class Numbered {
 public:
  // The tensor's number, a new one if it is not there yet. Nullopt: it is there in another form.
  std::optional<int32_t> Add(const v1::TensorInfo& tensor) {
    const auto [found, added] =
        numbers_.try_emplace({tensor.name(), tensor.kind()}, static_cast<int32_t>(tensors_.size()));
    if (added) tensors_.push_back(tensor);
    if (!SameTensor(tensors_[static_cast<size_t>(found->second)], tensor)) return std::nullopt;
    return found->second;
  }
  const Tensors& tensors() const { return tensors_; }

 private:
  Tensors tensors_;
  std::map<std::pair<std::string, std::string>, int32_t> numbers_;
};

// The tensors of all ranks, and what is saved of them.
class Union {
 public:
  explicit Union(const Tensors& rank_0) {
    for (const v1::TensorInfo& tensor : rank_0) all_.Add(tensor);
    first_ = static_cast<int32_t>(rank_0.size());
  }

  // `said` has the tensors that rank 0 lacks, numbered after rank 0's, and all pieces.
  absl::Status Add(size_t rank, const v1::StoredManifest& said) {
    std::vector<int32_t> numbers;
    for (const v1::TensorInfo& tensor : said.manifest().tensors()) {
      const std::optional<int32_t> number = all_.Add(tensor);
      if (!number) {
        return absl::FailedPreconditionError(absl::StrCat("tensor ", tensor.name(),
                                                          " has another shape or dtype on rank ",
                                                          rank, " than on a rank before it"));
      }
      numbers.push_back(*number);
    }
    for (const v1::StoredChunk& piece : said.chunks()) {
      const int32_t number = piece.tensor() < first_
                                 ? piece.tensor()
                                 : numbers.at(static_cast<size_t>(piece.tensor() - first_));
      pieces_.push_back({number, piece.begin(), piece.end()});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Tensors> Take() {
    MP_RETURN_IF_ERROR(CheckWhole({0, all_.tensors(), std::move(pieces_)}));
    return all_.tensors();
  }

 private:
  Numbered all_;
  int32_t first_ = 0;
  std::vector<state::Interval> pieces_;
};

// What this rank has that rank 0's list does not say.
v1::StoredManifest Difference(const RankState& own, const Tensors& rank_0) {
  v1::StoredManifest said;
  Numbered known;
  for (const v1::TensorInfo& tensor : rank_0) known.Add(tensor);
  std::vector<int32_t> numbers;
  for (const v1::TensorInfo& tensor : own.tensors) {
    const size_t before = known.tensors().size();
    const std::optional<int32_t> number = known.Add(tensor);
    if (!number || known.tensors().size() > before) {
      *said.mutable_manifest()->add_tensors() = tensor;
    }
    numbers.push_back(number.value_or(0));  // of another form: no rank will save
  }
  for (const state::Interval& piece : own.pieces) {
    v1::StoredChunk& chunk = *said.add_chunks();
    chunk.set_tensor(numbers[static_cast<size_t>(piece.tensor)]);
    chunk.set_begin(piece.begin);
    chunk.set_end(piece.end);
  }
  return said;
}

absl::StatusOr<Tensors> BroadcastTensors(comm::Communicator& communicator, std::string own,
                                         int64_t bytes) {
  if (bytes > kMostListBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the list of tensors has ", bytes, " bytes; save fewer and larger tensors"));
  }
  own.resize(static_cast<size_t>(bytes));
  MP_RETURN_IF_ERROR(communicator.Broadcast(own.data(), own.size(), 0));
  v1::CheckpointManifest list;
  if (!list.ParseFromString(own)) return absl::InternalError("rank 0's tensors are unreadable");
  return Tensors(list.tensors().begin(), list.tensors().end());
}

// Each rank's text.
absl::StatusOr<std::vector<std::string>> GatherTexts(comm::Communicator& communicator,
                                                     const std::string& own) {
  const auto world = static_cast<size_t>(communicator.world());
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<int64_t> sizes(world);
  sizes[rank] = static_cast<int64_t>(own.size());
  MP_RETURN_IF_ERROR(communicator.AllGather(sizes.data(), world * sizeof(int64_t)));
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  if (static_cast<int64_t>(longest * world) > kMostListBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "what the ranks save is too much to agree on: ", longest,
        " bytes of description on one of ", world, " ranks; save fewer and larger tensors"));
  }
  std::string all(longest * world, '\0');
  std::copy(own.begin(), own.end(), all.begin() + static_cast<int64_t>(rank * longest));
  MP_RETURN_IF_ERROR(communicator.AllGather(all.data(), all.size()));
  std::vector<std::string> texts;
  for (size_t i = 0; i < world; ++i) {
    texts.push_back(all.substr(i * longest, static_cast<size_t>(sizes[i])));
  }
  return texts;
}

}  // namespace

absl::Status CheckWhole(const RankState& state) {
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout,
                      state::StateLayout::FromProto(state.tensors));
  const absl::Status whole = state::CheckCoverage(layout, state.pieces);
  if (!absl::IsFailedPrecondition(whole)) return whole;
  return absl::FailedPreconditionError(
      absl::StrCat(whole.message(), ": what only some ranks have belongs into `per_rank`"));
}

absl::StatusOr<AgreedSave> AgreeOnSave(comm::Communicator& communicator,
                                       const absl::StatusOr<RankState>& own) {
  std::vector<Heading> headings(static_cast<size_t>(communicator.world()));
  v1::CheckpointManifest list;
  if (own.ok()) list.mutable_tensors()->Assign(own->tensors.begin(), own->tensors.end());
  std::string text = list.SerializeAsString();
  headings[static_cast<size_t>(communicator.rank())] = {
      .step = own.ok() ? own->step : kUnknownStep,
      .bytes = static_cast<int64_t>(text.size()),
      .durable = own.ok() && !own->durable ? 0 : 1,
      .owed = own.ok() && own->owed ? 1 : 0};
  MP_RETURN_IF_ERROR(communicator.AllGather(headings.data(), headings.size() * sizeof(Heading)));
  MP_RETURN_IF_ERROR(own.status());
  MP_RETURN_IF_ERROR(CheckSteps(headings));
  MP_ASSIGN_OR_RETURN(const Tensors rank_0,
                      BroadcastTensors(communicator, std::move(text), headings[0].bytes));
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      GatherTexts(communicator, Difference(*own, rank_0).SerializeAsString()));
  Union joined(rank_0);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    v1::StoredManifest said;
    if (!said.ParseFromString(texts[rank])) {
      return absl::InternalError(absl::StrCat("the tensors of rank ", rank, " are unreadable"));
    }
    MP_RETURN_IF_ERROR(joined.Add(rank, said));
  }
  MP_ASSIGN_OR_RETURN(Tensors tensors, joined.Take());
  const bool owed = std::any_of(headings.begin(), headings.end(),
                                [](const Heading& heading) { return heading.owed != 0; });
  return AgreedSave{std::move(tensors), own->durable || owed};
}

}  // namespace milepost::worker
