#include "engine/kernels/cpu/matmul_widened.h"

#include <algorithm>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"

namespace milepost::kernels {
namespace {

// A product of a whole piece is a gigaflop: widening its factors costs a few percent of that.
constexpr int64_t kRows = 512;
constexpr int64_t kColumns = 1024;
constexpr int64_t kInner = 1024;

size_t FloatBytes(int64_t elements) { return (elements * sizeof(float) + 63) / 64 * 64; }

}  // namespace

struct WidenedProduct::Piece {
  int64_t row, rows;
  int64_t column, columns;
  int64_t inner, depth;
};

struct WidenedProduct::Scratch {
  float* a;
  float* b;
  float* bias;
  float* c;
  char* products;
};

WidenedProduct::Scratch WidenedProduct::Carve(void* workspace) const {
  char* at = static_cast<char*>(workspace);
  const auto take = [&](int64_t elements) {
    char* const begin = at;
    at += FloatBytes(elements);
    return reinterpret_cast<float*>(begin);
  };
  const int64_t m = std::min(spec_.m, kRows);
  const int64_t n = std::min(spec_.n, kColumns);
  const int64_t k = std::min(spec_.k, kInner);
  Scratch scratch;
  scratch.a = take(m * k);
  scratch.b = take(k * n);
  scratch.bias = take(spec_.bias ? n : 0);
  scratch.c = take(Rounds() ? m * n : 0);
  scratch.products = at;
  return scratch;
}

size_t WidenedProduct::FixedBytes() const {
  return static_cast<size_t>(Carve(nullptr).products - static_cast<char*>(nullptr));
}

template <typename Visit>
absl::Status WidenedProduct::ForEachPiece(const Visit& visit) const {
  for (int64_t n = 0; n < spec_.n; n += kColumns) {
    for (int64_t m = 0; m < spec_.m; m += kRows) {
      for (int64_t k = 0; k < spec_.k; k += kInner) {
        MP_RETURN_IF_ERROR(
            visit(Piece{m, std::min(kRows, spec_.m - m), n, std::min(kColumns, spec_.n - n), k,
                        std::min(kInner, spec_.k - k)}));
      }
    }
  }
  return absl::OkStatus();
}

MatmulSpec WidenedProduct::SpecOf(const Piece& piece) const {
  const bool first = piece.inner == 0;
  return {.m = piece.rows,
          .n = piece.columns,
          .k = piece.depth,
          .transpose_a = spec_.transpose_a,
          .transpose_b = spec_.transpose_b,
          .accumulate = spec_.accumulate || !first,
          .bias = spec_.bias && first,
          .c_row = Rounds() ? 0 : CRow()};
}

absl::Status WidenedProduct::ForEachSpec(
    const std::function<absl::Status(const MatmulSpec&)>& visit) const {
  return ForEachPiece([&](const Piece& piece) { return visit(SpecOf(piece)); });
}

template <typename T>
void WidenedProduct::Widen(const Piece& p, const T* a, const T* b, const void* bias,
                           const Scratch& scratch) const {
  const int64_t a_row = spec_.a_row > 0 ? spec_.a_row : spec_.transpose_a ? spec_.m : spec_.k;
  if (spec_.transpose_a) {
    CastRowsToFloat(a + p.inner * a_row + p.row, a_row, p.depth, p.rows, scratch.a, p.rows);
  } else {
    CastRowsToFloat(a + p.row * a_row + p.inner, a_row, p.rows, p.depth, scratch.a, p.depth);
  }
  // One piece of B serves every row where the inner dimension is a single piece.
  if (p.row == 0 || spec_.k > kInner) {
    if (spec_.transpose_b) {
      CastRowsToFloat(b + p.column * spec_.k + p.inner, spec_.k, p.columns, p.depth, scratch.b,
                      p.depth);
    } else {
      CastRowsToFloat(b + p.inner * spec_.n + p.column, spec_.n, p.depth, p.columns, scratch.b,
                      p.columns);
    }
  }
  if (!spec_.bias || p.inner != 0) return;
  if (spec_.bias_type == kDTypeOf<T>) {
    CastToFloat(static_cast<const T*>(bias) + p.column, p.columns, scratch.bias);
  } else {
    std::copy_n(static_cast<const float*>(bias) + p.column, p.columns, scratch.bias);
  }
}

template <typename T>
absl::Status WidenedProduct::RunAs(MatmulCache& cache, const T* a, const T* b, const void* bias,
                                   void* c, void* workspace) const {
  const Scratch scratch = Carve(workspace);
  return ForEachPiece([&](const Piece& p) -> absl::Status {
    Widen(p, a, b, bias, scratch);
    const int64_t at = p.row * CRow() + p.column;
    if (!Rounds()) {
      return cache.Execute(SpecOf(p), scratch.a, scratch.b, scratch.bias,
                           static_cast<float*>(c) + at, scratch.products);
    }
    T* const out = static_cast<T*>(c) + at;
    if (spec_.accumulate && p.inner == 0) {
      CastRowsToFloat(out, CRow(), p.rows, p.columns, scratch.c, p.columns);
    }
    MP_RETURN_IF_ERROR(
        cache.Execute(SpecOf(p), scratch.a, scratch.b, scratch.bias, scratch.c, scratch.products));
    if (p.inner + p.depth < spec_.k) return absl::OkStatus();
    CastRowsFromFloat(scratch.c, p.columns, p.rows, p.columns, out, CRow());
    return absl::OkStatus();
  });
}

absl::Status WidenedProduct::Run(MatmulCache& cache, const void* a, const void* b, const void* bias,
                                 void* c, void* workspace) const {
  if (spec_.a == DType::kBf16) {
    return RunAs(cache, static_cast<const bf16*>(a), static_cast<const bf16*>(b), bias, c,
                 workspace);
  }
  return RunAs(cache, static_cast<const f16*>(a), static_cast<const f16*>(b), bias, c, workspace);
}

}  // namespace milepost::kernels
