#include "engine/kernels/cpu/vector_product.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class VectorProducts : public OnEveryTarget {};
MP_ON_EVERY_TARGET(VectorProducts);

template <typename T, typename C>
void Check(int64_t n, int64_t k, bool transpose_b, bool with_bias) {
  SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << (transpose_b ? " transposed" : "")
                                  << (with_bias ? " bias" : "") << " bytes " << sizeof(T) << " -> "
                                  << sizeof(C));
  const auto x = RandomVector<T>(k, 1);
  const auto b = RandomVector<T>(n * k, 2);
  const auto bias = RandomVector<T>(n, 3);
  std::vector<double> expected(n);
  for (int64_t j = 0; j < n; ++j) {
    expected[j] = with_bias ? ToFloat(bias[j]) : 0;
    for (int64_t i = 0; i < k; ++i) {
      expected[j] += static_cast<double>(ToFloat(x[i])) *
                     static_cast<double>(ToFloat(b[transpose_b ? j * k + i : i * n + j]));
    }
  }
  std::vector<C> y(n);
  AlignedBuffer workspace(VectorProductWorkspaceBytes(1, n));
  const VectorProductArgs<T> args{.x = x.data(),
                                  .b = b.data(),
                                  .bias = with_bias ? bias.data() : nullptr,
                                  .n = n,
                                  .k = k,
                                  .transpose_b = transpose_b};
  VectorProduct(args, y.data(), workspace.data());
  ExpectClose(y, expected, sizeof(C) == 4 ? 1e-5 : kTolerance<C>, "y");
}

TEST_P(VectorProducts, MatchTheDefinitionOnOddSizes) {
  for (bool transposed : {false, true}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {67, 19}, {200, 33}, {65, 8}}) {
      Check<float, float>(n, k, transposed, true);
      Check<bf16, bf16>(n, k, transposed, true);
      Check<bf16, float>(n, k, transposed, false);
      Check<f16, f16>(n, k, transposed, true);
      Check<f16, float>(n, k, transposed, false);
    }
  }
}

// Rows of wider matrices, of which each is as it is by itself.
template <typename T, typename C>
void CheckRows(int64_t rows, int64_t n, int64_t k, bool transpose_b) {
  SCOPED_TRACE(testing::Message() << rows << " rows, n " << n << " k " << k
                                  << (transpose_b ? " transposed" : "") << " bytes " << sizeof(T)
                                  << " -> " << sizeof(C));
  const int64_t x_row = k + 3, y_row = n + 5;
  const auto x = RandomVector<T>(rows * x_row, 1);
  const auto b = RandomVector<T>(n * k, 2);
  const auto bias = RandomVector<T>(n, 3);
  const std::vector<C> before(rows * y_row, C{});
  std::vector<C> y = before, want = before;
  AlignedBuffer workspace(VectorProductWorkspaceBytes(rows, n));
  VectorProductArgs<T> args{.x = x.data(),
                            .b = b.data(),
                            .bias = bias.data(),
                            .n = n,
                            .k = k,
                            .transpose_b = transpose_b,
                            .rows = rows,
                            .x_row = x_row,
                            .y_row = y_row};
  VectorProduct(args, y.data(), workspace.data());
  args.rows = 1;
  for (int64_t row = 0; row < rows; ++row) {
    args.x = x.data() + row * x_row;
    VectorProduct(args, want.data() + row * y_row, workspace.data());
  }
  EXPECT_TRUE(SameBits(y, want));
}

TEST_P(VectorProducts, OfSeveralRowsAreThoseOfEach) {
  for (bool transposed : {false, true}) {
    for (int64_t rows : {2, 3, 5, 8, 64, 70}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {67, 19}, {203, 333}}) {
        CheckRows<float, float>(rows, n, k, transposed);
        CheckRows<bf16, bf16>(rows, n, k, transposed);
        CheckRows<bf16, float>(rows, n, k, transposed);
        CheckRows<f16, f16>(rows, n, k, transposed);
      }
    }
    CheckRows<float, float>(3, 4300, 40, transposed);  // more columns than are summed at once
  }
}

}  // namespace
}  // namespace milepost::kernels
