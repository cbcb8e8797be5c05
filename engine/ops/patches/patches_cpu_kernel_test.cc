#include "engine/ops/patches/patches_cpu_kernel.h"

#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Patches : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Patches);

// torch: images.permute(0, 3, 1, 2).unfold(2, p, p).unfold(3, p, p), patches before channels. That
// is what torch's Conv2d with stride p multiplies.
template <typename T>
void CheckPatches(const PatchGrid& grid) {
  const auto table = RandomVector<T>(256 * grid.channels, 1);
  std::vector<uint8_t> images(grid.batch * grid.height * grid.width * grid.channels);
  for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(i * 37 + i / 7);
  std::vector<T> rows(images.size());
  ImagePatches(grid, images.data(), table.data(), rows.data());
  const int64_t side = grid.side;
  for (int64_t b = 0; b < grid.batch; ++b) {
    for (int64_t y = 0; y < grid.height; ++y) {
      for (int64_t x = 0; x < grid.width; ++x) {
        for (int64_t c = 0; c < grid.channels; ++c) {
          const int64_t patch = b * grid.PerImage() + y / side * grid.Across() + x / side;
          const int64_t at = patch * grid.Numbers() + (c * side + y % side) * side + x % side;
          const uint8_t byte = images[((b * grid.height + y) * grid.width + x) * grid.channels + c];
          ASSERT_EQ(ToFloat(rows[at]), ToFloat(table[256 * c + byte])) << at;
        }
      }
    }
  }
}

TEST_P(Patches, AreTheWindowsOfAConvolution) {
  CheckPatches<float>({2, 6, 9, 3, 3});
  CheckPatches<bf16>({3, 8, 8, 3, 4});
  CheckPatches<f16>({1, 5, 5, 3, 1});
}

template <typename T>
void CheckTokens(const TokenRows& tokens) {
  SCOPED_TRACE(testing::Message() << tokens.width << ", bytes " << sizeof(T));
  const int64_t width = tokens.width, places = tokens.patches + 1;
  const auto rows = RandomVector<T>(tokens.batch * tokens.patches * width, 1);
  const auto cls = RandomVector<T>(width, 2), positions = RandomVector<T>(places * width, 3);
  std::vector<T> x(tokens.batch * places * width);
  PatchTokens(tokens, rows.data(), cls.data(), positions.data(), x.data());
  std::vector<double> want;
  for (int64_t i = 0; i < tokens.batch * places; ++i) {
    const int64_t image = i / places, place = i % places;
    for (int64_t c = 0; c < width; ++c) {
      const T from = place == 0 ? cls[c] : rows[(image * tokens.patches + place - 1) * width + c];
      want.push_back(ToFloat(from) + ToFloat(positions[place * width + c]));
    }
  }
  ExpectClose(x, want, kTolerance<T>, "x");
}

template <typename T>
void CheckTokensBackward(const TokenRows& tokens, bool accumulate) {
  const int64_t width = tokens.width, places = tokens.patches + 1;
  const auto dx = RandomVector<T>(tokens.batch * places * width, 4);
  std::vector<T> drows(tokens.batch * tokens.patches * width);
  std::vector<float> dcls(width, 3), dpositions(places * width, 5);
  std::vector<double> want_cls(width, accumulate ? 3 : 0),
      want_positions(places * width, accumulate ? 5 : 0);
  PatchTokensBackward(tokens, dx.data(), drows.data(), {dcls.data(), accumulate},
                      {dpositions.data(), accumulate});
  for (int64_t i = 0; i < tokens.batch * places * width; ++i) {
    const int64_t image = i / width / places, place = i / width % places, c = i % width;
    want_positions[place * width + c] += ToFloat(dx[i]);
    if (place == 0) {
      want_cls[c] += ToFloat(dx[i]);
    } else {
      ASSERT_EQ(ToFloat(drows[(image * tokens.patches + place - 1) * width + c]), ToFloat(dx[i]));
    }
  }
  ExpectClose(dcls, want_cls, 1e-6, "dcls");
  ExpectClose(dpositions, want_positions, 1e-6, "dpositions");
  // What is not wanted is not written.
  std::vector<T> again(drows.size());
  PatchTokensBackward<T>(tokens, dx.data(), again.data(), {}, {});
  for (size_t i = 0; i < drows.size(); ++i) ASSERT_EQ(ToFloat(again[i]), ToFloat(drows[i]));
}

template <typename T>
void CheckFirstRows(const TokenRows& tokens) {
  const int64_t width = tokens.width, stride = (tokens.patches + 1) * width;
  const auto x = RandomVector<T>(tokens.batch * stride, 5);
  std::vector<T> y(tokens.batch * width), dx(x.size(), FromFloat<T>(9.0F));
  FirstRows(tokens, x.data(), y.data());
  FirstRowsBackward(tokens, y.data(), dx.data());
  for (int64_t i = 0; i < tokens.batch * stride; ++i) {
    const bool first = i % stride < width;
    ASSERT_EQ(ToFloat(dx[i]), first ? ToFloat(x[i]) : 0) << i;
    if (!first) continue;
    ASSERT_EQ(ToFloat(y[i / stride * width + i % stride]), ToFloat(x[i])) << i;
  }
}

template <typename T>
void CheckRows() {
  for (const TokenRows& tokens : {TokenRows{3, 4, 8}, TokenRows{2, 9, 37}, TokenRows{1, 1, 1}}) {
    CheckTokens<T>(tokens);
    for (const bool accumulate : {false, true}) CheckTokensBackward<T>(tokens, accumulate);
    CheckFirstRows<T>(tokens);
  }
}

TEST_P(Patches, HaveTheClassInFront) {
  CheckRows<float>();
  CheckRows<bf16>();
  CheckRows<f16>();
}

TEST_P(Patches, SumsDoNotDependOnThreads) {
  const TokenRows tokens = {5, 49, 24};
  const auto dx = RandomVector<bf16>(5 * 50 * 24, 1);
  std::vector<std::vector<float>> found;
  for (const int threads : {1, 4}) {
    const ThreadCount count(threads);
    std::vector<bf16> drows(5 * 49 * 24);
    std::vector<float> dcls(24), dpositions(50 * 24);
    PatchTokensBackward(tokens, dx.data(), drows.data(), {dcls.data()}, {dpositions.data()});
    found.push_back(dpositions);
  }
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace milepost::kernels
