#include "engine/data/images/view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "engine/data/images/render.h"
#include "engine/data/images/testing.h"

namespace milepost::data {
namespace {

double Length(const ResampleAxis& axis, int64_t size) {
  return axis.scale * static_cast<double>(size);
}

TEST(RandomView, IsDistributedAsRandomResizedCrop) {
  const ViewOptions options{.image_size = 224};
  constexpr int kSamples = 20000;
  double area = 0, squared = 0, log_ratio = 0, flips = 0, left = 0;
  for (int i = 0; i < kSamples; ++i) {
    const View view = RandomView(options, 3000, 3000, /*seed=*/9, i);
    const double width = Length(view.x, 224), height = Length(view.y, 224);
    ASSERT_GE(view.x.start, 0);
    ASSERT_LE(view.x.start + width, 3000.0001);
    ASSERT_LE(view.y.start + height, 3000.0001);
    ASSERT_EQ(view.x.first, view.x.start);
    const double share = width * height / 9e6;
    ASSERT_GT(share, 0.079);
    ASSERT_LT(share, 1.001);
    ASSERT_GT(width / height, 0.749);
    ASSERT_LT(width / height, 1.335);
    area += share;
    squared += share * share;
    log_ratio += std::log(width / height);
    flips += view.flip;
    left += view.x.start / std::max(1.0, 3000 - width);
  }
  // Large shares of an unfit ratio are drawn again, so the mean is below that of the uniform
  // distribution (0.54). Mean and variance: the definition in NumPy, 400,000 draws.
  EXPECT_NEAR(area / kSamples, 0.4777, 0.006);
  EXPECT_NEAR(squared / kSamples - std::pow(area / kSamples, 2), 0.0545, 0.002);
  EXPECT_NEAR(log_ratio / kSamples, 0, 0.005);
  EXPECT_NEAR(flips / kSamples, 0.5, 0.012);
  EXPECT_NEAR(left / kSamples, 0.5, 0.012);
}

TEST(RandomView, DependsOnSeedAndSampleAlone) {
  const ViewOptions options;
  const View view = RandomView(options, 500, 375, 3, int64_t{1} << 33);
  EXPECT_TRUE(view == RandomView(options, 500, 375, 3, int64_t{1} << 33));
  EXPECT_FALSE(view == RandomView(options, 500, 375, 4, int64_t{1} << 33));
  EXPECT_FALSE(view == RandomView(options, 500, 375, 3, (int64_t{1} << 33) + 1));
  EXPECT_FALSE(view == RandomView(options, 500, 375, 3, 0));
  // The values are part of the data order of checkpoints: computed from the definitions in Python.
  const View early = RandomView(options, 500, 375, 0, 0);
  EXPECT_EQ(early.x.first, 4);
  EXPECT_EQ(early.x.end, 298);
  EXPECT_EQ(early.y.first, 4);
  EXPECT_EQ(early.y.end, 329);
  EXPECT_FALSE(early.flip);
  const View late = RandomView(options, 500, 375, 12345, (int64_t{1} << 33) + 77);
  EXPECT_EQ(late.x.first, 223);
  EXPECT_EQ(late.x.end, 454);
  EXPECT_EQ(late.y.first, 123);
  EXPECT_EQ(late.y.end, 319);
  EXPECT_TRUE(late.flip);
}

TEST(RandomView, FallsBackToTheCentre) {
  const ViewOptions options{.image_size = 10, .min_scale = 1, .max_scale = 1};
  const View wide = RandomView(options, 1000, 30, 1, 1);
  EXPECT_EQ(wide.x.first, 480);
  EXPECT_EQ(wide.x.end, 520);
  EXPECT_EQ(wide.y.end, 30);
  const View tall = RandomView(options, 30, 1000, 1, 1);
  EXPECT_EQ(tall.y.first, 480);
  EXPECT_EQ(tall.y.end, 520);
  const View tiny = RandomView(options, 1, 1, 1, 1);
  EXPECT_EQ(tiny.x.end, 1);
  const View line = RandomView(options, 65535, 1, 1, 1);
  EXPECT_EQ(line.x.end - line.x.first, 1);
}

std::string Rendered(const std::string& bytes, const View& view, int64_t size) {
  ViewRenderer renderer({});
  std::string out(static_cast<size_t>(size * size * 3), '\0');
  const auto info = renderer.ReadInfo(bytes);
  EXPECT_TRUE(info.ok());
  EXPECT_TRUE(
      renderer.Render(bytes, *info, view, size, reinterpret_cast<uint8_t*>(out.data())).ok());
  return out;
}

TEST(CentreView, EqualsTorchvision) {
  const ViewOptions options{.image_size = 32, .resize = 40};
  const View view = CentreView(options, kGoldenWidth, kGoldenHeight);
  EXPECT_EQ(Rendered(Golden("base.png"), view, 32), Golden("centre40_32.resized"));
}

// Decoding a part changes nothing: the same pixels from the whole image.
TEST(Render, DecodesOnlyThePartButTheSamePixels) {
  const ViewOptions options{.image_size = 24, .min_scale = 0.05, .max_scale = 0.5};
  for (const char* name : {"base.png", "plain.jpg", "orientation6.jpg", "orientation3.jpg"}) {
    const std::string bytes = Golden(name);
    const std::string pixels = Golden(std::string(name) + ".rgb");
    const bool turned = std::string(name) == "orientation6.jpg";
    const int64_t width = turned ? kGoldenHeight : kGoldenWidth;
    const int64_t height = turned ? kGoldenWidth : kGoldenHeight;
    for (int64_t sample = 0; sample < 50; ++sample) {
      const View view = RandomView(options, width, height, 5, sample);
      if (ShrinkFor(view) != 1) continue;
      ViewRenderer renderer({});
      std::string want(24 * 24 * 3, '\0');
      renderer.RenderPixels(reinterpret_cast<const uint8_t*>(pixels.data()), width, height, view,
                            24, reinterpret_cast<uint8_t*>(want.data()));
      ASSERT_EQ(Rendered(bytes, view, 24), want) << name << " sample " << sample;
    }
  }
}

// Shrinking while decoding is another way to the same picture.
TEST(Render, ShrunkDecodingIsClose) {
  const ViewOptions options{.image_size = 9, .min_scale = 0.3};
  for (const char* name : {"full.jpg", "orientation7.jpg", "orientation2.jpg"}) {
    const std::string pixels = Golden(std::string(name) + ".rgb");
    const bool turned = std::string(name) == "orientation7.jpg";
    const int64_t width = turned ? kGoldenHeight : kGoldenWidth;
    const int64_t height = turned ? kGoldenWidth : kGoldenHeight;
    int shrunk = 0;
    double error = 0;
    for (int64_t sample = 0; sample < 40; ++sample) {
      const View view = RandomView(options, width, height, 5, sample);
      shrunk += ShrinkFor(view) > 1;
      ViewRenderer renderer({});
      std::vector<uint8_t> want(9 * 9 * 3);
      renderer.RenderPixels(reinterpret_cast<const uint8_t*>(pixels.data()), width, height, view, 9,
                            want.data());
      const std::string got = Rendered(Golden(name), view, 9);
      for (size_t i = 0; i < want.size(); ++i) {
        error += std::abs(want[i] - static_cast<uint8_t>(got[i])) / (40.0 * 243);
      }
    }
    EXPECT_GT(shrunk, 10) << name;
    EXPECT_LT(error, 4) << name;  // of 255; the picture has sharp edges. Misplaced by a pixel: 8
  }
}

TEST(Tiles, CoverEveryPixelAndMakeNoneUp) {
  const ViewOptions options{.image_size = 8, .patch_size = 8, .patch_stride = 6};
  for (const auto& [width, height] : {std::pair{8, 8}, {9, 8}, {20, 15}, {14, 26}, {31, 8}}) {
    std::vector<int> seen(static_cast<size_t>(width * height));
    std::set<std::pair<int64_t, int64_t>> places;
    const int64_t tiles = TilesOf(options, width, height);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const View view = TileView(options, width, height, tile);
      ASSERT_EQ(view.x.end - view.x.first, 8);
      ASSERT_EQ(view.y.end - view.y.first, 8);
      ASSERT_EQ(view.x.scale, 1);
      ASSERT_LE(view.x.end, width);
      ASSERT_LE(view.y.end, height);
      EXPECT_TRUE(places.insert({view.x.first, view.y.first}).second);
      for (int64_t y = view.y.first; y < view.y.end; ++y) {
        for (int64_t x = view.x.first; x < view.x.end; ++x) {
          ++seen[static_cast<size_t>(y * width + x)];
        }
      }
    }
    EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 0) << width << "x" << height;
  }
  EXPECT_EQ(TilesOf(options, 20, 15), 9);  // columns at 0, 6, 12; rows at 0, 6, 7
}

TEST(Tiles, AreCutOutOfTheImage) {
  const ViewOptions options{.image_size = 20, .patch_size = 20, .patch_stride = 20};
  const std::string pixels = Golden("base.png.rgb");
  const View view = TileView(options, kGoldenWidth, kGoldenHeight, 7);
  const std::string tile = Rendered(Golden("base.png"), view, 20);
  for (size_t row = 0; row < 20; ++row) {  // the fourth of the second row: moved back to column 55
    EXPECT_EQ(tile.substr(row * 60, 60), pixels.substr(((20 + row) * 75 + 55) * 3, 60));
  }
  // Mirrored for half of the samples.
  int flips = 0;
  for (int64_t sample = 0; sample < 100; ++sample) {
    flips += IsMirrored(options, 1, sample);
  }
  EXPECT_GT(flips, 30);
  EXPECT_LT(flips, 70);
}

TEST(Tiles, RepeatTheEdgeOfAnImageThatIsSmaller) {
  const ViewOptions options{.image_size = 80, .patch_size = 80, .patch_stride = 40};
  ASSERT_EQ(TilesOf(options, kGoldenWidth, kGoldenHeight), 1);
  const View view = TileView(options, kGoldenWidth, kGoldenHeight, 0);
  const std::string tile = Rendered(Golden("base.png"), view, 80);
  const std::string pixels = Golden("base.png.rgb");
  EXPECT_EQ(tile.substr(0, 75 * 3), pixels.substr(0, 75 * 3));
  EXPECT_EQ(tile.substr(79 * 3, 3), pixels.substr(74 * 3, 3));
  EXPECT_EQ(tile.substr((79 * 80 + 79) * 3, 3), pixels.substr(pixels.size() - 3));
}

TEST(ShrinkFor, LeavesAtLeastTheViewsPixels) {
  const auto shrink = [](double scale_x, double scale_y) {
    return ShrinkFor({{0, scale_x, 0, 9}, {0, scale_y, 0, 9}});
  };
  EXPECT_EQ(shrink(1.99, 9), 1);
  EXPECT_EQ(shrink(2, 9), 2);
  EXPECT_EQ(shrink(7.9, 4), 4);
  EXPECT_EQ(shrink(30, 8), 8);
}

}  // namespace
}  // namespace milepost::data
