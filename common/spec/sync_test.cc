// What a spec says of islands that train apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "common/spec/parse.h"
#include "common/spec/sizes.h"
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

JobSpec Synced(const std::function<void(JobSpec*)>& change) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  spec->mutable_train()->set_steps(60);
  spec->mutable_train()->clear_schedule();
  spec->mutable_train()->mutable_sync()->set_every(20);
  spec->mutable_train()->mutable_sync()->set_islands(2);
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(SyncSpec, HasDefaults) {
  const JobSpec spec = Synced([](JobSpec*) {});
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  const v1::OuterOptimizerSpec& outer = spec.train().sync().outer_optimizer();
  EXPECT_EQ(outer.lr(), 0.7);
  EXPECT_EQ(outer.momentum(), 0.9);
  EXPECT_TRUE(outer.nesterov());
  const auto back = ParseJobSpecYaml(MessageToYaml(spec), "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->SerializeAsString(), spec.SerializeAsString());
}

TEST(SyncSpec, ChangesWhatIsComputedButNotWhatAStateIs) {
  const JobSpec with = Synced([](JobSpec*) {});
  const JobSpec without = Synced([](JobSpec* s) { s->mutable_train()->clear_sync(); });
  EXPECT_EQ(StateDigest(with), StateDigest(without));
  EXPECT_NE(LineageDigest(with), LineageDigest(without));
  EXPECT_FALSE(without.train().has_sync());
}

TEST(SyncSpec, NumbersAreInRange) {
  const auto fields = [](const std::function<void(v1::SyncSpec*)>& change) {
    return FieldsOf(Synced([&](JobSpec* s) { change(s->mutable_train()->mutable_sync()); }));
  };
  EXPECT_THAT(fields([](auto* s) { s->set_islands(1); }), IsEmpty());
  EXPECT_THAT(fields([](auto* s) { s->clear_islands(); }), ElementsAre("train.sync.islands"));
  EXPECT_THAT(fields([](auto* s) { s->set_islands(-2); }), ElementsAre("train.sync.islands"));
  EXPECT_THAT(fields([](auto* s) { s->set_islands(3); }), ElementsAre("train.sync.islands"));
  EXPECT_THAT(fields([](auto* s) { s->clear_every(); }), ElementsAre("train.sync.every"));
  EXPECT_THAT(fields([](auto* s) { s->set_every(-1); }), ElementsAre("train.sync.every"));
  for (const double lr : {0.0, -1.0, 10.5}) {
    EXPECT_THAT(fields([&](auto* s) { s->mutable_outer_optimizer()->set_lr(lr); }),
                ElementsAre("train.sync.outer_optimizer.lr"));
  }
  for (const double momentum : {-0.1, 1.0}) {
    EXPECT_THAT(fields([&](auto* s) { s->mutable_outer_optimizer()->set_momentum(momentum); }),
                ElementsAre("train.sync.outer_optimizer.momentum"));
  }
}

// What ends between two outer steps would have as many models as there are islands.
TEST(SyncSpec, StepsEndWithOuterSteps) {
  const JobSpec spec = Synced([](JobSpec* s) {
    s->mutable_train()->set_steps(70);
    s->mutable_train()->mutable_validation()->set_every(30);
    s->mutable_data()->set_validation("/v.npy");
    s->mutable_checkpoint()->set_every(10);
  });
  EXPECT_THAT(FieldsOf(spec),
              ElementsAre("train.steps", "checkpoint.every", "train.validation.every"));
  const std::string message(ValidateJobSpec(spec).message());
  EXPECT_THAT(message, HasSubstr("multiple of train.sync.every (20), got 70; nearest: 60 or 80"));
  EXPECT_THAT(message, HasSubstr("got 10; nearest: 20"));
}

TEST(SyncSpec, IslandsAreWholeMeshesAndShardGroups) {
  const auto fields = [](int ranks, const std::function<void(JobSpec*)>& change) {
    return FieldsOf(Synced([&](JobSpec* s) {
      s->mutable_resources()->set_ranks(ranks);
      s->mutable_train()->mutable_batch()->set_global(16);
      s->mutable_train()->mutable_batch()->clear_accumulation();
      s->mutable_train()->mutable_batch()->set_micro(1);
      change(s);
    }));
  };
  EXPECT_THAT(fields(8, [](JobSpec* s) { s->mutable_train()->mutable_zero()->set_group(4); }),
              IsEmpty());
  EXPECT_THAT(fields(8, [](JobSpec* s) { s->mutable_train()->mutable_zero()->set_group(8); }),
              ElementsAre("train.zero.group"));
  EXPECT_THAT(
      fields(8, [](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_pipeline(2); }),
      IsEmpty());
  EXPECT_THAT(
      fields(2, [](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_pipeline(2); }),
      ElementsAre("train.sync.islands"));
}

// Islands get smaller; there are not fewer of them.
TEST(SyncSpec, ElasticJobsKeepTheirIslands) {
  const JobSpec spec = Synced([](JobSpec* s) {
    s->mutable_resources()->set_ranks(4);
    s->mutable_resources()->set_min_ranks(2);
    s->mutable_train()->mutable_batch()->set_global(12);
    s->mutable_train()->mutable_batch()->clear_accumulation();
    s->mutable_train()->mutable_batch()->set_micro(1);
  });
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(2, 4));
  JobSpec odd = spec;
  odd.mutable_resources()->set_min_ranks(1);
  EXPECT_THAT(std::string(ValidateJobSpec(odd).message()),
              HasSubstr("must be a multiple of train.sync.islands (2), got 1"));
}

TEST(SyncSpec, RefusesWhatItCannotWorkWith) {
  const std::pair<const char*, std::function<void(JobSpec*)>> cases[] = {
      {"resources.mesh.tensor",
       [](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_tensor(-1); }},  // auto
      {"train.precision bf16",
       [](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP16); }},
      {"train.powersgd",
       [](JobSpec* s) {
         s->mutable_train()->mutable_powersgd();
         s->mutable_train()->mutable_zero()->set_stage(0);
       }},
      {"train.ema", [](JobSpec* s) { s->mutable_train()->mutable_ema(); }},
      {"take adamw",
       [](JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_ADAMW_8BIT);
       }},
      {"state_dtype: fp32",
       [](JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
       }},
      {"master: fp32",
       [](JobSpec* s) {
         s->mutable_train()->set_precision(v1::PRECISION_BF16);
         s->mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
       }},
      {"train.memory", [](JobSpec* s) { s->mutable_train()->set_memory(v1::MEMORY_USE_LOW); }},
      {"train.offload.optimizer: none",
       [](JobSpec* s) {
         s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
       }},
      {"checkpoint.redundancy: 0", [](JobSpec* s) { s->mutable_checkpoint()->set_redundancy(1); }}};
  for (const auto& [remedy, change] : cases) {
    const std::string message(ValidateJobSpec(Synced(change)).message());
    EXPECT_THAT(message, HasSubstr("train.sync")) << remedy;
    EXPECT_THAT(message, HasSubstr(remedy));
  }
}

}  // namespace
}  // namespace milepost
