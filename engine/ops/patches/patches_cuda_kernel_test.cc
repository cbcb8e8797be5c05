#include "engine/ops/patches/patches_cuda_kernel-inl.h"

#include "engine/ops/patches/patches_cpu_kernel.h"

#include <gtest/gtest.h>

#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr auto kRunPatches = [](const auto& kernel) { return RunAnywhere(kernel, 5); };

template <typename T>
class PatchKernels : public testing::Test {};
using PatchTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(PatchKernels, PatchTypes);

TYPED_TEST(PatchKernels, PatchesAreTheCpus) {
  using T = TypeParam;
  for (const PatchGrid& grid : {PatchGrid{2, 6, 9, 3, 3}, PatchGrid{3, 16, 16, 3, 8}}) {
    const auto table_values = RandomVector<T>(3 * 256, 6);
    std::vector<uint8_t> bytes(grid.batch * grid.height * grid.width * 3);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 11);
    std::vector<T> want(bytes.size());
    kernels::ImagePatches(grid, bytes.data(), table_values.data(), want.data());
    HostArray<uint8_t> images(bytes);
    HostArray<T> table(table_values), rows(static_cast<int64_t>(want.size()));
    ASSERT_EQ(RunImagePatches(grid, images.data(), table.data(), rows.data(), kRunPatches),
              absl::OkStatus());
    EXPECT_TRUE(SameBits(rows.values(), want));
  }
}

template <typename T>
void TestTokens(const TokenRows& tokens, bool accumulate) {
  SCOPED_TRACE(testing::Message() << tokens.width << ", adds " << accumulate);
  const int64_t patches = tokens.batch * tokens.patches * tokens.width;
  const int64_t places = (tokens.patches + 1) * tokens.width;
  const auto row_values = RandomVector<T>(patches, 1),
             cls_values = RandomVector<T>(tokens.width, 2),
             position_values = RandomVector<T>(places, 3),
             dx_values = RandomVector<T>(tokens.batch * places, 4);
  std::vector<T> want_x(tokens.batch * places), want_rows(patches);
  kernels::PatchTokens(tokens, row_values.data(), cls_values.data(), position_values.data(),
                       want_x.data());
  std::vector<float> want_cls(tokens.width, 0.5f), want_positions(places, -2.0f);
  HostArray<float> dcls(want_cls), dpositions(want_positions);
  kernels::PatchTokensBackward(tokens, dx_values.data(), want_rows.data(),
                               {want_cls.data(), accumulate}, {want_positions.data(), accumulate});

  HostArray<T> rows(row_values), cls(cls_values), positions(position_values), dx(dx_values);
  HostArray<T> x(tokens.batch * places), drows(patches);
  const TokenSum to_cls = {dcls.data(), accumulate}, to_positions = {dpositions.data(), accumulate};
  ASSERT_EQ(
      (RunOnTokens<T, PatchTokensKernel>(kRunPatches, tokens, static_cast<const T*>(rows.data()),
                                         static_cast<const T*>(cls.data()),
                                         static_cast<const T*>(positions.data()), x.data())),
      absl::OkStatus());
  EXPECT_TRUE(SameBits(x.values(), want_x));
  const T* gradient = dx.data();
  ASSERT_EQ((RunOnTokens<T, PatchTokensBackwardKernel>(kRunPatches, tokens, gradient, drows.data(),
                                                       to_cls, to_positions)),
            absl::OkStatus());
  EXPECT_TRUE(SameBits(drows.values(), want_rows));
  EXPECT_TRUE(SameBits(dcls.values(), want_cls));
  EXPECT_TRUE(SameBits(dpositions.values(), want_positions));
  // Neither is wanted.
  ASSERT_EQ((RunOnTokens<T, PatchTokensBackwardKernel>(kRunPatches, tokens, gradient, drows.data(),
                                                       TokenSum(), TokenSum())),
            absl::OkStatus());
  EXPECT_TRUE(SameBits(drows.values(), want_rows));
}

template <typename T>
void TestFirstRows(const TokenRows& tokens) {
  const int64_t first = tokens.batch * tokens.width, all = first * (tokens.patches + 1);
  const auto x_values = RandomVector<T>(all, 1), dy_values = RandomVector<T>(first, 2);
  std::vector<T> want_y(first), want_dx(all);
  kernels::FirstRows(tokens, x_values.data(), want_y.data());
  kernels::FirstRowsBackward(tokens, dy_values.data(), want_dx.data());
  HostArray<T> x(x_values), dy(dy_values), y(first), dx(all);
  const T *from = x.data(), *gradient = dy.data();
  ASSERT_EQ((RunOnTokens<T, FirstRowsKernel>(kRunPatches, tokens, from, y.data())),
            absl::OkStatus());
  ASSERT_EQ((RunOnTokens<T, FirstRowsBackwardKernel>(kRunPatches, tokens, gradient, dx.data())),
            absl::OkStatus());
  EXPECT_TRUE(SameBits(y.values(), want_y));
  EXPECT_TRUE(SameBits(dx.values(), want_dx));
}

TYPED_TEST(PatchKernels, TokensAreTheCpus) {
  for (const TokenRows& tokens : {TokenRows{3, 4, 16}, TokenRows{2, 9, 37}, TokenRows{1, 1, 8}}) {
    for (const bool accumulate : {false, true}) TestTokens<TypeParam>(tokens, accumulate);
    TestFirstRows<TypeParam>(tokens);
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
