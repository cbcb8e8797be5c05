// What a spec says of micro-batches that are trained side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "common/spec/parse.h"
#include "common/spec/sizes.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;
using v1::JobSpec;

// Of four micro-batches.
JobSpec Beside(
    int side_by_side, const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  v1::BatchSpec* batch = spec->mutable_train()->mutable_batch();
  batch->clear_global();
  batch->set_micro(2);
  batch->set_accumulation(4);
  batch->set_side_by_side(side_by_side);
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(SideBySideSpec, OneIsNone) {
  JobSpec none = Beside(1);
  EXPECT_FALSE(none.train().batch().has_side_by_side());
  EXPECT_EQ(SideBySide(none.train().batch()), 1);
  EXPECT_EQ(ValidateJobSpec(none), absl::OkStatus());
  const JobSpec two = Beside(2);
  EXPECT_EQ(ValidateJobSpec(two), absl::OkStatus());
  EXPECT_EQ(SideBySide(two.train().batch()), 2);
  EXPECT_NE(SpecDigest(two), SpecDigest(none));
  EXPECT_EQ(StateDigest(two), StateDigest(none));
  const auto back = ParseJobSpecYaml(MessageToYaml(two), "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->SerializeAsString(), two.SerializeAsString());
}

TEST(SideBySideSpec, RefusesWhatItCannotWorkWith) {
  const auto message = [](const JobSpec& spec) {
    return std::string(ValidateJobSpec(spec).message());
  };
  EXPECT_THAT(message(Beside(3)), HasSubstr("train.batch.side_by_side: must divide "
                                            "train.batch.accumulation (4), got 3; nearest: 2"));
  for (const int wrong : {-1, 0, 9}) {
    EXPECT_THAT(message(Beside(wrong)), HasSubstr("train.batch.side_by_side: expected 1 to 8"));
  }
  const std::pair<const char*, std::function<void(JobSpec*)>> cases[] = {
      {"resources.mesh.pipeline",
       [](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_pipeline(2); }},
      {"take bf16", [](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP8); }},
      {"train.offload.activations",
       [](JobSpec* s) { s->mutable_train()->mutable_offload()->set_activations(true); }},
      {"model.resnet", [](JobSpec* s) { s->mutable_model()->mutable_resnet(); }}};
  for (const auto& [what, change] : cases) {
    const std::string said = message(Beside(2, change));
    EXPECT_THAT(said, HasSubstr("train.batch.side_by_side: is not for")) << what;
    EXPECT_THAT(said, HasSubstr(what));
  }
}

}  // namespace
}  // namespace milepost
