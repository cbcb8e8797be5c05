#include "engine/ops/convolution/convolution_cpu_kernel.h"

#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "gmock/gmock.h"

namespace milepost::kernels {
namespace {

using testing::HasSubstr;

// The definition, in fp64: calls visit(x index, w index, y index) for every product.
template <typename Visit>
void ForEachProduct(const ConvolutionSpec& s, const Visit& visit) {
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t p = 0; p < s.OutHeight(); ++p) {
      for (int64_t q = 0; q < s.OutWidth(); ++q) {
        for (int64_t r = 0; r < s.kernel * s.kernel; ++r) {
          const int64_t h = p * s.stride - s.padding + r / s.kernel;
          const int64_t w = q * s.stride - s.padding + r % s.kernel;
          if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
          for (int64_t o = 0; o < s.out; ++o) {
            for (int64_t i = 0; i < s.in; ++i) {
              visit(((n * s.height + h) * s.width + w) * s.in + i,
                    (o * s.in + i) * s.kernel * s.kernel + r,
                    ((n * s.OutHeight() + p) * s.OutWidth() + q) * s.out + o);
            }
          }
        }
      }
    }
  }
}

template <typename T>
void Matches(ConvolutionSpec s, bool bf16_products = HasBf16Products()) {
  s.type = kDTypeOf<T>;
  SCOPED_TRACE(testing::Message() << "in " << s.in << " out " << s.out << " kernel " << s.kernel
                                  << " stride " << s.stride << " bytes " << sizeof(T)
                                  << " bf16 products " << bf16_products);
  const int64_t nx = s.batch * s.height * s.width * s.in;
  const int64_t ny = s.batch * s.OutHeight() * s.OutWidth() * s.out;
  const auto x = RandomVector<T>(nx, 1), w = RandomVector<T>(s.WeightElements(), 2);
  const auto dy = RandomVector<T>(ny, 3);
  const auto x64 = ToDouble(x), w64 = ToDouble(w), dy64 = ToDouble(dy);
  std::vector<double> y_want(ny), dx_want(nx), dw_want(w.size());
  ForEachProduct(s, [&](int64_t i, int64_t j, int64_t k) {
    y_want[k] += x64[i] * w64[j];
    dx_want[i] += dy64[k] * w64[j];
    dw_want[j] += dy64[k] * x64[i];
  });

  ConvolutionCache cache(bf16_products);
  size_t bytes = 0;
  for (auto pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                    ConvolutionPass::kBackwardWeights}) {
    const auto needed = cache.WorkspaceBytes(s, pass);
    ASSERT_TRUE(needed.ok()) << needed.status();
    bytes = std::max(bytes, *needed);
  }
  AlignedBuffer workspace(bytes);
  std::vector<T> y(ny), dx(nx);
  std::vector<float> dw(w.size(), 7.0F);
  ASSERT_EQ(cache.Forward(s, x.data(), w.data(), y.data(), workspace.data()), absl::OkStatus());
  ExpectClose(y, y_want, kTolerance<T>, "y");
  ASSERT_EQ(cache.BackwardData(s, dy.data(), w.data(), dx.data(), workspace.data()),
            absl::OkStatus());
  ExpectClose(dx, dx_want, kTolerance<T>, "dx");
  ASSERT_EQ(cache.BackwardWeights(s, x.data(), dy.data(), false, dw.data(), workspace.data()),
            absl::OkStatus());
  ExpectClose(dw, dw_want, 1e-5, "dw");
  ASSERT_EQ(cache.BackwardWeights(s, x.data(), dy.data(), true, dw.data(), workspace.data()),
            absl::OkStatus());
  for (double& value : dw_want) value *= 2;
  ExpectClose(dw, dw_want, 1e-5, "dw, added to");
}

TEST(Convolution, MatchesDefinition) {
  const ConvolutionSpec specs[] = {
      {.batch = 2,
       .height = 13,
       .width = 16,
       .in = 3,
       .out = 8,
       .kernel = 7,
       .stride = 2,
       .padding = 3},
      {.batch = 2, .height = 8, .width = 8, .in = 8, .out = 5, .kernel = 3, .padding = 1},
      {.batch = 3,
       .height = 7,
       .width = 9,
       .in = 16,
       .out = 32,
       .kernel = 3,
       .stride = 2,
       .padding = 1},
      {.batch = 2, .height = 6, .width = 6, .in = 16, .out = 24},
      {.batch = 2, .height = 7, .width = 7, .in = 12, .out = 20, .stride = 2},
      {.batch = 1, .height = 1, .width = 1, .in = 4, .out = 4, .kernel = 3, .padding = 1},
  };
  for (const ConvolutionSpec& spec : specs) {
    Matches<float>(spec);
    Matches<bf16>(spec);
    Matches<bf16>(spec, /*bf16_products=*/false);
  }
}

// The widened images of a piece are bounded: five images in three pieces, the last of one.
TEST(Convolution, WidensSomeImagesAtATime) {
  Matches<bf16>({.batch = 5, .height = 320, .width = 320, .in = 4, .out = 4},
                /*bf16_products=*/false);
}

TEST(Convolution, SameBitsAgain) {
  const ConvolutionSpec s{
      .batch = 4, .height = 14, .width = 14, .in = 32, .out = 32, .kernel = 3, .padding = 1};
  const int64_t n = 4 * 14 * 14 * 32;
  const auto x = RandomVector<float>(n, 1), dy = RandomVector<float>(n, 2);
  const ThreadCount scope(2);
  ConvolutionCache cache;
  AlignedBuffer workspace(*cache.WorkspaceBytes(s, ConvolutionPass::kBackwardWeights));
  std::vector<float> first(s.WeightElements()), second(s.WeightElements());
  for (auto* dw : {&first, &second}) {
    ASSERT_EQ(cache.BackwardWeights(s, x.data(), dy.data(), false, dw->data(), workspace.data()),
              absl::OkStatus());
  }
  EXPECT_TRUE(SameBits(first, second));
}

TEST(Convolution, RefusesWhatCannotBe) {
  ConvolutionCache cache;
  const auto large = cache.WorkspaceBytes(
      {.batch = 1, .height = 2, .width = 2, .in = 1, .out = 1, .kernel = 5, .padding = 1},
      ConvolutionPass::kForward);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(large.status().message(), HasSubstr("larger than the image"));
  EXPECT_EQ(cache.WorkspaceBytes({}, ConvolutionPass::kForward).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace milepost::kernels
