#include "engine/ops/nf4/nf4_cpu_kernel.h"

#include <cmath>
#include <limits>
#include <vector>

#include "engine/dtype/half.h"
#include "engine/dtype/nf4.h"
#include "engine/kernels/cpu/testing.h"
#include "gtest/gtest.h"

namespace milepost::kernels {
namespace {

ReadElements From(const std::vector<float>& values) {
  return [&values](int64_t begin, int64_t end, float* at) {
    std::copy(values.begin() + begin, values.begin() + end, at);
    return absl::OkStatus();
  };
}

std::vector<uint8_t> Packed(const std::vector<float>& values) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<uint8_t> packed(static_cast<size_t>(Nf4Bytes(n)));
  EXPECT_EQ(PackNf4(n, 0, Nf4Bytes(n), From(values), packed.data()), absl::OkStatus());
  return packed;
}

// The paper's numbers are quantiles of the normal distribution: 8 from 0.5 to an offset for the
// positive ones, 9 for the negative, both with 0, scaled to 1.
TEST(Nf4, TheNumbersAreQuantiles) {
  const auto cumulated = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  constexpr double kOffset = 0.9677083;
  // Of +1 the quantile is the offset itself.
  double low = 0, high = 10;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (cumulated(middle) < kOffset ? low : high) = middle;
  }
  for (int i = 0; i <= 8; ++i) {
    const double p = 0.5 + (kOffset - 0.5) * i / 8;
    EXPECT_NEAR(cumulated(Nf4Value(kNf4Zero + i) * high), p, 1e-6) << i;
  }
  for (int i = 0; i <= 7; ++i) {
    const double p = 0.5 - (kOffset - 0.5) * i / 7;
    EXPECT_NEAR(cumulated(Nf4Value(kNf4Zero - i) * high), p, 1e-6) << -i;
  }
}

TEST(Nf4, EachElementIsTheNearestOf16) {
  const std::vector<float> values = RandomVector<float>(1000, 3);
  std::vector<float> got(values.size());
  UnpackNf4(Packed(values).data(), 1000, got.data());
  for (size_t begin = 0; begin < values.size(); begin += kNf4Block) {
    const size_t end = std::min(begin + kNf4Block, values.size());
    double scale = 0;
    for (size_t i = begin; i < end; ++i) scale = std::max<double>(scale, std::fabs(values[i]));
    for (size_t i = begin; i < end; ++i) {
      double least = 2;
      for (int code = 0; code < 16; ++code) {
        least = std::min(least, std::fabs(Nf4Value(code) - values[i] / scale));
      }
      EXPECT_NEAR(std::fabs(got[i] - values[i]) / scale, least, 1e-6) << i;
    }
  }
  std::vector<float> rounded = values;
  RoundToNf4(rounded.data(), 1000);
  EXPECT_EQ(rounded, got);
}

TEST(Nf4, AnyPieceOfTheBytesIsThatOfTheWhole) {
  const std::vector<float> values = RandomVector<float>(64 * 40 + 7, 5);
  const auto n = static_cast<int64_t>(values.size());
  const std::vector<uint8_t> whole = Packed(values);
  const auto bytes = static_cast<int64_t>(whole.size());
  for (const int64_t each : {int64_t{4}, int64_t{36}, int64_t{128}, int64_t{1000}}) {
    std::vector<uint8_t> pieces(whole.size(), 0xcc);
    for (int64_t at = 0; at < bytes; at += each) {
      const int64_t end = std::min(at + each, bytes);
      ASSERT_EQ(PackNf4(n, at, end, From(values), pieces.data() + at), absl::OkStatus());
    }
    // Nobody reads what lies between codes and scales.
    const int64_t codes = Nf4Blocks(n) * kNf4Block / 2;
    for (int64_t i = 0; i < bytes; ++i) {
      if (i >= codes && i < Nf4ScalesAt(n)) continue;
      ASSERT_EQ(pieces[i], whole[i]) << i << " of pieces of " << each;
    }
  }
}

TEST(Nf4, ReadsOnlyWhatItNeeds) {
  constexpr int64_t kElements = 64 * 100;
  std::vector<std::pair<int64_t, int64_t>> reads;
  const auto read = [&](int64_t begin, int64_t end, float* at) {
    reads.emplace_back(begin, end);
    std::fill(at, at + (end - begin), 1.0F);
    return absl::OkStatus();
  };
  std::vector<uint8_t> out(1000);
  ASSERT_EQ(PackNf4(kElements, 64, 128, read, out.data()), absl::OkStatus());
  const int64_t scales = Nf4ScalesAt(kElements);
  ASSERT_EQ(PackNf4(kElements, scales + 40, scales + 48, read, out.data()), absl::OkStatus());
  using Reads = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(reads, (Reads{{128, 256}, {640, 768}}));
  const auto fails = [](int64_t, int64_t, float*) { return absl::DataLossError("torn"); };
  EXPECT_EQ(PackNf4(kElements, 0, 4, fails, out.data()), absl::DataLossError("torn"));
}

// Halfway between two numbers it is the smaller; the last block may be a part of one.
TEST(Nf4, ATieIsTheSmaller) {
  std::vector<float> values = {1};
  for (int code = 1; code < 16; ++code) {
    const float middle = (Nf4Value(code - 1) + Nf4Value(code)) / 2;
    values.push_back(middle);
    values.push_back(std::nextafter(middle, 2.0F));
  }
  std::vector<float> got(values.size());
  UnpackNf4(Packed(values).data(), static_cast<int64_t>(values.size()), got.data());
  for (int code = 1; code < 16; ++code) {
    EXPECT_EQ(got[2 * code - 1], Nf4Value(code - 1)) << code;
    EXPECT_EQ(got[2 * code], Nf4Value(code)) << code;
  }
}

TEST(Nf4, ZerosAndWhatIsNoNumber) {
  std::vector<float> values(4 * kNf4Block, 0.0F);
  values[kNf4Block + 5] = std::numeric_limits<float>::quiet_NaN();
  values[2 * kNf4Block] = 1;
  values[3 * kNf4Block + 9] = -std::numeric_limits<float>::infinity();
  std::vector<float> got(values.size(), 7.0F);
  UnpackNf4(Packed(values).data(), static_cast<int64_t>(values.size()), got.data());
  for (int64_t i = 0; i < kNf4Block; ++i) {
    EXPECT_EQ(got[i], 0);
    EXPECT_FALSE(std::isfinite(got[kNf4Block + i]));
    EXPECT_EQ(got[2 * kNf4Block + i], i == 0 ? 1 : 0);
    EXPECT_FALSE(std::isfinite(got[3 * kNf4Block + i]));
  }
}

template <typename T>
void TestRounding() {
  const std::vector<float> values = RandomVector<float>(300, 9);
  const std::vector<uint8_t> packed = Packed(values);
  std::vector<float> wide(values.size());
  UnpackNf4(packed.data(), 300, wide.data());
  std::vector<T> narrow(values.size());
  UnpackNf4(packed.data(), 300, narrow.data());
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(narrow[i].bits, FromFloat<T>(wide[i]).bits);
}

TEST(Nf4, In16BitsTheyAreRoundedOnce) {
  TestRounding<bf16>();
  TestRounding<f16>();
}

}  // namespace
}  // namespace milepost::kernels
