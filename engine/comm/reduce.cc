#include "engine/comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace milepost::comm {
namespace {

// Fits the first-level cache beside its source; a compile-time length lets the compiler vectorise.
constexpr size_t kBlock = 1024;

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

size_t ElementBytes(ElementType type) { return type == ElementType::kFloat ? 4 : 8; }

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
  }
}

}  // namespace milepost::comm
