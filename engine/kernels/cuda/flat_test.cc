#include "engine/kernels/cuda/flat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/kernels/cpu/sum_squares.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/flat_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/optim/optimizer.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
double SumOnHost(const std::vector<T>& values, uint64_t seed) {
  HostArray<T> x(values);
  const SquaresKernel<T> squares = {x.data(), x.size(), nullptr};
  HostArray<double> sums(squares.grid().x), sum(1);
  RunKernel(SquaresKernel<T>{x.data(), x.size(), sums.data()}, seed);
  RunKernel(SumKernel{sums.data(), sums.size(), sum.data()}, seed);
  return sum.values()[0];
}

TEST(Flat, SumOfSquares) {
  for (const int64_t n : {1, 3, 4096, 4099, 20001}) {
    std::vector<float> values = RandomVector<float>(n, 7);
    double want = 0;
    for (const float value : values) want += double{value} * value;
    const double got = SumOnHost(values, 3);
    EXPECT_NEAR(got, want, 1e-12 * want) << n;
    EXPECT_EQ(got, SumOnHost(values, 4)) << "the order of threads shows";
    std::vector<bf16> rounded(n);
    for (int64_t i = 0; i < n; ++i) rounded[i] = FromFloat<bf16>(values[i]);
    std::vector<float> widened(n);
    for (int64_t i = 0; i < n; ++i) widened[i] = ToFloat(rounded[i]);
    EXPECT_EQ(SumOnHost(rounded, 3), SumOnHost(widened, 3));
    values[n / 2] = std::numeric_limits<float>::max();
    EXPECT_TRUE(std::isfinite(SumOnHost(values, 3)));
    values[n / 2] = -INFINITY;
    EXPECT_FALSE(std::isfinite(SumOnHost(values, 3)));
    values[n / 2] = NAN;
    EXPECT_FALSE(std::isfinite(SumOnHost(values, 3)));
  }
}

TEST(Flat, SumsScalarsInOrder) {
  for (const int count : {1, 31, 32, 77}) {
    std::vector<double> numbers(2 * count);
    for (int i = 0; i < 2 * count; ++i) numbers[i] = std::pow(-1.7, i % 40) / 3;
    std::vector<int32_t> slots;
    double want = 0;
    for (int i = 0; i < count; ++i) {
      slots.push_back(2 * i + i % 2);
      want += numbers[slots.back()];
    }
    HostArray<double> values(numbers), sum(1), asked(std::vector<double>{1.0}), stop(1);
    HostArray<int32_t> which(slots);
    RunKernel(SumScalarsKernel{values.data(), which.data(), count, sum.data(), asked.data(),
                               stop.data()});
    EXPECT_EQ(sum.values()[0], want) << count;
    EXPECT_EQ(stop.values()[0], 1.0);
  }
}

TEST(Flat, DecidesAsTheSession) {
  for (const double sum : {0.0, 0.25, 1e6, 1e300, double{INFINITY}, double{NAN}}) {
    for (const double max_norm : {0.0, 1.0}) {
      for (const double scale : {1.0, 1024.0}) {
        HostArray<double> sum_squares(std::vector<double>{sum});
        HostArray<ClipArgs> args(std::vector<ClipArgs>{{scale, max_norm}});
        HostArray<UpdateControl> control(1);
        RunKernel(DecideKernel{sum_squares.data(), args.data(), control.data()});
        const optim::ClipResult clip = optim::ClipByNorm(sum / (scale * scale), max_norm);
        const UpdateControl got = control.values()[0];
        EXPECT_EQ(got.skip, clip.finite ? 0u : 1u) << sum;
        if (clip.finite) {
          EXPECT_EQ(got.gradient_scale, static_cast<float>(clip.scale / scale)) << sum;
        }
      }
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
