#include "engine/data/images/image_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/fingerprint.h"
#include "engine/data/images/testing.h"
#include "engine/data/prefetcher.h"

namespace milepost::data {
namespace {

using testing::HasSubstr;

struct Sample {
  std::string pixels;
  int32_t label = -1;
  bool operator==(const Sample&) const = default;
};

class ImageSourceTest : public testing::Test {
 protected:
  ImageSourceTest() {
    std::string name = testing::TempDir() + "/source_XXXXXX";
    folder_ = mkdtemp(name.data());
    const char* files[] = {"plain.jpg", "base.png", "grey.jpg", "orientation6.jpg", "palette.png"};
    for (int i = 0; i < 10; ++i) {
      Write(absl::StrCat("class", i / 2, "/", i % 2, ".img.jpg"), Golden(files[i % 5]));
    }
  }
  ~ImageSourceTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::shared_ptr<const ImageSource> Open(const ImageSourceOptions& options) {
    auto source = ImageSource::Open(folder_, options);
    EXPECT_TRUE(source.ok()) << source.status();
    return *source;
  }
  static absl::StatusOr<Sample> Fetch(const ImageSource& source, int64_t number) {
    Sample sample;
    sample.pixels.resize(static_cast<size_t>(source.fields()[0].sample_bytes));
    const absl::Status status =
        source.Fetch(number, 1, {sample.pixels.data(), reinterpret_cast<char*>(&sample.label)});
    if (!status.ok()) return status;
    return sample;
  }

  const ViewOptions small_ = {.image_size = 16, .resize = 20};
  std::string folder_;
};

TEST_F(ImageSourceTest, OtherImagesHaveAnotherFingerprint) {
  const auto print = [&] {
    Fingerprint print;
    EXPECT_EQ(Open({.view = small_, .classes = 5})->AddTo(&print), absl::OkStatus());
    return print.value();
  };
  const uint64_t before = print();
  EXPECT_EQ(print(), before);
  Write("class2/0.img.jpg", Golden("base.png"));
  const uint64_t another = print();
  EXPECT_NE(another, before);
  std::filesystem::rename(folder_ + "/class2/1.img.jpg", folder_ + "/class3/2.img.jpg");
  EXPECT_NE(print(), another);
}

TEST_F(ImageSourceTest, EpochsVisitEveryImageOnceAndDiffer) {
  const auto source = Open({.view = small_, .classes = 5, .seed = 3});
  ASSERT_EQ(source->samples(), 10);
  EXPECT_EQ(source->fields()[0].name, "images");
  EXPECT_EQ(source->fields()[0].sample_bytes, 16 * 16 * 3);
  EXPECT_EQ(source->fields()[1].name, "targets");
  EXPECT_EQ(source->fields()[1].targets, 1);
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 20; ++i) samples.push_back(*Fetch(*source, i));
  for (const int64_t epoch : {0, 10}) {
    std::map<int32_t, int> labels;
    for (int64_t i = epoch; i < epoch + 10; ++i) ++labels[samples[static_cast<size_t>(i)].label];
    EXPECT_EQ(labels.size(), 5u);
    for (const auto& [label, count] : labels) EXPECT_EQ(count, 2) << label;
  }
  for (size_t i = 0; i < 10; ++i) {
    for (size_t j = 10; j < 20; ++j) EXPECT_NE(samples[i].pixels, samples[j].pixels);
  }
  // In any order, alone or together, from another opening: the same samples.
  const auto again = Open({.view = small_, .classes = 5, .seed = 3});
  std::string pixels(20 * 768, '\0');
  std::vector<int32_t> labels(20);
  ASSERT_TRUE(again->Fetch(0, 20, {pixels.data(), reinterpret_cast<char*>(labels.data())}).ok());
  for (size_t i = 20; i-- > 0;) {
    EXPECT_EQ(*Fetch(*source, static_cast<int64_t>(i)), samples[i]);
    EXPECT_EQ(pixels.substr(i * 768, 768), samples[i].pixels);
    EXPECT_EQ(labels[i], samples[i].label);
  }
  EXPECT_FALSE(*Fetch(*Open({.view = small_, .seed = 4}), 0) == samples[0]);
  EXPECT_EQ(source->stats().samples, 40);
  EXPECT_GT(source->stats().bytes_read, 40 * 500);
  EXPECT_GT(source->stats().busy_seconds, 0);
}

TEST_F(ImageSourceTest, ValidationIsCentredAndInOrder) {
  const auto source = Open({.view = small_, .train = false});
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(Fetch(*source, i)->label, i / 2);
  ViewRenderer renderer({});
  const std::string bytes = Golden("base.png");
  std::string want(768, '\0');
  ASSERT_TRUE(renderer
                  .Render(bytes, *renderer.ReadInfo(bytes),
                          CentreView(small_, kGoldenWidth, kGoldenHeight), 16,
                          reinterpret_cast<uint8_t*>(want.data()))
                  .ok());
  EXPECT_EQ(Fetch(*source, 1)->pixels, want);
}

// Pixels of the samples' size stay as they are.
TEST_F(ImageSourceTest, TrainingOnCentresKeepsWholePixels) {
  const std::string bytes = Golden("base.png");
  std::filesystem::remove_all(folder_);
  Write("a/1.png", bytes);
  const ViewOptions view = {.image_size = 53, .random_crop = false, .flip = 0.5, .resize = 53};
  const auto source = Open({.view = view, .seed = 2});
  const std::string pixels = Golden("base.png.rgb");
  int mirrored = 0;
  for (int64_t i = 0; i < 40; ++i) {
    const bool flip = IsMirrored(view, 2, i);
    mirrored += flip;
    const std::string got = Fetch(*source, i)->pixels;
    for (size_t x = 0; x < 53; ++x) {
      EXPECT_EQ(got.substr((53 + x) * 3, 3), pixels.substr((75 + 11 + (flip ? 52 - x : x)) * 3, 3));
    }
  }
  EXPECT_GT(mirrored, 5);
  EXPECT_LT(mirrored, 35);
}

TEST_F(ImageSourceTest, ThreadsAndWorldSizeChangeNothing) {
  const auto source = Open({.view = small_, .seed = 8});
  std::map<int64_t, Sample> seen;
  const auto run = [&](int64_t micro, int64_t accumulation, int world, int threads) {
    for (int rank = 0; rank < world; ++rank) {
      Prefetcher prefetcher(source, {micro, accumulation, rank, world},
                            {.depth = 2, .threads = threads});
      prefetcher.Start(0);
      for (int i = 0; i < 4 * accumulation; ++i) {
        const auto batch = prefetcher.Next();
        ASSERT_TRUE(batch.ok()) << batch.status();
        for (int64_t j = 0; j < micro; ++j) {
          Sample sample;
          sample.pixels.assign((*batch)->fields[0].data() + j * 768, 768);
          std::memcpy(&sample.label, (*batch)->fields[1].data() + j * 4, 4);
          const auto [at, fresh] = seen.emplace((*batch)->first_sample + j, sample);
          EXPECT_EQ(at->second, sample);
        }
      }
    }
  };
  run(6, 1, 1, 1);
  ASSERT_EQ(seen.size(), 24u);
  run(6, 1, 1, 4);
  run(1, 2, 3, 3);
  run(3, 1, 2, 2);
  EXPECT_EQ(seen.size(), 24u);
}

TEST_F(ImageSourceTest, ADamagedImageIsAnErrorWithItsPath) {
  const std::string bytes = Golden("base.png");
  Write("class2/0.img.jpg", bytes.substr(0, bytes.size() / 2));
  const auto source = Open({.view = small_, .train = false});
  const auto sample = Fetch(*source, 4);
  EXPECT_EQ(sample.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sample.status().message(), folder_ + "/class2/0.img.jpg: PNG: the file is truncated");
  EXPECT_TRUE(Fetch(*source, 3).ok());
}

TEST_F(ImageSourceTest, SkippingTakesTheNextGoodImage) {
  Write("class2/1.img.jpg", "no image");
  Write("class3/0.img.jpg", "");
  Write("class4/1.img.jpg", "no image");
  const auto source = Open({.view = small_, .train = false, .skip_damaged = true});
  EXPECT_EQ(*Fetch(*source, 5), *Fetch(*source, 7));  // over two damaged ones
  EXPECT_EQ(Fetch(*source, 5)->label, 3);
  EXPECT_EQ(Fetch(*source, 9)->label, 0);  // around the end
  EXPECT_EQ(source->stats().damaged, 3);
  ASSERT_NE(source->stats().first_damage, nullptr);
  EXPECT_THAT(*source->stats().first_damage, HasSubstr("class2/1.img.jpg: neither JPEG nor PNG"));
  std::filesystem::remove(folder_ + "/class1/0.img.jpg");  // not there is not damaged
  EXPECT_EQ(Fetch(*source, 2).status().code(), absl::StatusCode::kNotFound);
}

class ImageLabelsTest : public ImageSourceTest {
 protected:
  // Of the folder's images in its order; class 0 has images 0 and 1.
  void WriteLabels(const std::string& values) {
    std::string header = absl::StrCat("{'descr': '|i1', 'fortran_order': False, 'shape': (",
                                      values.size(), ",), }\n");
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size());
    bytes += '\0';
    std::ofstream(labels_.path, std::ios::binary) << bytes << header << values;
  }
  void TearDown() override { std::filesystem::remove(labels_.path); }

  static int32_t LabelOf(const ImageSource& source, int64_t number) {
    std::string pixels(static_cast<size_t>(source.fields()[0].sample_bytes), ' ');
    int32_t target = -1, label = -2;
    EXPECT_EQ(source.Fetch(number, 1,
                           {pixels.data(), reinterpret_cast<char*>(&target),
                            reinterpret_cast<char*>(&label)}),
              absl::OkStatus());
    return label;
  }

  const LabelOptions labels_ = {
      .field = "labels.hue", .path = folder_ + ".labels.npy", .classes = 10, .head = "hue"};
};

TEST_F(ImageLabelsTest, BelongToTheirImages) {
  WriteLabels({9, 8, -1, 6, 5, 4, 3, 2, 1, 0});
  const auto source = Open({.view = small_, .classes = 5, .train = false, .labels = {labels_}});
  ASSERT_EQ(source->fields().size(), 3u);
  EXPECT_EQ(source->fields()[2].name, "labels.hue");
  for (const int64_t i : {0, 2, 7}) EXPECT_EQ(LabelOf(*source, i), i == 2 ? -1 : 9 - i);
  EXPECT_EQ(*source->CountTargets(2, 0, 4), 3);
  EXPECT_EQ(*source->CountTargets(1, 0, 4), 4);
  const auto train = Open({.view = small_, .classes = 5, .seed = 4, .labels = {labels_}});
  int64_t valid = 0;
  for (int64_t i = 0; i < 7; ++i) valid += LabelOf(*train, 5 + i) >= 0 ? 1 : 0;
  EXPECT_EQ(*train->CountTargets(2, 5, 7), valid);
}

TEST_F(ImageLabelsTest, OfAnotherNumberOrRangeAreRefused) {
  const auto refusal = [&](const std::string& values) {
    WriteLabels(values);
    const auto source = ImageSource::Open(folder_, {.view = small_, .labels = {labels_}});
    return std::string(source.status().message());
  };
  EXPECT_THAT(refusal(std::string(9, '\0')), HasSubstr("9 labels, but " + folder_ + " has 10"));
  EXPECT_THAT(refusal(std::string(10, '\x0a')), HasSubstr("label 0 is 10"));
}

// What stands for a damaged image has a label where that one has: the count of targets holds.
TEST_F(ImageLabelsTest, ReplacementsKeepTheCountOfTargets) {
  WriteLabels({-1, 8, -1, -1, 5, 4, 3, 2, 1, 0});
  Write("class0/0.img.jpg", "no image");
  Write("class0/1.img.jpg", "no image");
  const auto source =
      Open({.view = small_, .train = false, .skip_damaged = true, .labels = {labels_}});
  EXPECT_EQ(LabelOf(*source, 0), -1);
  EXPECT_EQ(LabelOf(*source, 1), 5);  // over two that have none
  EXPECT_EQ(*source->CountTargets(2, 0, 2), 1);
}

TEST_F(ImageSourceTest, SkippingEndsSomewhere) {
  for (int i = 0; i < 10; ++i) Write(absl::StrCat("class", i / 2, "/", i % 2, ".img.jpg"), "no");
  const auto source = Open({.view = small_, .skip_damaged = true});
  EXPECT_EQ(Fetch(*source, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ImageSourceTest, PatchesAreSamples) {
  const ViewOptions tiles = {.image_size = 20, .patch_size = 20, .patch_stride = 15};
  const auto source = Open({.view = tiles, .train = false});
  // 75 x 53: 5 columns and 4 rows; turned: 4 and 5.
  ASSERT_EQ(source->samples(), 200);
  const std::string pixels = Golden("base.png.rgb");
  for (const int64_t tile : {0, 7, 19}) {  // of image 1, in class 0
    const auto sample = Fetch(*source, 20 + tile);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(sample->label, 0);
    const auto x = static_cast<size_t>(std::min<int64_t>(tile % 5 * 15, 55));
    const auto y = static_cast<size_t>(std::min<int64_t>(tile / 5 * 15, 33));
    for (size_t row = 0; row < 20; ++row) {
      EXPECT_EQ(sample->pixels.substr(row * 60, 60), pixels.substr(((y + row) * 75 + x) * 3, 60));
    }
  }
  EXPECT_EQ(Fetch(*source, 199)->label, 4);
  // Training visits all of them in another order, some of them mirrored.
  const auto train = Open({.view = tiles, .seed = 1});
  std::map<int32_t, int> labels;
  for (int64_t i = 0; i < 200; ++i) ++labels[Fetch(*train, i)->label];
  for (const auto& [label, count] : labels) EXPECT_EQ(count, 40) << label;
}

TEST_F(ImageSourceTest, PatchesOfDamagedImages) {
  const ViewOptions tiles = {.image_size = 20, .patch_size = 20, .patch_stride = 15};
  const std::string bytes = Golden("base.png");
  Write("class0/1.img.jpg", bytes.substr(0, bytes.size() / 2));  // its header is whole
  Write("class1/0.img.jpg", "no image");
  const auto refused = ImageSource::Open(folder_, {.view = tiles, .train = false});
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("class1/0.img.jpg: neither JPEG nor PNG"));
  const auto source = Open({.view = tiles, .train = false, .skip_damaged = true});
  ASSERT_EQ(source->samples(), 180);
  EXPECT_EQ(*Fetch(*source, 39), *Fetch(*source, 59));  // tile 19 of the next image with tiles
  EXPECT_EQ(source->stats().damaged, 1);
}

TEST_F(ImageSourceTest, LargeImagesAreRefused) {
  const auto source = Open({.view = small_, .limits = {.max_pixels = 1000}});
  EXPECT_THAT(std::string(Fetch(*source, 0).status().message()), HasSubstr("max_pixels"));
}

}  // namespace
}  // namespace milepost::data
