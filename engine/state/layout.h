// What a checkpoint holds, independent of ranks, ZeRO stages and padding: named tensors, and pieces
// of them as flat element intervals.
//
//   MP_ASSIGN_OR_RETURN(StateLayout layout, StateLayout::FromProto(manifest.tensors()));
//   MP_RETURN_IF_ERROR(CheckCoverage(layout, intervals));   // every element exactly once
//
// Pure: no files, threads or clock. Immutable objects are thread-safe.
#ifndef MILEPOST_ENGINE_STATE_LAYOUT_H_
#define MILEPOST_ENGINE_STATE_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/dtype/dtype.h"

namespace milepost::v1 {
class TensorInfo;
}

namespace milepost::state {

absl::StatusOr<DType> ParseDType(absl::string_view name);  // INVALID_ARGUMENT lists the names

// The kind of tensors that belong to the model but are not trained: a batch norm's running
// statistics. F32, or I64 for counts.
inline constexpr char kStatisticKind[] = "statistic";
// The kind of the scalings of tensors that are rounded to 8 bits. They are not part of the model. A
// run whose checkpoint has none begins with new ones.
inline constexpr char kScalingKind[] = "scaling";

// The kind of the averages of parameters over steps (train.ema): F32. A run whose checkpoint has
// none begins with the parameters.
inline constexpr char kAverageKind[] = "ema";

// Of gradients that travel as factors (train.powersgd), F32: what they have left out, as the ranks'
// mean, and the factors that the next step begins with. They are not part of the model. A run whose
// checkpoint has none, or factors of another rank, begins without.
inline constexpr char kErrorKind[] = "error";
inline constexpr char kFactorKind[] = "factor";

// Of the outer optimizer (train.sync), F32. A run whose checkpoint has none begins without.
inline constexpr char kOuterMomentumKind[] = "outer_momentum";

// One tensor of one kind.
struct TensorSpec {
  std::string name;  // "h.0.attn.c_attn.weight"
  // "master", "m", "v", "ema", "error", "factor", "outer_momentum", "statistic", "scaling"
  std::string kind;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t elements = 1;  // product of shape
};

// Elements [begin, end) of tensor `tensor`, flat and row-major. Counted in elements, never in
// bytes.
struct Interval {
  int32_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
  // Ordered by tensor, begin, end.
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm of clang-tidy 14.
  friend auto operator<=>(const Interval&, const Interval&) = default;
};

// An interval and its bytes. Element `begin` is at data[0].
struct TensorSlice {
  Interval interval;
  char* data = nullptr;
};

class StateLayout {
 public:
  // INVALID_ARGUMENT: an unknown dtype, a negative dimension, more than 2^60 bytes, or an empty or
  // doubled (name, kind).
  static absl::StatusOr<StateLayout> Create(std::vector<TensorSpec> tensors);
  // Takes any range of v1::TensorInfo. Include the proto's header to call it.
  template <typename TensorInfos>
  static absl::StatusOr<StateLayout> FromProto(const TensorInfos& infos);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const TensorSpec& tensor(int32_t index) const { return tensors_[index]; }
  int64_t bytes() const { return bytes_; }  // of all tensors

  int64_t BytesOf(const Interval& interval) const {
    return interval.size() * ByteSize(tensors_[interval.tensor].dtype);
  }
  // "wte.weight (m) [0, 1048576)"
  std::string Describe(const Interval& interval) const;
  // INVALID_ARGUMENT: the interval is empty or not inside its tensor.
  absl::Status CheckInterval(const Interval& interval) const;

 private:
  std::vector<TensorSpec> tensors_;
  int64_t bytes_ = 0;
};

absl::StatusOr<TensorSpec> TensorSpecFromProto(const v1::TensorInfo& info);
v1::TensorInfo TensorSpecToProto(const TensorSpec& spec);

// OK when the intervals cover every element of every tensor exactly once, in any order.
// FAILED_PRECONDITION names the tensor and the missing or doubled range, the first one in tensor
// order. INVALID_ARGUMENT: an interval is outside its tensor. O(n log n).
absl::Status CheckCoverage(const StateLayout& layout, absl::Span<const Interval> intervals);

// The intersection of wanted with held intervals. Wanted intervals must not overlap each other, nor
// held ones (CHECK). Results are sorted. `wanted` and `held` are indices into the inputs. O((n + m)
// log + results).
struct Overlap {
  Interval interval;
  int32_t wanted = 0;
  int32_t held = 0;
};
std::vector<Overlap> Intersect(absl::Span<const Interval> wanted, absl::Span<const Interval> held);

// Cuts intervals into chunks of at most `max_bytes`, on element boundaries, in the given order. An
// interval of several chunks is cut at multiples of the chunk's element count from its begin.
inline constexpr int64_t kChunkBytes = 1 << 20;
std::vector<TensorSlice> SplitIntoChunks(const StateLayout& layout,
                                         absl::Span<const TensorSlice> slices,
                                         int64_t max_bytes = kChunkBytes);

template <typename TensorInfos>
absl::StatusOr<StateLayout> StateLayout::FromProto(const TensorInfos& infos) {
  std::vector<TensorSpec> tensors;
  for (const auto& info : infos) {
    absl::StatusOr<TensorSpec> spec = TensorSpecFromProto(info);
    if (!spec.ok()) return std::move(spec).status();
    tensors.push_back(*std::move(spec));
  }
  return Create(std::move(tensors));
}

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_LAYOUT_H_
