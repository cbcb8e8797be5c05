#include "engine/runtime/gpu/backend/op_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/dtype/fp8.h"
#include "engine/dtype/half.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;

constexpr int64_t kFew = 256;

template <typename T>
double Number(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return ToFloat(value);
  }
}

// Calls visit with `data` as a pointer to its elements.
template <typename Visit>
auto ByType(DType dtype, const void* data, const Visit& visit) {
  switch (dtype) {
    case DType::kBf16:
      return visit(static_cast<const bf16*>(data));
    case DType::kF16:
      return visit(static_cast<const f16*>(data));
    case DType::kF64:
      return visit(static_cast<const double*>(data));
    case DType::kI32:
      return visit(static_cast<const int32_t*>(data));
    case DType::kU8:
      return visit(static_cast<const uint8_t*>(data));
    case DType::kI64:
      return visit(static_cast<const int64_t*>(data));
    case DType::kE4M3:
      return visit(static_cast<const e4m3*>(data));
    case DType::kE5M2:
      return visit(static_cast<const e5m2*>(data));
    default:
      return visit(static_cast<const float*>(data));
  }
}

// Equal infinities, and what is no number on both sides, are alike.
double Distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::abs(a - b);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

template <typename T>
TensorDiff CompareAs(const T* cpu, const T* device, int64_t elements, const DiffOptions& options) {
  const auto* before = static_cast<const T*>(options.before);
  const auto value = [&](const T* values, int64_t i) {
    return before == nullptr ? Number(values[i]) : Number(values[i]) - Number(before[i]);
  };
  double apart = 0, norm = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const double want = value(cpu, i), distance = Distance(value(device, i), want);
    apart += distance * distance;
    if (std::isfinite(want)) norm += want * want;
  }
  TensorDiff diff;
  if (elements == 0) return diff;
  const double least = std::max(options.least_norm, 1e-15);
  diff.error = std::sqrt(apart) / std::max(std::sqrt(norm), least);
  const double rms = std::max(std::sqrt(norm), least) / std::sqrt(static_cast<double>(elements));
  const DiffBounds& bounds = options.bounds;
  for (int64_t i = 0; i < elements; ++i) {
    const double want = value(cpu, i), distance = Distance(value(device, i), want);
    const double own = std::isfinite(want) ? std::abs(want) : 0;
    const double may = bounds.of_rms * rms + bounds.of_own * own;
    const double outlier = distance == 0 ? 0 : distance / may;
    if (i > 0 && !(outlier > diff.outlier)) continue;
    diff.outlier = outlier;
    diff.worst = i;
  }
  diff.cpu = Number(cpu[diff.worst]);
  diff.device = Number(device[diff.worst]);
  return diff;
}

const char* PhaseName(graph::Phase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "update", "recompute"};
  return kNames[static_cast<int>(phase)];
}

std::string TensorText(const OpDiff::Tensor& tensor) {
  return absl::StrCat(tensor.name, " ", Name(tensor.dtype), "[", absl::StrJoin(tensor.shape, ","),
                      "]");
}

// Above 1: it differs.
double Nearness(const OpDiff::Result& result) {
  return std::max(result.diff.error / result.bounds.error, result.diff.outlier);
}

// "[2,5]" of element 13 of [4,5].
std::string PlaceText(const graph::Shape& shape, int64_t element) {
  std::vector<int64_t> place(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t size = std::max<int64_t>(shape[i], 1);
    place[i] = element % size;
    element /= size;
  }
  return absl::StrCat("[", absl::StrJoin(place, ","), "]");
}

std::string OperandText(const OpDiff::Operand& operand) {
  const Statistics& s = operand.statistics;
  return absl::StrFormat(
      "  reads  %s  %g to %g, mean %g, rms %g%s\n", TensorText(operand.tensor), s.least, s.most,
      s.mean, s.rms, s.not_numbers == 0 ? "" : absl::StrCat(", ", s.not_numbers, " no numbers"));
}

}  // namespace

Statistics StatisticsOf(DType dtype, const void* data, int64_t elements) {
  return ByType(dtype, data, [&](const auto* values) {
    Statistics found;
    double sum = 0, squares = 0;
    int64_t numbers = 0;
    for (int64_t i = 0; i < elements; ++i) {
      const double value = Number(values[i]);
      if (!std::isfinite(value)) {
        ++found.not_numbers;
        continue;
      }
      found.least = numbers == 0 ? value : std::min(found.least, value);
      found.most = numbers == 0 ? value : std::max(found.most, value);
      sum += value;
      squares += value * value;
      ++numbers;
    }
    if (numbers == 0) return found;
    found.mean = sum / static_cast<double>(numbers);
    found.rms = std::sqrt(squares / static_cast<double>(numbers));
    return found;
  });
}

double Norm(DType dtype, const void* data, int64_t elements) {
  const Statistics found = StatisticsOf(dtype, data, elements);
  return found.rms * std::sqrt(static_cast<double>(elements - found.not_numbers));
}

TensorDiff Compare(DType dtype, const void* cpu, const void* device, int64_t elements,
                   const DiffOptions& options) {
  return ByType(dtype, cpu, [&](const auto* values) {
    return CompareAs(values, static_cast<decltype(values)>(device), elements, options);
  });
}

DiffBounds BoundsOf(const graph::Op& op, DType compute_dtype, DType dtype, int64_t elements,
                    bool changed) {
  const bool wide = dtype == DType::kF32 || dtype == DType::kF64;
  // A change is small beside what is changed, and rounded with it; a code, or 16 bits, may become
  // the neighbour of what the CPU made of it.
  if (changed) return wide ? DiffBounds{1e-3, 0.1, 0.1} : DiffBounds{0.25, 64, 64};
  // Scalars have nothing to do with each other.
  if (dtype == DType::kF64 && op.phase == graph::Phase::kUpdate) return {1e-5, 0, 1e-5};
  // Fifteen products after each other, of which none is well conditioned; in bf16 what each leaves
  // is rounded, and some of it the other way.
  if (op.kind == OpKind::kOrthogonalize) {
    return compute_dtype == DType::kBf16 ? DiffBounds{2e-2, 0.2, 0.2}
                                         : DiffBounds{1e-4, 1e-2, 1e-2};
  }
  const bool half = compute_dtype == DType::kBf16 || compute_dtype == DType::kF16;
  if (!half || (wide && op.phase == graph::Phase::kUpdate)) return {1e-5, 1e-3, 1e-4};
  const double unit = compute_dtype == DType::kBf16 ? 1 : 1.0 / 8;
  DiffBounds bounds = {1.5e-3 * unit, 0.05 * unit, 0.05 * unit};
  // The CPU's rounds its probabilities.
  const bool attention = op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionBackward ||
                         op.kind == OpKind::kCachedAttention;
  // Of few elements many may be rounded the other way. The CPU rounds what goes into a fused GELU,
  // and what its gradient is multiplied by; a GPU, before they are added to 16 bits, a
  // convolution's gradient and products (cuBLASLt 13.1 on an H200).
  const int64_t operands = op.attributes.fp8 ? 4 : 1 + op.attributes.parts;
  const bool adds =
      op.kind == OpKind::kLinearBackwardInput && static_cast<int64_t>(op.inputs.size()) > operands;
  const bool rounds = elements < kFew || adds || op.attributes.gelu ||
                      op.kind == OpKind::kConvolutionBackwardWeights;
  if (rounds) bounds.error = 0x1p-8 * unit;
  if (attention) bounds.error = 6e-3 * unit;
  // A probability near 1/2 that is rounded the other way moves V's gradient by 2^-9 of an output's
  // gradient. That may have 30 times the rms of the gradients of Q, K and V together.
  if (op.kind == OpKind::kAttentionBackward) bounds.of_rms = 0.1 * unit;
  return bounds;
}

bool OpDiff::Differs() const {
  return std::any_of(results.begin(), results.end(),
                     [](const Result& result) { return result.Differs(); });
}

std::string Line(const OpDiff& op) {
  std::string text =
      absl::StrFormat("%4d  %-24s %-9s", op.index, graph::Name(op.kind), PhaseName(op.phase));
  const auto nearest =
      std::max_element(op.results.begin(), op.results.end(),
                       [](const auto& a, const auto& b) { return Nearness(a) < Nearness(b); });
  if (nearest == op.results.end()) return text;
  absl::StrAppendFormat(&text, " %-36s error %.1e  bound %.1e%s", nearest->tensor.name,
                        nearest->diff.error, nearest->bounds.error,
                        nearest->Differs() ? "  DIFFERS" : "");
  return text;
}

std::string Describe(const OpDiff& op) {
  std::string text =
      absl::StrFormat("step %d, micro-step %d, op %d: %s (%s)\n", op.step, op.micro_step, op.index,
                      graph::Name(op.kind), PhaseName(op.phase));
  for (const OpDiff::Operand& operand : op.operands) text += OperandText(operand);
  for (const OpDiff::Result& result : op.results) {
    absl::StrAppendFormat(
        &text,
        "  %s  %s  error %.2e, bound %.1e; worst at %s: %.9g on the CPU, %.9g on the device\n",
        result.Differs() ? "DIFFERS" : "makes  ", TensorText(result.tensor), result.diff.error,
        result.bounds.error, PlaceText(result.tensor.shape, result.diff.worst), result.diff.cpu,
        result.diff.device);
  }
  return text;
}

}  // namespace milepost::runtime
