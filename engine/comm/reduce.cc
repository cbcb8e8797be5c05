#include "engine/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/check.h"

namespace milepost::comm {
namespace {

// Fits the first-level cache beside its source; a compile-time length lets the compiler vectorise.
constexpr size_t kBlock = 1024;

float Widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t Round(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;  // a NaN in `a` stays: it compares false
  }
};

template <typename T, typename Op>
void ReduceBlock(absl::Span<const char* const> sources, T* out, size_t begin, size_t count, Op op) {
  T sum[kBlock];
  std::memcpy(sum, reinterpret_cast<const T*>(sources[0]) + begin, count * sizeof(T));
  for (const char* source : sources.subspan(1)) {
    const T* values = reinterpret_cast<const T*>(source) + begin;
    if (count == kBlock) {
      for (size_t i = 0; i < kBlock; ++i) sum[i] = op(sum[i], values[i]);
    } else {
      for (size_t i = 0; i < count; ++i) sum[i] = op(sum[i], values[i]);
    }
  }
  std::memcpy(out + begin, sum, count * sizeof(T));
}

template <typename T, typename Op>
void Reduce(absl::Span<const char* const> sources, char* out, size_t count, Op op) {
  for (size_t begin = 0; begin < count; begin += kBlock) {
    ReduceBlock(sources, reinterpret_cast<T*>(out), begin, std::min(kBlock, count - begin), op);
  }
}

template <typename T>
void Reduce(absl::Span<const char* const> sources, char* out, size_t count, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    Reduce<T>(sources, out, count, Sum());
  } else {
    Reduce<T>(sources, out, count, Max());
  }
}

}  // namespace

size_t ElementBytes(ElementType type) {
  return type == ElementType::kBf16 ? 2 : type == ElementType::kFloat ? 4 : 8;
}

void ReduceInOrder(absl::Span<const char* const> sources, char* out, size_t count, ElementType type,
                   ReduceOp op) {
  MP_CHECK(!sources.empty());
  switch (type) {
    case ElementType::kFloat:
      return Reduce<float>(sources, out, count, op);
    case ElementType::kDouble:
      return Reduce<double>(sources, out, count, op);
    case ElementType::kInt64:
      return Reduce<int64_t>(sources, out, count, op);
    case ElementType::kBf16:
      MP_CHECK(op == ReduceOp::kSum);
      return SumBf16InOrder(sources, reinterpret_cast<float*>(out), count);
  }
}

void SumBf16InOrder(absl::Span<const char* const> sources, float* out, size_t count) {
  uint16_t bits[kBlock];
  float sum[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    for (size_t s = 0; s < sources.size(); ++s) {
      std::memcpy(bits, sources[s] + 2 * begin, 2 * n);
      if (s == 0) {
        for (size_t i = 0; i < n; ++i) sum[i] = Widen(bits[i]);
      } else {
        for (size_t i = 0; i < n; ++i) sum[i] += Widen(bits[i]);
      }
    }
    std::memcpy(out + begin, sum, n * sizeof(float));
  }
}

void RoundInPlace(absl::Span<float> values) {
  uint16_t bits[kBlock];
  char* out = reinterpret_cast<char*>(values.data());
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, values.size() - begin);
    for (size_t i = 0; i < n; ++i) bits[i] = Round(values[begin + i]);
    std::memcpy(out + 2 * begin, bits, 2 * n);
  }
}

void WidenInPlace(absl::Span<float> values) {
  uint16_t bits[kBlock];
  const char* in = reinterpret_cast<const char*>(values.data());
  for (size_t blocks = (values.size() + kBlock - 1) / kBlock; blocks > 0; --blocks) {
    const size_t begin = (blocks - 1) * kBlock;
    const size_t n = std::min(kBlock, values.size() - begin);
    std::memcpy(bits, in + 2 * begin, 2 * n);
    for (size_t i = 0; i < n; ++i) values[begin + i] = Widen(bits[i]);
  }
}

}  // namespace milepost::comm
