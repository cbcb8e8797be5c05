#include "engine/state/layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::state {
namespace {

// Those of checkpoints.
constexpr DType kStateDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBf16,
                                  DType::kI64, DType::kI32, DType::kU8};
// Leaves room for sums and byte offsets in 64 bits.
constexpr int64_t kMaxStateBytes = int64_t{1} << 60;

// Product of the shape; the elements of a scalar are 1.
absl::StatusOr<int64_t> ElementsOf(const TensorSpec& tensor) {
  int64_t elements = 1;
  for (const int64_t dimension : tensor.shape) {
    if (dimension < 0 || __builtin_mul_overflow(elements, dimension, &elements) ||
        elements > kMaxStateBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " (", tensor.kind,
                                                     "): impossible dimension ", dimension));
    }
  }
  return elements;
}

// Indices of `intervals` sorted by (tensor, begin).
std::vector<int32_t> SortedOrder(absl::Span<const Interval> intervals) {
  std::vector<int32_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return intervals[a] < intervals[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Interval& before = intervals[order[i - 1]];
    const Interval& here = intervals[order[i]];
    MP_CHECK(before.tensor != here.tensor || before.end <= here.begin)
        << "overlapping intervals of tensor " << here.tensor << " at " << here.begin;
  }
  return order;
}

// Empty where they have none.
Interval CommonOf(const Interval& a, const Interval& b) {
  if (a.tensor != b.tensor) return {a.tensor, 0, 0};
  return {a.tensor, std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  std::string known;
  for (const DType dtype : kStateDTypes) {
    if (name == Name(dtype)) return dtype;
    absl::StrAppend(&known, known.empty() ? "" : ", ", Name(dtype));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", name, "'; known are ", known));
}

absl::StatusOr<StateLayout> StateLayout::Create(std::vector<TensorSpec> tensors) {
  StateLayout layout;
  absl::flat_hash_set<std::pair<std::string, std::string>> seen;
  for (TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || tensor.kind.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name, "' of kind '", tensor.kind, "': empty"));
    }
    if (!seen.emplace(tensor.name, tensor.kind).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " (", tensor.kind, ") is listed twice"));
    }
    MP_ASSIGN_OR_RETURN(tensor.elements, ElementsOf(tensor));
    layout.bytes_ += std::min(tensor.elements, kMaxStateBytes / 16) * ByteSize(tensor.dtype);
    if (tensor.elements > kMaxStateBytes / 16 || layout.bytes_ > kMaxStateBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the tensors up to ", tensor.name, " (",
                                                     tensor.kind, ") are larger than 2^60 bytes"));
    }
  }
  layout.tensors_ = std::move(tensors);
  return layout;
}

std::string StateLayout::Describe(const Interval& interval) const {
  const bool known =
      interval.tensor >= 0 && interval.tensor < static_cast<int32_t>(tensors_.size());
  return absl::StrCat(known ? tensors_[interval.tensor].name : "tensor ",
                      known ? absl::StrCat(" (", tensors_[interval.tensor].kind, ")")
                            : absl::StrCat(interval.tensor),
                      " [", interval.begin, ", ", interval.end, ")");
}

absl::Status StateLayout::CheckInterval(const Interval& interval) const {
  if (interval.tensor < 0 || interval.tensor >= static_cast<int32_t>(tensors_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(interval), ": there are ", tensors_.size(), " tensors"));
  }
  const int64_t elements = tensors_[interval.tensor].elements;
  if (interval.begin < 0 || interval.begin >= interval.end || interval.end > elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(interval), ": empty or outside the tensor's ", elements, " elements"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorSpec> TensorSpecFromProto(const v1::TensorInfo& info) {
  TensorSpec spec;
  spec.name = info.name();
  spec.kind = info.kind();
  auto dtype = ParseDType(info.dtype());
  if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("tensor ", info.name()));
  spec.dtype = *dtype;
  spec.shape.assign(info.shape().begin(), info.shape().end());
  MP_ASSIGN_OR_RETURN(spec.elements, ElementsOf(spec));
  return spec;
}

v1::TensorInfo TensorSpecToProto(const TensorSpec& spec) {
  v1::TensorInfo info;
  info.set_name(spec.name);
  info.set_kind(spec.kind);
  info.set_dtype(Name(spec.dtype));
  for (const int64_t dimension : spec.shape) info.add_shape(dimension);
  return info;
}

absl::Status CheckCoverage(const StateLayout& layout, absl::Span<const Interval> intervals) {
  for (const Interval& interval : intervals) MP_RETURN_IF_ERROR(layout.CheckInterval(interval));
  std::vector<Interval> sorted(intervals.begin(), intervals.end());
  std::sort(sorted.begin(), sorted.end());
  size_t next = 0;
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(layout.tensors().size()); ++tensor) {
    const int64_t elements = layout.tensor(tensor).elements;
    int64_t covered = 0;
    for (; next < sorted.size() && sorted[next].tensor == tensor; ++next) {
      const Interval& interval = sorted[next];
      if (interval.begin < covered) {
        return absl::FailedPreconditionError(
            absl::StrCat(layout.Describe({tensor, interval.begin, std::min(covered, interval.end)}),
                         " is there more than once"));
      }
      if (interval.begin > covered) break;
      covered = interval.end;
    }
    if (covered == elements) continue;
    const bool more = next < sorted.size() && sorted[next].tensor == tensor;
    return absl::FailedPreconditionError(absl::StrCat(
        layout.Describe({tensor, covered, more ? sorted[next].begin : elements}), " is missing"));
  }
  return absl::OkStatus();
}

std::vector<Overlap> Intersect(absl::Span<const Interval> wanted, absl::Span<const Interval> held) {
  const std::vector<int32_t> wanted_order = SortedOrder(wanted);
  const std::vector<int32_t> held_order = SortedOrder(held);
  std::vector<Overlap> overlaps;
  // Both are sorted and disjoint: step past whichever ends first.
  size_t w = 0, h = 0;
  while (w < wanted.size() && h < held.size()) {
    const Interval& a = wanted[wanted_order[w]];
    const Interval& b = held[held_order[h]];
    const Interval common = CommonOf(a, b);
    if (common.begin < common.end) overlaps.push_back({common, wanted_order[w], held_order[h]});
    if (std::pair(a.tensor, a.end) < std::pair(b.tensor, b.end)) {
      ++w;
    } else {
      ++h;
    }
  }
  return overlaps;
}

std::vector<TensorSlice> SplitIntoChunks(const StateLayout& layout,
                                         absl::Span<const TensorSlice> slices, int64_t max_bytes) {
  std::vector<TensorSlice> chunks;
  for (const TensorSlice& slice : slices) {
    const int64_t element = ByteSize(layout.tensor(slice.interval.tensor).dtype);
    const int64_t step = max_bytes / element;
    MP_CHECK(step >= 1) << "a chunk of " << max_bytes << " bytes holds no element";
    const auto [tensor, begin, end] = slice.interval;
    for (int64_t at = begin; at < end; at += step) {
      chunks.push_back(
          {{tensor, at, std::min(end, at + step)}, slice.data + (at - begin) * element});
    }
  }
  return chunks;
}

}  // namespace milepost::state
