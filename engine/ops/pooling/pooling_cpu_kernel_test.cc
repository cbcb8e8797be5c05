#include "engine/ops/pooling/pooling_cpu_kernel.h"

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Pooling : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Pooling);

// The definition: for each output, the index of the largest input of its window.
template <typename T>
std::vector<int64_t> Winners(const PoolSpec& s, const std::vector<T>& x) {
  std::vector<int64_t> winners;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t p = 0; p < s.OutHeight(); ++p) {
      for (int64_t q = 0; q < s.OutWidth(); ++q) {
        for (int64_t c = 0; c < s.channels; ++c) {
          int64_t best = -1;
          for (int64_t i = 0; i < s.kernel * s.kernel; ++i) {
            const int64_t h = p * s.stride - s.padding + i / s.kernel;
            const int64_t w = q * s.stride - s.padding + i % s.kernel;
            if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
            const int64_t at = ((b * s.height + h) * s.width + w) * s.channels + c;
            if (best < 0 || ToFloat(x[at]) > ToFloat(x[best])) best = at;
          }
          winners.push_back(best);
        }
      }
    }
  }
  return winners;
}

template <typename T>
void CheckMax(const PoolSpec& s) {
  SCOPED_TRACE(testing::Message() << s.height << "x" << s.width << "x" << s.channels << " kernel "
                                  << s.kernel << " bytes " << sizeof(T));
  auto x = RandomVector<T>(s.batch * s.height * s.width * s.channels, 1);
  for (T& value : x) value = FromFloat<T>(std::round(ToFloat(value) * 2));  // with equal ones
  const std::vector<int64_t> expected = Winners(s, x);
  std::vector<T> y(expected.size()), dx(x.size(), FromFloat<T>(9.0F));
  std::vector<uint8_t> winners(expected.size());
  MaxPoolForward(s, x.data(), y.data(), winners.data());
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(ToFloat(y[i]), ToFloat(x[expected[i]])) << i;

  const auto dy = RandomVector<T>(static_cast<int64_t>(y.size()), 2);
  const auto dy2 = RandomVector<T>(static_cast<int64_t>(y.size()), 3);
  for (const T* second : {static_cast<const T*>(nullptr), dy2.data()}) {
    std::vector<double> dx_want(x.size());
    for (size_t i = 0; i < y.size(); ++i) {
      dx_want[expected[i]] += ToFloat(dy[i]) + (second == nullptr ? 0 : ToFloat(second[i]));
    }
    MaxPoolBackward(s, winners.data(), dy.data(), second, dx.data());
    ExpectClose(dx, dx_want, kTolerance<T>, "dx");
  }
}

TEST_P(Pooling, MaxMatchesDefinition) {
  for (int64_t channels : {3, 16, 33}) {
    for (const PoolSpec& s :
         {PoolSpec{.batch = 2, .height = 8, .width = 7},
          PoolSpec{.batch = 1, .height = 5, .width = 9, .kernel = 2, .stride = 2, .padding = 0},
          PoolSpec{.batch = 2, .height = 6, .width = 6, .kernel = 5, .stride = 1, .padding = 2}}) {
      PoolSpec with = s;
      with.channels = channels;
      CheckMax<float>(with);
      CheckMax<bf16>(with);
    }
  }
}

TEST_P(Pooling, ANanWins) {
  const PoolSpec s{.batch = 1, .height = 3, .width = 3, .channels = 1, .stride = 3, .padding = 0};
  std::vector<float> x(9, 1.0F), y(1);
  x[4] = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint8_t> winner(1);
  MaxPoolForward(s, x.data(), y.data(), winner.data());
  EXPECT_TRUE(std::isnan(y[0]));
}

template <typename T>
void CheckAverage(int64_t batch, int64_t pixels, int64_t channels) {
  const auto x = RandomVector<T>(batch * pixels * channels, 1);
  const auto dy = RandomVector<T>(batch * channels, 2);
  std::vector<T> y(batch * channels), dx(x.size());
  AveragePoolForward(x.data(), batch, pixels, channels, y.data());
  AveragePoolBackward(dy.data(), batch, pixels, channels, dx.data());
  std::vector<double> y_want(y.size()), dx_want(dx.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t at = i / (pixels * channels) * channels + i % channels;
    y_want[at] += ToFloat(x[i]) / static_cast<double>(pixels);
    dx_want[i] = ToFloat(dy[at]) / static_cast<double>(pixels);
  }
  ExpectClose(y, y_want, kTolerance<T>, "y");
  ExpectClose(dx, dx_want, kTolerance<T>, "dx");
}

TEST_P(Pooling, AverageMatchesDefinition) {
  for (int64_t channels : {5, 64}) {
    CheckAverage<float>(3, 49, channels);
    CheckAverage<bf16>(3, 49, channels);
  }
}

TEST(LookUpChannels, TakesEachChannelsTable) {
  std::vector<float> table(3 * 256);
  for (int i = 0; i < 3 * 256; ++i) table[i] = static_cast<float>(i);
  const std::vector<uint8_t> x = {0, 1, 2, 255, 254, 253};
  std::vector<float> y(6);
  LookUpChannels(x.data(), 2, 3, table.data(), y.data());
  EXPECT_EQ(y, (std::vector<float>{0, 257, 514, 255, 510, 765}));
}

}  // namespace
}  // namespace milepost::kernels
