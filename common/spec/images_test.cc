// data.images: defaults and rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using v1::ImageDataSpec;

v1::JobSpec Normalized(
    const std::string& train,
    const std::function<void(v1::JobSpec*)>& change = [](v1::JobSpec*) {}) {
  auto spec = ParseJobSpecYaml(
      "name: n\nmodel: {resnet: {depth: 18, classes: 10, image_size: 96}}\n"
      "data: {train: " +
          train + "}\ntrain: {steps: 5, batch: {global: 8, micro: 8}}\n",
      "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *spec;
}

TEST(ImageSpecTest, CompressedImagesAreCroppedAtRandomByDefault) {
  const v1::JobSpec spec = Normalized("/data/train");
  EXPECT_THAT(CheckJobSpec(spec), testing::IsEmpty());
  const ImageDataSpec& images = spec.data().images();
  EXPECT_EQ(images.crop(), v1::IMAGE_CROP_RANDOM);
  EXPECT_EQ(images.min_scale(), 0.08);
  EXPECT_EQ(images.max_scale(), 1);
  EXPECT_EQ(images.min_ratio(), 0.75);
  EXPECT_EQ(images.max_ratio(), 4.0 / 3);
  EXPECT_EQ(images.flip(), 0.5);
  EXPECT_EQ(images.resize(), 109);  // 224: 256
  EXPECT_FALSE(images.has_patch());
  EXPECT_EQ(images.decode_threads(), 4);
  EXPECT_EQ(images.on_corrupt(), v1::ON_CORRUPT_FAIL);
  EXPECT_EQ(images.max_pixels(), 1 << 27);
}

TEST(ImageSpecTest, PlainPixelsAreTakenAsTheyAreByDefault) {
  const ImageDataSpec images = Normalized("/data/train.npy").data().images();
  EXPECT_EQ(images.crop(), v1::IMAGE_CROP_CENTRE);
  EXPECT_EQ(images.flip(), 0);
  EXPECT_EQ(images.resize(), 96);
}

TEST(ImageSpecTest, PatchesAreOfTheModelsSizeAndSideBySideByDefault) {
  const v1::JobSpec spec =
      Normalized("/d", [](auto* s) { s->mutable_data()->mutable_images()->mutable_patch(); });
  EXPECT_EQ(spec.data().images().patch().size(), 96);
  EXPECT_EQ(spec.data().images().patch().stride(), 96);
  EXPECT_THAT(CheckJobSpec(spec), testing::IsEmpty());
}

TEST(ImageSpecTest, FindsEachBrokenRule) {
  const std::pair<const char*, std::function<void(ImageDataSpec*)>> cases[] = {
      {"crop", [](auto* s) { s->set_crop(static_cast<v1::ImageCrop>(9)); }},
      {"min_scale", [](auto* s) { s->set_min_scale(0); }},
      {"max_scale", [](auto* s) { s->set_max_scale(1.5); }},
      {"max_scale", [](auto* s) { s->set_max_scale(0.05); }},
      {"min_ratio", [](auto* s) { s->set_min_ratio(-1); }},
      {"max_ratio", [](auto* s) { s->set_max_ratio(0.5); }},
      {"flip", [](auto* s) { s->set_flip(1.1); }},
      {"resize", [](auto* s) { s->set_resize(95); }},
      {"patch.size", [](auto* s) { s->mutable_patch()->set_size(70000); }},
      {"patch.stride", [](auto* s) { s->mutable_patch()->set_stride(97); }},
      {"decode_threads", [](auto* s) { s->set_decode_threads(0); }},
      {"on_corrupt", [](auto* s) { s->set_on_corrupt(static_cast<v1::OnCorrupt>(9)); }},
      {"max_pixels", [](auto* s) { s->set_max_pixels(0); }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(Normalized(
        "/d", [&change = change](auto* s) { change(s->mutable_data()->mutable_images()); }));
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, std::string("data.images.") + field);
  }
}

TEST(ImageSpecTest, BelongToImageModels) {
  v1::JobSpec spec = Normalized("/d.npy");
  v1::Gpt2Spec* gpt2 = spec.mutable_model()->mutable_gpt2();
  gpt2->set_layers(1);
  gpt2->set_width(8);
  gpt2->set_heads(1);
  gpt2->set_context(8);
  gpt2->set_vocabulary(8);
  const auto violations = CheckJobSpec(spec);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, "data.images");
}

}  // namespace
}  // namespace milepost
