#include "engine/kernels/cpu/matmul.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

// One product against fp64: the factors as the kernel sees them, the result within the rounding of
// C.
template <typename T, typename C>
void CheckProduct(MatmulSpec spec, double f32_tolerance = 1e-5,
                  bool bf16_products = HasBf16Products()) {
  spec.a = spec.b = kDTypeOf<T>;
  spec.c = kDTypeOf<C>;
  SCOPED_TRACE(testing::Message() << spec.m << "x" << spec.n << "x" << spec.k << " ta"
                                  << spec.transpose_a << " tb" << spec.transpose_b << " acc"
                                  << spec.accumulate << " bias" << spec.bias << " packed"
                                  << spec.packed_b << " bf16 products " << bf16_products);
  const auto a = RandomVector<T>(spec.m * spec.k, 1);
  const auto b = RandomVector<T>(spec.k * spec.n, 2);
  const auto bias = RandomVector<float>(spec.n, 3);
  const auto before = RandomVector<C>(spec.m * spec.n, 4);
  auto c = before;

  MatmulCache cache(bf16_products);
  const absl::StatusOr<size_t> bytes = cache.WorkspaceBytes(spec);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  AlignedBuffer workspace(*bytes);
  AlignedBuffer packed(spec.packed_b ? *cache.PackedWeightBytes(spec) : 0);
  const void* weight = b.data();
  if (spec.packed_b) {
    ASSERT_TRUE(cache.PackWeight(spec, b.data(), packed.data(), workspace.data()).ok());
    weight = packed.data();
  }
  const absl::Status status =
      cache.Execute(spec, a.data(), weight, bias.data(), c.data(), workspace.data());
  ASSERT_TRUE(status.ok()) << status;

  const double unit = kDTypeOf<C> == DType::kF32    ? f32_tolerance
                      : kDTypeOf<C> == DType::kBf16 ? 1.0 / 128
                                                    : 1.0 / 1024;
  for (int64_t i = 0; i < spec.m; ++i) {
    for (int64_t j = 0; j < spec.n; ++j) {
      double want = spec.bias ? bias[j] : 0.0;
      if (spec.accumulate) want += ToFloat(before[i * spec.n + j]);
      for (int64_t l = 0; l < spec.k; ++l) {
        want += double{ToFloat(a[spec.transpose_a ? l * spec.m + i : i * spec.k + l])} *
                ToFloat(b[spec.transpose_b ? j * spec.k + l : l * spec.n + j]);
      }
      ASSERT_NEAR(ToFloat(c[i * spec.n + j]), want, unit * (1 + std::abs(want)))
          << "at " << i << "," << j;
    }
  }
}

constexpr int64_t kProducts[][3] = {{1, 1, 1}, {3, 17, 7}, {127, 33, 65}, {64, 96, 32}};

TEST(Matmul, EveryTransposeF32) {
  for (const auto& s : kProducts) {
    for (int flags = 0; flags < 16; ++flags) {
      CheckProduct<float, float>({.m = s[0],
                                  .n = s[1],
                                  .k = s[2],
                                  .transpose_a = (flags & 1) != 0,
                                  .transpose_b = (flags & 2) != 0,
                                  .accumulate = (flags & 4) != 0,
                                  .bias = (flags & 8) != 0});
    }
  }
}

TEST(Matmul, Bf16ToBf16AndToF32) {
  for (const auto& s : kProducts) {
    for (int flags = 0; flags < 8; ++flags) {
      const MatmulSpec spec{.m = s[0],
                            .n = s[1],
                            .k = s[2],
                            .transpose_a = (flags & 1) != 0,
                            .transpose_b = (flags & 2) != 0,
                            .accumulate = (flags & 4) != 0};
      CheckProduct<bf16, float>(spec);
      CheckProduct<bf16, bf16>(spec);
    }
  }
}

// Pieces of 1024 rows and columns, blocks of 96 rows and 128 of the inner dimension go through
// fp32.
template <typename T>
void CheckWidenedProducts() {
  for (const auto& s : kProducts) {
    for (int flags = 0; flags < 16; ++flags) {
      const MatmulSpec spec{.m = s[0],
                            .n = s[1],
                            .k = s[2],
                            .transpose_a = (flags & 1) != 0,
                            .transpose_b = (flags & 2) != 0,
                            .accumulate = (flags & 4) != 0,
                            .bias = (flags & 8) != 0};
      CheckProduct<T, float>(spec, 1e-5, false);
      CheckProduct<T, T>(spec, 1e-5, false);
    }
  }
  for (int flags = 0; flags < 8; ++flags) {
    MatmulSpec spec{.m = 6,
                    .n = 5,
                    .k = 1100,
                    .transpose_a = (flags & 1) != 0,
                    .transpose_b = (flags & 2) != 0,
                    .accumulate = (flags & 4) != 0,
                    .bias = true};
    CheckProduct<T, T>(spec, 3e-5, false);
    CheckProduct<T, float>(spec, 3e-5, false);
    spec.m = 1043, spec.k = 9;
    CheckProduct<T, T>(spec, 1e-5, false);
    spec.m = 7, spec.n = 1030;
    CheckProduct<T, float>(spec, 1e-5, false);
  }
}

class WidenedProducts : public OnEveryTarget {};
TEST_P(WidenedProducts, OfHalves) { CheckWidenedProducts<f16>(); }
TEST_P(WidenedProducts, OfBf16) { CheckWidenedProducts<bf16>(); }

TEST_P(WidenedProducts, HaveTheSameBitsWithAnyNumberOfThreads) {
  for (const bool transpose_a : {false, true}) {
    for (const int64_t m : {5, 203}) {
      const MatmulSpec spec{.m = m,
                            .n = 197,
                            .k = 300,
                            .transpose_a = transpose_a,
                            .a = DType::kF16,
                            .b = DType::kF16};
      const auto a = RandomVector<f16>(spec.m * spec.k, 1);
      const auto b = RandomVector<f16>(spec.k * spec.n, 2);
      std::vector<std::vector<float>> results;
      for (const int count : {1, 2, 3}) {
        const ThreadCount threads(count);
        MatmulCache cache;
        AlignedBuffer workspace(*cache.WorkspaceBytes(spec));
        auto& c = results.emplace_back(spec.m * spec.n);
        ASSERT_TRUE(
            cache.Execute(spec, a.data(), b.data(), nullptr, c.data(), workspace.data()).ok());
        EXPECT_TRUE(SameBits(c, results[0])) << count << " threads, " << m << " rows";
      }
    }
  }
}
MP_ON_EVERY_TARGET(WidenedProducts);

TEST(Matmul, WidenedProductsHaveBoundedScratch) {
  for (const int count : {1, 3}) {
    const ThreadCount threads(count);
    for (const bool transpose : {false, true}) {
      const MatmulSpec spec{.m = 50257,
                            .n = 65536,
                            .k = 100000,
                            .transpose_a = transpose,
                            .a = DType::kF16,
                            .b = DType::kF16,
                            .c = DType::kF16,
                            .bias = true,
                            .bias_type = DType::kF16};
      EXPECT_LE(*MatmulCache().WorkspaceBytes(spec), (81u << 20) / 10 + count * (54u << 10));
    }
  }
}

// A or C as some columns of a wider matrix: the same bits as the product of a copy, and no other
// column is touched.
template <typename T>
void CheckColumns(MatmulSpec dense, bool wide_a, bool wide_c) {
  dense.a = dense.b = kDTypeOf<T>;
  dense.c = kDTypeOf<T>;
  MatmulSpec wide = dense;
  const int64_t a_columns = dense.transpose_a ? dense.m : dense.k;
  const int64_t a_rows = dense.m * dense.k / a_columns;
  wide.a_row = wide_a ? a_columns + 13 : 0;
  wide.c_row = wide_c ? dense.n + 5 : 0;
  const int64_t a_row = wide_a ? wide.a_row : a_columns, c_row = wide_c ? wide.c_row : dense.n;
  const auto a = RandomVector<T>(a_rows * a_row, 1), b = RandomVector<T>(dense.k * dense.n, 2);
  const auto before = RandomVector<T>(dense.m * c_row, 3);
  std::vector<T> a_copy, want, got = before;
  for (int64_t i = 0; i < a_rows; ++i) {
    a_copy.insert(a_copy.end(), &a[i * a_row], &a[i * a_row] + a_columns);
  }
  for (int64_t i = 0; i < dense.m; ++i) {
    want.insert(want.end(), &before[i * c_row], &before[i * c_row] + dense.n);
  }
  MatmulCache cache;
  const absl::StatusOr<size_t> bytes = cache.WorkspaceBytes(dense);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  AlignedBuffer one(*bytes), other(*cache.WorkspaceBytes(wide));
  ASSERT_TRUE(cache.Execute(dense, a_copy.data(), b.data(), nullptr, want.data(), one.data()).ok());
  ASSERT_TRUE(cache.Execute(wide, a.data(), b.data(), nullptr, got.data(), other.data()).ok());
  for (int64_t i = 0; i < dense.m * c_row; ++i) {
    const int64_t column = i % c_row;
    const T expected = column < dense.n ? want[i / c_row * dense.n + column] : before[i];
    ASSERT_NEAR(ToFloat(got[i]), ToFloat(expected),
                (sizeof(T) == 4 ? 1e-5 : 1.0 / 64) * (1 + std::abs(ToFloat(expected))))
        << i / c_row << "," << column;
  }
}

TEST(Matmul, ColumnsOfAWiderMatrix) {
  for (int flags = 0; flags < 32; ++flags) {
    const MatmulSpec spec{.m = 37,
                          .n = 24,
                          .k = 19,
                          .transpose_a = (flags & 1) != 0,
                          .transpose_b = (flags & 2) != 0,
                          .accumulate = (flags & 4) != 0};
    CheckColumns<float>(spec, (flags & 8) != 0, (flags & 16) != 0);
    CheckColumns<bf16>(spec, (flags & 8) != 0, (flags & 16) != 0);
    CheckColumns<f16>(spec, (flags & 8) != 0, (flags & 16) != 0);
  }
  // Rows for every thread, rows split off, a long inner dimension.
  CheckColumns<float>({.m = 1100, .n = 8, .k = 16, .transpose_a = true}, true, true);
  CheckColumns<float>({.m = 4, .n = 8, .k = 5000}, true, true);
  CheckColumns<bf16>({.m = 4, .n = 8, .k = 17000}, true, false);
  CheckColumns<bf16>({.m = 4, .n = 8, .k = 17000}, true, true);
}

// Rows of wider matrices, against one product for each.
template <typename T>
void CheckRowsAlone(bool transpose_b, bool accumulate, bool bias) {
  MatmulSpec spec{.m = 5,
                  .n = 24,
                  .k = 19,
                  .transpose_b = transpose_b,
                  .a = kDTypeOf<T>,
                  .b = kDTypeOf<T>,
                  .c = kDTypeOf<T>,
                  .accumulate = accumulate,
                  .bias = bias,
                  .bias_type = kDTypeOf<T>,
                  .a_row = 23,
                  .c_row = 40,
                  .rows_alone = true};
  const auto a = RandomVector<T>(spec.m * spec.a_row, 1);
  const auto b = RandomVector<T>(spec.k * spec.n, 2);
  const auto biases = RandomVector<T>(spec.n, 3);
  auto c = RandomVector<T>(spec.m * spec.c_row, 4), want = c;
  MatmulCache cache;
  AlignedBuffer workspace(*cache.WorkspaceBytes(spec));
  ASSERT_TRUE(
      cache.Execute(spec, a.data(), b.data(), biases.data(), c.data(), workspace.data()).ok());
  spec.rows_alone = false;
  MatmulSpec one = spec;
  one.m = 1;
  AlignedBuffer own(*cache.WorkspaceBytes(one));
  for (int64_t row = 0; row < spec.m; ++row) {
    ASSERT_TRUE(cache
                    .Execute(one, a.data() + row * spec.a_row, b.data(), biases.data(),
                             want.data() + row * spec.c_row, own.data())
                    .ok());
  }
  EXPECT_TRUE(SameBits(c, want)) << transpose_b << accumulate << bias << " " << sizeof(T);
}

TEST(Matmul, RowsThatAreAloneHaveTheBitsOfEach) {
  for (int flags = 0; flags < 8; ++flags) {
    CheckRowsAlone<float>((flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0);
    CheckRowsAlone<bf16>((flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0);
    CheckRowsAlone<f16>((flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0);
  }
}

TEST(Matmul, RefusesRowsThatOverlap) {
  MatmulCache cache;
  for (const MatmulSpec& spec : {MatmulSpec{.m = 4, .n = 4, .k = 4, .a_row = 3},
                                 MatmulSpec{.m = 4, .n = 4, .k = 4, .c_row = 3}}) {
    EXPECT_EQ(cache.WorkspaceBytes(spec).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Matmul, PackedWeights) {
  for (bool transpose : {false, true}) {
    const MatmulSpec spec{
        .m = 65, .n = 48, .k = 33, .transpose_b = transpose, .bias = true, .packed_b = true};
    CheckProduct<float, float>(spec);
    if (HasBf16Products()) CheckProduct<bf16, bf16>(spec);
  }
}

// More rows than the split threshold, and no multiple of the tile: two primitives.
TEST(Matmul, TransposedRowsSplit) {
  const MatmulSpec spec{.m = 1357, .n = 24, .k = 19, .transpose_a = true, .accumulate = true};
  CheckProduct<float, float>(spec);
  CheckProduct<bf16, float>(spec);
}

// Wide and narrow results, of few and of many rows: two implementations.
TEST(Matmul, TransposedProductsOfEveryWidth) {
  for (const int64_t n : {440, 511, 512}) {
    for (const int64_t k : {5, 300}) {
      for (const bool accumulate : {false, true}) {
        const MatmulSpec spec{
            .m = 150, .n = n, .k = k, .transpose_a = true, .accumulate = accumulate};
        // Sums of 300 products are some 17, whatever is left of them.
        CheckProduct<float, float>(spec, 5e-5);
        CheckProduct<bf16, float>(spec, 5e-5);
        CheckProduct<bf16, bf16>(spec);
      }
    }
  }
}

// Every thread computes rows of its own; the last share of 2500 rows is split once more.
TEST(Matmul, TransposedRowsSharedByThreads) {
  for (const int count : {2, 3}) {
    const ThreadCount threads(count);
    for (const int64_t m : {383, 700, 2500}) {
      for (const bool flag : {false, true}) {
        const MatmulSpec spec{
            .m = m, .n = 24, .k = 19, .transpose_a = true, .accumulate = flag, .bias = flag};
        CheckProduct<float, float>(spec);
        CheckProduct<bf16, float>(spec);
      }
    }
  }
}

// An inner dimension that is cut into pieces: plain, with a bias, accumulating.
TEST(Matmul, LongInnerDimension) {
  for (bool transpose : {false, true}) {
    const MatmulSpec spec{.m = 5,
                          .n = 17,
                          .k = 20001,
                          .transpose_b = transpose,
                          .accumulate = transpose,
                          .bias = true};
    CheckProduct<float, float>(spec, 5e-5);
    CheckProduct<bf16, float>(spec, 5e-5);
    CheckProduct<bf16, bf16>(spec);
  }
}

TEST(Matmul, SameBitsEveryTime) {
  const MatmulSpec spec{.m = 200, .n = 160, .k = 300};
  const auto a = RandomVector<float>(spec.m * spec.k, 1);
  const auto b = RandomVector<float>(spec.k * spec.n, 2);
  std::vector<float> first(spec.m * spec.n), second(spec.m * spec.n);
  const ThreadCount threads(2);
  for (auto* c : {&first, &second}) {
    MatmulCache cache;
    AlignedBuffer workspace(*cache.WorkspaceBytes(spec));
    ASSERT_TRUE(cache.Execute(spec, a.data(), b.data(), nullptr, c->data(), workspace.data()).ok());
  }
  EXPECT_EQ(0, std::memcmp(first.data(), second.data(), first.size() * sizeof(float)));
}

TEST(Matmul, RefusesWhatItCannotDo) {
  MatmulCache cache(/*bf16_products=*/false);
  EXPECT_EQ(cache.WorkspaceBytes({.m = 0, .n = 1, .k = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.WorkspaceBytes({.m = 1, .n = 1, .k = 1, .c = DType::kBf16}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.WorkspaceBytes({.m = 1, .n = 1, .k = 1, .a = DType::kBf16}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.PackedWeightBytes({.m = 1, .n = 1, .k = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const MatmulSpec packed{
      .m = 2, .n = 2, .k = 2, .a = DType::kBf16, .b = DType::kBf16, .packed_b = true};
  EXPECT_EQ(cache.WorkspaceBytes(packed).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(cache.PackedWeightBytes(packed).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace milepost::kernels
