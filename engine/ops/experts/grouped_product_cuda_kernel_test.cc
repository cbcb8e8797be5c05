#include "engine/ops/experts/grouped_product_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

// Of two rooms: rows of segments, and those behind them, which nobody touches.
struct GroupedCase {
  std::vector<int32_t> rows;  // of each segment
  int64_t experts;
  int64_t depth, columns;
  int64_t more_columns = 0;  // of other products in a row of y, or dy
  bool add = false;
};

template <typename T>
class GroupedProducts : public testing::Test {
 protected:
  explicit GroupedProducts() = default;

  struct Room {
    explicit Room(const GroupedCase& of)
        : offsets(Offsets(of)),
          rows(offsets.values().back() + 3),
          stride(of.columns + of.more_columns),
          x_values(RandomVector<T>(rows * of.depth, 1)),
          y_values(RandomVector<T>(rows * stride, 2)),
          weight_values(RandomVector<T>(of.experts * of.columns * of.depth, 3)),
          gradient_values(RandomVector<float>(of.experts * of.columns * of.depth, 4)),
          x(x_values),
          y(y_values),
          weights(weight_values),
          gradients(gradient_values),
          weights_at(Pointers<const T>(weights.data(), of)),
          gradients_at(Pointers<float>(gradients.data(), of)),
          segments{offsets.data(), static_cast<int64_t>(of.rows.size()), of.experts, rows} {}

    template <typename P>
    static std::vector<P*> Pointers(P* first, const GroupedCase& of) {
      std::vector<P*> pointers;
      for (int64_t e = 0; e < of.experts; ++e)
        pointers.push_back(first + e * of.columns * of.depth);
      return pointers;
    }
    static std::vector<int32_t> Offsets(const GroupedCase& of) {
      std::vector<int32_t> offsets = {0};
      for (const int32_t n : of.rows) offsets.push_back(offsets.back() + n);
      return offsets;
    }

    HostArray<int32_t> offsets;
    int64_t rows, stride;
    std::vector<T> x_values, y_values, weight_values;
    std::vector<float> gradient_values;
    HostArray<T> x, y, weights;
    HostArray<float> gradients;
    HostArray<const T*> weights_at;
    HostArray<float*> gradients_at;
    ExpertSegments segments;
  };

  // fn(row, expert) of each row of a segment.
  template <typename Fn>
  static void ForRows(const GroupedCase& of, const Fn& fn) {
    int64_t row = 0;
    for (size_t s = 0; s < of.rows.size(); ++s) {
      for (int32_t i = 0; i < of.rows[s]; ++i) fn(row++, static_cast<int64_t>(s) % of.experts);
    }
  }

  // Sums of `depth` products in fp32, and one rounding to T.
  static double Bar(double sum_of_sizes) { return (sizeof(T) == 4 ? 2e-6 : 4e-7) * sum_of_sizes; }
  static double Rounding() { return sizeof(T) == 4 ? 0 : kTolerance<T> / 2; }

  template <int kN>
  static void CheckForward(const GroupedCase& of) {
    Room room(of);
    const GroupedRows<T> p = {.segments = room.segments,
                              .x = room.x.data(),
                              .x_stride = of.depth,
                              .depth = of.depth,
                              .weights = room.weights_at.data(),
                              .y = room.y.data() + of.more_columns,
                              .y_stride = room.stride,
                              .columns = of.columns,
                              .add = of.add,
                              .packs = kN > 1};
    RunKernel(GroupedRowsKernel<T, kN, true>{p});
    std::vector<T> want = room.y_values;
    std::vector<double> bars(want.size(), 0);
    ForRows(of, [&](int64_t row, int64_t e) {
      for (int64_t m = 0; m < of.columns; ++m) {
        const int64_t at = row * room.stride + of.more_columns + m;
        double sum = of.add ? ToFloat(want[at]) : 0, sizes = std::abs(sum);
        for (int64_t k = 0; k < of.depth; ++k) {
          const double product = double{ToFloat(room.x_values[row * of.depth + k])} *
                                 ToFloat(room.weight_values[(e * of.columns + m) * of.depth + k]);
          sum += product;
          sizes += std::abs(product);
        }
        want[at] = FromFloat<T>(static_cast<float>(sum));
        bars[at] = Bar(sizes) + Rounding() * std::abs(sum);
      }
    });
    Expect(room.y.values(), want, bars);
  }

  template <int kN>
  static void CheckBackwardInput(const GroupedCase& of) {
    Room room(of);
    const GroupedRows<T> p = {.segments = room.segments,
                              .x = room.y.data() + of.more_columns,
                              .x_stride = room.stride,
                              .depth = of.columns,
                              .weights = room.weights_at.data(),
                              .y = room.x.data(),
                              .y_stride = of.depth,
                              .columns = of.depth,
                              .add = of.add,
                              .packs = kN > 1};
    RunKernel(GroupedRowsKernel<T, kN, false>{p});
    std::vector<T> want = room.x_values;
    std::vector<double> bars(want.size(), 0);
    ForRows(of, [&](int64_t row, int64_t e) {
      for (int64_t k = 0; k < of.depth; ++k) {
        const int64_t at = row * of.depth + k;
        double sum = of.add ? ToFloat(want[at]) : 0, sizes = std::abs(sum);
        for (int64_t m = 0; m < of.columns; ++m) {
          const double product =
              double{ToFloat(room.y_values[row * room.stride + of.more_columns + m])} *
              ToFloat(room.weight_values[(e * of.columns + m) * of.depth + k]);
          sum += product;
          sizes += std::abs(product);
        }
        want[at] = FromFloat<T>(static_cast<float>(sum));
        bars[at] = Bar(sizes) + Rounding() * std::abs(sum);
      }
    });
    Expect(room.x.values(), want, bars);
  }

  template <int kN>
  static void CheckBackwardWeight(const GroupedCase& of) {
    Room room(of);
    const GroupedWeights<T> p = {.segments = room.segments,
                                 .dy = room.y.data() + of.more_columns,
                                 .dy_stride = room.stride,
                                 .height = of.columns,
                                 .x = room.x.data(),
                                 .x_stride = of.depth,
                                 .width = of.depth,
                                 .gradients = room.gradients_at.data(),
                                 .add = of.add,
                                 .packs = kN > 1};
    RunKernel(GroupedWeightsKernel<T, kN>{p});
    const size_t count = room.gradient_values.size();
    std::vector<double> sums(count, 0), bars(count, 0);
    if (of.add) sums.assign(room.gradient_values.begin(), room.gradient_values.end());
    for (size_t i = 0; i < count; ++i) bars[i] = std::abs(sums[i]);
    ForRows(of, [&](int64_t row, int64_t e) {
      for (int64_t i = 0; i < of.columns * of.depth; ++i) {
        const double product =
            double{ToFloat(room.y_values[row * room.stride + of.more_columns + i / of.depth])} *
            ToFloat(room.x_values[row * of.depth + i % of.depth]);
        sums[e * of.columns * of.depth + i] += product;
        bars[e * of.columns * of.depth + i] += std::abs(product);
      }
    });
    const std::vector<float> want(sums.begin(), sums.end());
    for (double& bar : bars) bar = 2e-6 * bar;
    Expect(room.gradients.values(), want, bars);
  }

  template <int kN>
  static void Check(const GroupedCase& of) {
    SCOPED_TRACE(testing::Message() << kN << " at once, " << of.depth << " x " << of.columns);
    CheckForward<kN>(of);
    CheckBackwardInput<kN>(of);
    CheckBackwardWeight<kN>(of);
  }

  template <typename U>
  static void Expect(const std::vector<U>& got, const std::vector<U>& want,
                     const std::vector<double>& bars) {
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(ToFloat(got[i]), ToFloat(want[i]), bars[i]) << i;
    }
  }
};

using GroupedProductTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(GroupedProducts, GroupedProductTypes);

TYPED_TEST(GroupedProducts, AreThoseOfEachExpert) {
  constexpr int kN = kPack<TypeParam>;
  const GroupedCase uneven = {.rows = {5, 0, 130, 1, 0}, .experts = 5, .depth = 40, .columns = 24};
  GroupedCase of = uneven;
  this->template Check<kN>(of);
  of.more_columns = 16;
  of.add = true;
  this->template Check<kN>(of);
  // More than a tile each way, and several steps of depth.
  this->template Check<kN>({.rows = {140, 3}, .experts = 2, .depth = 136, .columns = 144});
  // Of expert ranks: several segments of an expert.
  this->template Check<kN>(
      {.rows = {7, 40, 0, 33, 2, 1}, .experts = 2, .depth = 16, .columns = 48});
  // Of any sizes.
  this->template Check<1>({.rows = {5, 0, 21},
                           .experts = 3,
                           .depth = 19,
                           .columns = 7,
                           .more_columns = 3,
                           .add = true});
}

// More segments than a warp looks at at once, of which tiles begin far apart; two columns of tiles.
TYPED_TEST(GroupedProducts, OfManyExperts) {
  GroupedCase of = {.experts = 70, .depth = 16, .columns = 144};
  for (int i = 0; i < 70; ++i) of.rows.push_back(i == 41 ? 290 : i % 4 == 1 ? 0 : i % 3 + 1);
  this->template Check<kPack<TypeParam>>(of);
}

// No row of any segment.
TYPED_TEST(GroupedProducts, WithoutRowsGradientsAreZeroOrStay) {
  for (const bool add : {false, true}) {
    this->template Check<kPack<TypeParam>>(
        {.rows = {0, 0}, .experts = 2, .depth = 16, .columns = 16, .add = add});
  }
}

// In generation a text's numbers do not depend on those that are made beside it.
TYPED_TEST(GroupedProducts, RowsDoNotDependOnEachOther) {
  constexpr int kN = kPack<TypeParam>;
  using Room = typename TestFixture::Room;
  const GroupedCase of = {.rows = {20, 31}, .experts = 2, .depth = 48, .columns = 32};
  const auto run = [&](Room& room, const std::vector<int32_t>& offsets) {
    HostArray<int32_t> at(offsets);
    room.segments.offsets = at.data();
    RunKernel(GroupedRowsKernel<TypeParam, kN, true>{{.segments = room.segments,
                                                      .x = room.x.data(),
                                                      .x_stride = of.depth,
                                                      .depth = of.depth,
                                                      .weights = room.weights_at.data(),
                                                      .y = room.y.data(),
                                                      .y_stride = of.columns,
                                                      .columns = of.columns,
                                                      .packs = true}});
    return room.y.values();
  };
  Room together(of), apart(of);
  const auto all = run(together, {0, 20, 51});
  const auto one = run(apart, {20, 20, 21});
  for (int64_t m = 0; m < of.columns; ++m) {
    EXPECT_EQ(WordOf(ToFloat(all[20 * of.columns + m])), WordOf(ToFloat(one[20 * of.columns + m])));
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
