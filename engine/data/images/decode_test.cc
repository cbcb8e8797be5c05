#include "engine/data/images/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
//
#include <jpeglib.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "engine/data/images/testing.h"

namespace milepost::data {
namespace {

using testing::HasSubstr;

std::string Pixels(const Image& image) {
  return {reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size()};
}

absl::StatusOr<Image> DecodeWhole(const std::string& bytes, int64_t max_pixels = 1 << 20) {
  ImageDecoder decoder({.max_pixels = max_pixels});
  const auto info = decoder.ReadInfo(bytes);
  if (!info.ok()) return info.status();
  DecodedRegion out;
  const absl::Status status =
      decoder.Decode(bytes, *info, {0, 0, info->width, info->height}, 1, &out);
  if (!status.ok()) return status;
  EXPECT_EQ(out.x, 0);
  EXPECT_EQ(out.y, 0);
  EXPECT_EQ(out.image.width, info->width);
  EXPECT_EQ(out.image.height, info->height);
  return std::move(out.image);
}

class GoldenFile : public testing::TestWithParam<const char*> {};

// The pixels are exactly those that Pillow reads.
TEST_P(GoldenFile, IsDecodedAsPillowDoes) {
  const auto image = DecodeWhole(Golden(GetParam()));
  ASSERT_TRUE(image.ok()) << image.status();
  const std::string want = Golden(std::string(GetParam()) + ".rgb");
  ASSERT_EQ(image->pixels.size(), want.size());
  int64_t differing = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    differing += image->pixels[i] != static_cast<uint8_t>(want[i]);
  }
  EXPECT_EQ(differing, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Images, GoldenFile,
    testing::Values("base.png", "grey.png", "bit.png", "palette.png", "palette256.png", "alpha.png",
                    "grey_alpha.png", "deep.png", "orientation.png", "plain.jpg", "half.jpg",
                    "full.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "restart.jpg",
                    "orientation1.jpg", "orientation2.jpg", "orientation3.jpg", "orientation4.jpg",
                    "orientation5.jpg", "orientation6.jpg", "orientation7.jpg", "orientation8.jpg"),
    [](const auto& info) {
      std::string name = info.param;
      name[name.find('.')] = '_';
      return name;
    });

// A JPEG of random waves, in a given subsampling of the chroma.
std::string MakeJpeg(int width, int height, int h, int v, bool progressive) {
  std::vector<uint8_t> row(static_cast<size_t>(width) * 3);
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  info.comp_info[0].h_samp_factor = h;
  info.comp_info[0].v_samp_factor = v;
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        row[static_cast<size_t>(x) * 3 + static_cast<size_t>(c)] =
            static_cast<uint8_t>(128 + 120 * std::sin(0.3 * x * (c + 1) + 0.21 * y * (3 - c)));
      }
    }
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&info, rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string out(reinterpret_cast<char*>(bytes), size);
  free(bytes);
  return out;
}

// Every pixel of the region equals the same pixel of the image decoded whole at that shrink.
void CheckRegion(ImageDecoder* decoder, const std::string& bytes, const Region& region,
                 int shrink) {
  const auto info = decoder->ReadInfo(bytes);
  ASSERT_TRUE(info.ok()) << info.status();
  DecodedRegion whole, part;
  ASSERT_TRUE(
      decoder->Decode(bytes, *info, {0, 0, info->width, info->height}, shrink, &whole).ok());
  ASSERT_TRUE(decoder->Decode(bytes, *info, region, shrink, &part).ok());
  ASSERT_EQ(whole.shrink, part.shrink);
  ASSERT_LE(part.x, region.x);
  ASSERT_LE(part.y, region.y);
  ASSERT_GE(part.x + part.image.width * part.shrink, region.x + region.width);
  ASSERT_GE(part.y + part.image.height * part.shrink, region.y + region.height);
  for (int64_t y = region.y; y < region.y + region.height; ++y) {
    for (int64_t x = region.x; x < region.x + region.width; ++x) {
      const auto* a =
          whole.image.Row((y - whole.y) / whole.shrink) + (x - whole.x) / whole.shrink * 3;
      const auto* b = part.image.Row((y - part.y) / part.shrink) + (x - part.x) / part.shrink * 3;
      for (int c = 0; c < 3; ++c) ASSERT_EQ(a[c], b[c]) << x << " " << y << " " << c;
    }
  }
}

TEST(DecodeRegion, EqualsThatPartOfTheWhole) {
  ImageDecoder decoder({});
  std::mt19937 random(5);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (const auto& [h, v] : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}}) {
    for (const bool progressive : {false, true}) {
      for (int round = 0; round < 12; ++round) {
        const int width = 1 + static_cast<int>(below(130));
        const int height = 1 + static_cast<int>(below(90));
        SCOPED_TRACE(testing::Message() << width << "x" << height << " " << h << "x" << v);
        const std::string bytes = MakeJpeg(width, height, h, v, progressive);
        for (const int shrink : {1, 2, 4, 8}) {
          Region region{.x = below(width), .y = below(height)};
          region.width = 1 + below(width - region.x);
          region.height = 1 + below(height - region.y);
          SCOPED_TRACE(testing::Message() << region.x << " " << region.y << " " << region.width
                                          << " " << region.height << " /" << shrink);
          CheckRegion(&decoder, bytes, region, shrink);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DecodeRegion, FollowsTheOrientationAndWorksForPng) {
  ImageDecoder decoder({});
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const std::string bytes = Golden("orientation" + std::to_string(orientation) + ".jpg");
    for (const int shrink : {1, 2, 8}) {
      SCOPED_TRACE(testing::Message() << orientation << " /" << shrink);
      CheckRegion(&decoder, bytes, {7, 11, 30, 20}, shrink);
      CheckRegion(&decoder, bytes, {31, 29, 22, 24}, shrink);
    }
  }
  CheckRegion(&decoder, Golden("orientation.png"), {7, 11, 30, 20}, 1);
  CheckRegion(&decoder, Golden("base.png"), {70, 50, 5, 3}, 4);
}

// A pixel of the shrunk image is about the mean of those that it stands for.
TEST(DecodeRegion, ShrunkPixelsAreMeans) {
  const std::string bytes = MakeJpeg(64, 48, 1, 1, false);
  ImageDecoder decoder({});
  const auto info = decoder.ReadInfo(bytes);
  ASSERT_TRUE(info.ok());
  DecodedRegion whole, half;
  ASSERT_TRUE(decoder.Decode(bytes, *info, {0, 0, 64, 48}, 1, &whole).ok());
  ASSERT_TRUE(decoder.Decode(bytes, *info, {0, 0, 64, 48}, 8, &half).ok());
  ASSERT_EQ(half.image.width, 8);
  for (int64_t y = 0; y < 6; ++y) {
    for (int64_t x = 0; x < 8; ++x) {
      for (int c = 0; c < 3; ++c) {
        double sum = 0;
        for (int i = 0; i < 64; ++i) sum += whole.image.Row(y * 8 + i / 8)[(x * 8 + i % 8) * 3 + c];
        EXPECT_NEAR(half.image.Row(y)[x * 3 + c], sum / 64, 4);
      }
    }
  }
}

TEST(Decode, RefusesWhatIsTooLargeBeforeDecoding) {
  for (const char* name : {"plain.jpg", "base.png"}) {
    EXPECT_TRUE(DecodeWhole(Golden(name), 75 * 53).ok());
    const auto image = DecodeWhole(Golden(name), 75 * 53 - 1);
    EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(image.status().message()), HasSubstr("75 x 53 pixels"));
  }
}

TEST(Decode, RefusesEveryTruncation) {
  for (const char* name : {"plain.jpg", "progressive.jpg", "cmyk.jpg", "base.png", "palette.png"}) {
    const std::string bytes = Golden(name);
    ASSERT_TRUE(DecodeWhole(bytes).ok());
    // Whole pixels without the end marker may pass.
    constexpr size_t kTail = 24;
    for (size_t size = 0; size + kTail < bytes.size(); size += 1 + size / 40) {
      const auto image = DecodeWhole(bytes.substr(0, size));
      ASSERT_FALSE(image.ok()) << name << " cut to " << size << " of " << bytes.size();
      EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_FALSE(image.status().message().empty());
    }
  }
  const std::string bytes = Golden("plain.jpg");
  EXPECT_THAT(std::string(DecodeWhole(bytes.substr(0, bytes.size() / 2)).status().message()),
              HasSubstr("truncated"));
  const std::string png = Golden("base.png");
  EXPECT_THAT(std::string(DecodeWhole(png.substr(0, png.size() / 2)).status().message()),
              HasSubstr("truncated"));
}

TEST(Decode, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(DecodeWhole("GIF89a").status().message()), HasSubstr("neither JPEG"));
  std::string png = Golden("base.png");
  png[png.size() / 2] ^= 1;  // the checksum of the pixels no longer fits
  EXPECT_THAT(std::string(DecodeWhole(png).status().message()), HasSubstr("PNG: "));
  std::string jpeg = Golden("plain.jpg");
  jpeg.replace(jpeg.size() / 2, 2, "\xFF\xD9");  // an end in the middle
  const auto image = DecodeWhole(jpeg);
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(std::string(image.status().message()), HasSubstr("JPEG: "));
}

// A progressive file of very many scans, each of which costs a pass over the image.
TEST(Decode, RefusesEndlessScans) {
  const std::string bytes = MakeJpeg(64, 64, 1, 1, true);
  const size_t end = bytes.size() - 2;
  const size_t last = bytes.rfind("\xFF\xDA");
  ASSERT_NE(last, std::string::npos);
  std::string many = bytes.substr(0, end);
  for (int i = 0; i < 200; ++i) many += bytes.substr(last, end - last);
  many += bytes.substr(end);
  EXPECT_FALSE(DecodeWhole(many).ok());
}

TEST(Decode, OneDecoderServesManyFiles) {
  ImageDecoder decoder({});
  DecodedRegion out;
  for (const char* name : {"plain.jpg", "base.png", "orientation6.jpg", "plain.jpg"}) {
    const std::string bytes = Golden(name);
    const auto info = decoder.ReadInfo(bytes);
    ASSERT_TRUE(info.ok());
    ASSERT_FALSE(decoder
                     .Decode(bytes.substr(0, bytes.size() / 2), *info,
                             {0, 0, info->width, info->height}, 1, &out)
                     .ok());
    ASSERT_TRUE(decoder.Decode(bytes, *info, {0, 0, info->width, info->height}, 1, &out).ok());
    EXPECT_EQ(Pixels(out.image), Golden(std::string(name) + ".rgb")) << name;
  }
}

}  // namespace
}  // namespace milepost::data
