#include "engine/data/images/resample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <string>

#include "engine/data/images/testing.h"

namespace milepost::data {
namespace {

Image GoldenImage(const std::string& name) {
  const std::string bytes = Golden(name);
  Image image;
  image.Resize(kGoldenWidth, kGoldenHeight);
  EXPECT_EQ(bytes.size(), image.pixels.size());
  std::copy(bytes.begin(), bytes.end(), image.pixels.begin());
  return image;
}

std::string Resized(const Image& image, const ResampleAxis& x, const ResampleAxis& y, int64_t width,
                    int64_t height, bool flip = false) {
  std::string out(static_cast<size_t>(width * height * 3), '\0');
  Resampler resampler;
  resampler.Resize(image, x, y, width, height, flip, reinterpret_cast<uint8_t*>(out.data()));
  return out;
}

TEST(Resample, EqualsPillow) {
  const Image image = GoldenImage("base.png.rgb");
  std::istringstream cases(Golden("resize.txt"));
  int64_t x, y, width, height, out_width, out_height;
  int number = 0;
  while (cases >> x >> y >> width >> height >> out_width >> out_height) {
    const std::string out =
        Resized(image,
                {static_cast<double>(x),
                 static_cast<double>(width) / static_cast<double>(out_width), x, x + width},
                {static_cast<double>(y),
                 static_cast<double>(height) / static_cast<double>(out_height), y, y + height},
                out_width, out_height);
    EXPECT_EQ(out, Golden(std::to_string(number) + ".resized")) << "case " << number;
    ++number;
  }
  EXPECT_EQ(number, 10);
}

TEST(Resample, FlipMirrorsTheOutput) {
  const Image image = GoldenImage("base.png.rgb");
  const ResampleAxis x{3.25, 1.7, 2, 60}, y{0, 2.1, 0, kGoldenHeight};
  const std::string plain = Resized(image, x, y, 31, 20);
  const std::string flipped = Resized(image, x, y, 31, 20, true);
  for (size_t row = 0; row < 20; ++row) {
    for (size_t column = 0; column < 31; ++column) {
      EXPECT_EQ(plain.substr((row * 31 + column) * 3, 3),
                flipped.substr((row * 31 + 30 - column) * 3, 3));
    }
  }
}

// Against the definition in fp64, at places that Pillow's boxes do not have.
TEST(Resample, IsTheTriangleFilter) {
  const Image image = GoldenImage("base.png.rgb");
  std::mt19937 random(3);
  std::uniform_real_distribution<double> start(0, 20), scale(0.2, 4);
  for (int round = 0; round < 20; ++round) {
    const ResampleAxis x{start(random), scale(random), 1, 70},
        y{start(random), scale(random), 0, 50};
    const int64_t width = std::max<int64_t>(1, static_cast<int64_t>((70 - x.start) / x.scale));
    const int64_t height = std::max<int64_t>(1, static_cast<int64_t>((50 - y.start) / y.scale));
    const std::string out = Resized(image, x, y, width, height);
    const auto weight = [](const ResampleAxis& axis, int64_t i, int64_t j) {
      const double centre = axis.start + (static_cast<double>(i) + 0.5) * axis.scale;
      const double distance = (static_cast<double>(j) + 0.5 - centre) / std::max(1.0, axis.scale);
      return std::max(0.0, 1 - std::abs(distance));
    };
    for (int64_t i = 0; i < height; i += 3) {
      for (int64_t j = 0; j < width; j += 3) {
        double sum = 0, total = 0;
        for (int64_t row = y.first; row < y.end; ++row) {
          for (int64_t column = x.first; column < x.end; ++column) {
            const double w = weight(y, i, row) * weight(x, j, column);
            sum += w * image.Row(row)[column * 3];
            total += w;
          }
        }
        const auto got = static_cast<uint8_t>(out[static_cast<size_t>((i * width + j) * 3)]);
        EXPECT_NEAR(got, sum / total, 1.01) << i << " " << j;  // rounded after each pass
      }
    }
  }
}

TEST(Resample, RepeatsTheEdgeBeyondThePixels) {
  Image image;
  image.Resize(2, 1);
  image.pixels = {10, 20, 30, 40, 50, 60};
  EXPECT_EQ(Resized(image, {-1, 1, 0, 2}, {0, 1, 0, 1}, 5, 2),
            std::string("\x0A\x14\x1E\x0A\x14\x1E\x28\x32\x3C\x28\x32\x3C\x28\x32\x3C"
                        "\x0A\x14\x1E\x0A\x14\x1E\x28\x32\x3C\x28\x32\x3C\x28\x32\x3C"));
}

}  // namespace
}  // namespace milepost::data
