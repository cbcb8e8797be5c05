// What a spec says of a Vision Transformer and its images.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "common/spec/model_sizes.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::IsEmpty;
using v1::JobSpec;

JobSpec WithVit(const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  auto spec = ParseJobSpecYaml(
      "name: n\nmodel: {vit: {layers: 2, width: 64, heads: 4, classes: 10}}\n"
      "data: {train: /data/train}\ntrain: {steps: 5, batch: {global: 8, micro: 8}}\n",
      "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(VitTest, HasDefaults) {
  const JobSpec spec = WithVit();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  const v1::VitSpec& vit = spec.model().vit();
  EXPECT_EQ(vit.hidden(), 256);
  EXPECT_EQ(vit.image_size(), 224);
  EXPECT_EQ(vit.patch_size(), 16);
  EXPECT_EQ(vit.norm_epsilon(), 1e-12);
  EXPECT_EQ(vit.label_smoothing(), 0);
  for (const v1::RgbSpec& rgb : {vit.pixel_mean(), vit.pixel_deviation()}) {
    EXPECT_EQ(rgb.red(), 0.5);
    EXPECT_EQ(rgb.green(), 0.5);
    EXPECT_EQ(rgb.blue(), 0.5);
  }
  EXPECT_EQ(spec.data().sequence_length(), 1);
  EXPECT_EQ(spec.data().images().resize(), 256);
  EXPECT_EQ(spec.data().images().crop(), v1::IMAGE_CROP_RANDOM);
  const ModelSizes sizes = SizesOf(spec.model());
  EXPECT_STREQ(sizes.family, "vit");
  EXPECT_TRUE(sizes.images);
  EXPECT_EQ(sizes.vocabulary, 10);
  EXPECT_EQ(sizes.width, 64);
  EXPECT_EQ(sizes.image_size, 224);
}

TEST(VitTest, TakesEveryPrecisionAndAdapters) {
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16, v1::PRECISION_FP8}) {
    EXPECT_THAT(CheckJobSpec(WithVit([precision](JobSpec* s) {
                  s->mutable_train()->set_precision(precision);
                  s->mutable_train()->set_init_from("/models/vit");
                  s->mutable_model()->mutable_lora()->set_rank(4);
                })),
                IsEmpty());
  }
}

TEST(VitTest, EachBrokenRuleIsFound) {
  using Change = std::function<void(v1::VitSpec*)>;
  const std::vector<std::pair<const char*, Change>> cases = {
      {"layers", [](auto* v) { v->set_layers(0); }},
      {"heads", [](auto* v) { v->set_heads(5); }},
      {"hidden", [](auto* v) { v->set_hidden(-1); }},
      {"classes", [](auto* v) { v->set_classes(0); }},
      {"image_size", [](auto* v) { v->set_image_size(0); }},
      {"patch_size", [](auto* v) { v->set_patch_size(15); }},
      {"patch_size", [](auto* v) { v->set_patch_size(0); }},
      {"patch_size",
       [](auto* v) {
         v->set_image_size(1024);
         v->set_patch_size(1);
       }},
      {"dropout", [](auto* v) { v->set_dropout(1); }},
      {"norm_epsilon", [](auto* v) { v->set_norm_epsilon(0); }},
      {"label_smoothing", [](auto* v) { v->set_label_smoothing(1); }},
      {"pixel_mean.red", [](auto* v) { v->mutable_pixel_mean()->set_red(2); }},
      {"pixel_deviation.blue",
       [](auto* v) {
         v->mutable_pixel_deviation()->set_red(1);
         v->mutable_pixel_deviation()->set_green(1);
       }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(
        WithVit([&change = change](JobSpec* s) { change(s->mutable_model()->mutable_vit()); }));
    ASSERT_FALSE(violations.empty()) << field;
    EXPECT_EQ(violations[0].field, std::string("model.vit.") + field);
  }
}

}  // namespace
}  // namespace milepost
