// What a spec says of targets, and the folder that its file may have for a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/spec/parse.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using v1::JobSpec;

JobSpec Changed(const std::function<void(JobSpec*)>& change) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(LossMaskTest, ALossMaskIsOfWhatPredictsTheNextToken) {
  const auto fields = [](const JobSpec& spec) {
    std::vector<std::string> broken;
    for (const FieldViolation& violation : CheckJobSpec(spec)) broken.push_back(violation.field);
    return broken;
  };
  const auto with = [](const char* train, const char* validation) {
    return [=](JobSpec* s) {
      s->mutable_data()->mutable_loss_mask()->set_train(train);
      s->mutable_data()->mutable_loss_mask()->set_validation(validation);
    };
  };
  EXPECT_THAT(fields(Changed(with("/m.npy", ""))), IsEmpty());
  EXPECT_THAT(fields(Changed(with("", ""))), ElementsAre("data.loss_mask"));
  EXPECT_THAT(fields(Changed(with("m.npy", ""))), ElementsAre("data.loss_mask.train"));
  EXPECT_THAT(fields(Changed(with("/m.bin", ""))), ElementsAre("data.loss_mask.train"));
  const JobSpec bert = Changed([&](JobSpec* s) {
    with("/m.npy", "")(s);
    v1::BertSpec* model = s->mutable_model()->mutable_bert();
    model->set_layers(2);
    model->set_width(64);
    model->set_heads(4);
    model->set_context(48);
    model->set_vocabulary(256);
    s->mutable_data()->mutable_masking()->set_mask_token(3);
  });
  EXPECT_THAT(fields(bert), ElementsAre("data.loss_mask"));
  const JobSpec unvalidated = Changed([&](JobSpec* s) {
    with("/m.npy", "/v.npy")(s);
    s->mutable_data()->clear_validation();
  });
  EXPECT_THAT(fields(unvalidated), ElementsAre("data.loss_mask.validation"));
  const JobSpec mixture = Changed([&](JobSpec* s) {
    with("/m.npy", "")(s);
    s->mutable_data()->clear_train();
    for (const char* mask : {"/a.npy", "", "/b.bin"}) {
      v1::TokenSource& source = *s->mutable_data()->add_mixture();
      source.set_path("/t.npy");
      source.set_loss_mask(mask);
    }
  });
  EXPECT_THAT(fields(mixture), ElementsAre("data.mixture[2].loss_mask", "data.loss_mask.train"));
}

TEST(HuggingFaceFieldTest, AFolderInAModelsPlaceIsForTheOneThatReadsTheFile) {
  const JobSpec spec = Changed([](JobSpec* s) { s->mutable_model()->set_hugging_face("/m"); });
  const auto violations = CheckJobSpec(spec);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, "model.hugging_face");
}

}  // namespace
}  // namespace milepost
