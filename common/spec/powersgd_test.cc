// What a spec says of gradients that travel as factors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "common/spec/parse.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using v1::JobSpec;

JobSpec Compressed(const std::function<void(JobSpec*)>& change) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  spec->mutable_train()->mutable_zero()->clear_stage();
  spec->mutable_train()->mutable_powersgd();
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(PowerSgdSpec, HasDefaults) {
  const JobSpec spec = Compressed([](JobSpec*) {});
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().powersgd().rank(), 4);
  EXPECT_EQ(spec.train().powersgd().start_step(), 1000);
  EXPECT_TRUE(spec.train().powersgd().warm_start());
  EXPECT_EQ(spec.train().zero().stage(), 0);
  const auto back = ParseJobSpecYaml(MessageToYaml(spec), "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->SerializeAsString(), spec.SerializeAsString());
}

TEST(PowerSgdSpec, ChangesWhatIsComputedButNotWhatAStateIs) {
  const JobSpec with = Compressed([](JobSpec*) {});
  const auto without = [](int stage) {
    return Compressed([&](JobSpec* s) {
      s->mutable_train()->clear_powersgd();
      s->mutable_train()->mutable_zero()->set_stage(stage);
    });
  };
  EXPECT_EQ(StateDigest(with), StateDigest(without(0)));
  EXPECT_NE(LineageDigest(with), LineageDigest(without(0)));
  const JobSpec absent = Compressed([](JobSpec* s) { s->mutable_train()->clear_powersgd(); });
  EXPECT_EQ(SpecDigest(absent), SpecDigest(without(1))) << "the default of those without";
  EXPECT_FALSE(absent.train().has_powersgd());
}

TEST(PowerSgdSpec, NumbersAreInRange) {
  const auto fields = [](const std::function<void(v1::PowerSgdSpec*)>& change) {
    return FieldsOf(
        Compressed([&](JobSpec* s) { change(s->mutable_train()->mutable_powersgd()); }));
  };
  EXPECT_THAT(fields([](auto* p) { p->set_rank(1); }), IsEmpty());
  EXPECT_THAT(fields([](auto* p) { p->set_start_step(0); }), IsEmpty());
  for (const int rank : {-1, 0, 1025}) {
    EXPECT_THAT(fields([&](auto* p) { p->set_rank(rank); }), ElementsAre("train.powersgd.rank"));
  }
  EXPECT_THAT(fields([](auto* p) { p->set_start_step(-1); }),
              ElementsAre("train.powersgd.start_step"));
}

TEST(PowerSgdSpec, RefusesWhatItCannotWorkWith) {
  const std::pair<const char*, std::function<void(JobSpec*)>> cases[] = {
      {"train.zero.stage: 0", [](JobSpec* s) { s->mutable_train()->mutable_zero()->set_stage(1); }},
      {"train.zero.stage: 0",
       [](JobSpec* s) { s->mutable_train()->mutable_zero()->set_stage(-1); }},  // auto
      {"resources.mesh",
       [](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_context(2); }},
      {"train.precision bf16",
       [](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP16); }},
      {"train.grad_reduce: fp32",
       [](JobSpec* s) { s->mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16); }},
      {"train.grad_dtype: fp32",
       [](JobSpec* s) { s->mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16); }},
      {"train.memory", [](JobSpec* s) { s->mutable_train()->set_memory(v1::MEMORY_USE_LOW); }},
      {"train.offload.optimizer: none",
       [](JobSpec* s) {
         s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
       }},
      {"checkpoint.redundancy: 0", [](JobSpec* s) { s->mutable_checkpoint()->set_redundancy(1); }}};
  for (const auto& [remedy, change] : cases) {
    const std::string message(ValidateJobSpec(Compressed(change)).message());
    EXPECT_THAT(message, HasSubstr("train.powersgd")) << remedy;
    EXPECT_THAT(message, HasSubstr(remedy));
  }
}

}  // namespace
}  // namespace milepost
