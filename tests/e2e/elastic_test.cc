// Real processes: ranks and hosts are lost, hosts come, and jobs go on.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

class ElasticTest : public testing::Test {
 protected:
  ~ElasticTest() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }

  // No checkpoint before the last step.
  v1::JobSpec Job(int64_t steps = 300) const {
    v1::JobSpec spec = SmallJob(folder_, steps);
    spec.mutable_checkpoint()->set_every(0);
    spec.mutable_resources()->set_threads_per_rank(1);
    return spec;
  }

  static v1::Job AwaitStep(Cluster& cluster, const std::string& job, int64_t step) {
    return cluster.Await(job, [&](const v1::Job& j) { return j.progress().step() >= step; });
  }

  // The first state with a step done by a later attempt.
  static v1::Job AwaitNextAttempt(Cluster& cluster, const v1::Job& before) {
    return cluster.Await(before.name(), [&](const v1::Job& j) {
      return IsTerminal(j) || (j.generation() > before.generation() &&
                               j.progress().restored_from() != before.progress().restored_from());
    });
  }

  // Ends as one that was not disturbed: the same bits.
  static void ExpectGoesOnAfter(Cluster& cluster, const v1::JobSpec& spec, const v1::Job& expected,
                                int lost_trainer) {
    const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 50);
    ASSERT_TRUE(cluster.KillTrainer(lost_trainer));
    const v1::Job after = AwaitNextAttempt(cluster, before);
    EXPECT_GE(after.progress().start_step(), 20);
    const v1::Job end = cluster.Await(before.name(), IsTerminal);
    EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
    EXPECT_EQ(end.attempts(), 2);
    EXPECT_EQ(end.progress().train_loss(), expected.progress().train_loss());
    EXPECT_EQ(end.progress().validation_loss(), expected.progress().validation_loss());
  }

  // A job of four ranks on two hosts, of which one is lost, and with it half of the data ranks.
  void ExpectGoesOnWithHalfTheHosts(const std::function<void(v1::JobSpec*)>& change) {
    Cluster cluster(folder_, {.workers = 2, .slots = 2, .lease_seconds = 2});
    cluster.Start();
    v1::JobSpec spec = Job(/*steps=*/120);
    spec.mutable_checkpoint()->set_every(20);
    spec.mutable_resources()->set_ranks(4);
    spec.mutable_resources()->set_min_ranks(2);
    change(&spec);
    const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
    ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
    const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 50);
    cluster.KillWorker(1);
    const v1::Job after = AwaitNextAttempt(cluster, before);
    EXPECT_EQ(after.placements_size(), 2);
    const v1::Job end = cluster.Await(before.name(), IsTerminal);
    EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
    EXPECT_NEAR(end.progress().train_loss(), expected.progress().train_loss(),
                1e-5 * expected.progress().train_loss());
  }

  const std::string folder_ = MakeFolder("elastic_test");
};

TEST_F(ElasticTest, ALostTrainerCostsNoStepWithCopies) {
  Cluster cluster(folder_, {.workers = 1, .slots = 2});
  cluster.Start();
  v1::JobSpec spec = Job();
  spec.mutable_checkpoint()->set_redundancy(1);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 50);
  const absl::Time killed = absl::Now();
  ASSERT_TRUE(cluster.KillTrainer(1));
  const v1::Job after = AwaitNextAttempt(cluster, before);
  std::printf("trainer killed to next step: %.2f s\n", absl::ToDoubleSeconds(absl::Now() - killed));
  EXPECT_EQ(after.progress().restored_from(), "memory");
  EXPECT_GE(after.progress().start_step(), before.progress().step() - 2);
  const v1::Job end = cluster.Await(before.name(), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.attempts(), 2);
  EXPECT_EQ(end.progress().train_loss(), expected.progress().train_loss());
  EXPECT_EQ(end.progress().validation_loss(), expected.progress().validation_loss());
}

TEST_F(ElasticTest, SurvivorsOfStageZeroGoOnWithoutACheckpoint) {
  Cluster cluster(folder_, {.workers = 1, .slots = 2});
  cluster.Start();
  v1::JobSpec spec = Job();
  spec.mutable_train()->mutable_zero()->set_stage(0);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 50);
  ASSERT_TRUE(cluster.KillTrainer(0));
  const v1::Job after = AwaitNextAttempt(cluster, before);
  EXPECT_EQ(after.progress().restored_from(), "memory");
  EXPECT_GE(after.progress().start_step(), before.progress().step());
  const v1::Job end = cluster.Await(before.name(), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.progress().train_loss(), expected.progress().train_loss());
}

// With its memory: the worker that is left has all, and goes on alone.
TEST_F(ElasticTest, ALostHostCostsNoStepWithCopies) {
  Cluster cluster(folder_, {.workers = 2, .slots = 1, .lease_seconds = 2});
  cluster.Start();
  v1::JobSpec spec = Job();
  spec.mutable_train()->mutable_zero()->set_stage(3);
  spec.mutable_checkpoint()->set_redundancy(1);
  spec.mutable_resources()->set_min_ranks(1);
  spec.mutable_resources()->set_max_ranks(2);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 50);
  ASSERT_EQ(before.placements_size(), 2);
  const absl::Time killed = absl::Now();
  cluster.KillWorker(1);
  std::filesystem::remove_all(folder_ + "/memory/1");
  const v1::Job after = AwaitNextAttempt(cluster, before);
  std::printf("host lost to next step: %.2f s, of which the lease is 2\n",
              absl::ToDoubleSeconds(absl::Now() - killed));
  EXPECT_EQ(after.progress().restored_from(), "memory") << after.reason_detail();
  EXPECT_GE(after.progress().start_step(), before.progress().step() - 2);
  EXPECT_EQ(after.placements_size(), 1);
  const v1::Job end = cluster.Await(before.name(), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_NEAR(end.progress().train_loss(), expected.progress().train_loss(),
              1e-5 * expected.progress().train_loss());
}

// Ranks that divide layers: a lost trainer and, with it, the state of its half of each layer.
TEST_F(ElasticTest, TensorRanksGoOnFromACheckpointAsIfNothingHadHappened) {
  Cluster cluster(folder_, {.workers = 1, .slots = 4});
  cluster.Start();
  v1::JobSpec spec = Job(/*steps=*/120);
  spec.mutable_train()->mutable_zero()->set_stage(2);
  spec.mutable_checkpoint()->set_every(20);
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_resources()->mutable_mesh()->set_tensor(2);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  ExpectGoesOnAfter(cluster, spec, expected, /*lost_trainer=*/3);
}

// A stage of a pipeline is lost: the others, which wait for what it hands on, end too.
TEST_F(ElasticTest, StagesGoOnFromACheckpointAsIfNothingHadHappened) {
  Cluster cluster(folder_, {.workers = 1, .slots = 4});
  cluster.Start();
  v1::JobSpec spec = Job(/*steps=*/120);
  spec.mutable_checkpoint()->set_every(20);
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_resources()->mutable_mesh()->set_pipeline(2);
  spec.mutable_resources()->mutable_mesh()->set_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  for (const int lost : {1, 2}) ExpectGoesOnAfter(cluster, spec, expected, lost);
}

// With half of the hosts a job has half of the data ranks: tensor ranks stay as many.
TEST_F(ElasticTest, TensorRanksGoOnWithFewerDataRanks) {
  ExpectGoesOnWithHalfTheHosts(
      [](v1::JobSpec* spec) { spec->mutable_resources()->mutable_mesh()->set_tensor(2); });
}

TEST_F(ElasticTest, StagesGoOnWithFewerDataRanks) {
  ExpectGoesOnWithHalfTheHosts(
      [](v1::JobSpec* spec) { spec->mutable_resources()->mutable_mesh()->set_pipeline(2); });
}

// Context ranks are data ranks to ZeRO: what a lost one had is in the copies of others.
TEST_F(ElasticTest, ContextRanksGoOnFromMemory) {
  Cluster cluster(folder_, {.workers = 1, .slots = 4});
  cluster.Start();
  v1::JobSpec spec = Job();
  spec.mutable_checkpoint()->set_redundancy(1);
  spec.mutable_train()->mutable_zero()->set_stage(2);
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_resources()->mutable_mesh()->set_context(2);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 50);
  ASSERT_TRUE(cluster.KillTrainer(1));
  const v1::Job after = AwaitNextAttempt(cluster, before);
  EXPECT_EQ(after.progress().restored_from(), "memory");
  EXPECT_GE(after.progress().start_step(), before.progress().step() - 2);
  const v1::Job end = cluster.Await(before.name(), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.progress().train_loss(), expected.progress().train_loss());
}

TEST_F(ElasticTest, ContextRanksGoOnWithFewerDataRanks) {
  ExpectGoesOnWithHalfTheHosts(
      [](v1::JobSpec* spec) { spec->mutable_resources()->mutable_mesh()->set_context(2); });
}

// Gradients that travel as factors: the right ones are in the checkpoint, and what they left out is
// forgotten at every save, whether or not a rank is lost.
TEST_F(ElasticTest, FactorsOfGradientsGoOnFromACheckpointAsIfNothingHadHappened) {
  Cluster cluster(folder_, {.workers = 1, .slots = 2});
  cluster.Start();
  v1::JobSpec spec = Job(/*steps=*/120);
  spec.mutable_checkpoint()->set_every(20);
  spec.mutable_train()->mutable_zero()->set_stage(0);
  spec.mutable_train()->mutable_powersgd()->set_rank(2);
  spec.mutable_train()->mutable_powersgd()->set_start_step(10);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  ExpectGoesOnAfter(cluster, spec, expected, /*lost_trainer=*/1);
}

// Islands that train apart: what all of them were after an outer step is in the checkpoint.
TEST_F(ElasticTest, IslandsGoOnFromACheckpointAsIfNothingHadHappened) {
  Cluster cluster(folder_, {.workers = 1, .slots = 4});
  cluster.Start();
  v1::JobSpec spec = Job(/*steps=*/120);
  spec.mutable_checkpoint()->set_every(20);
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_train()->mutable_batch()->set_micro(2);
  spec.mutable_train()->mutable_sync()->set_every(10);
  spec.mutable_train()->mutable_sync()->set_islands(2);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  ExpectGoesOnAfter(cluster, spec, expected, /*lost_trainer=*/3);
}

// With half of the hosts each island has half of its ranks.
TEST_F(ElasticTest, IslandsGoOnWithFewerRanks) {
  ExpectGoesOnWithHalfTheHosts([](v1::JobSpec* spec) {
    spec->mutable_train()->mutable_batch()->set_micro(2);
    spec->mutable_train()->mutable_sync()->set_every(10);
    spec->mutable_train()->mutable_sync()->set_islands(2);
  });
}

// Each rank has half of the experts: what it alone has is in the checkpoint.
TEST_F(ElasticTest, ExpertRanksGoOnFromACheckpointAsIfNothingHadHappened) {
  Cluster cluster(folder_, {.workers = 1, .slots = 2});
  cluster.Start();
  v1::JobSpec spec = Job(/*steps=*/120);
  spec.mutable_checkpoint()->set_every(20);
  const v1::Gpt2Spec like = spec.model().gpt2();
  v1::LlamaSpec& model = *spec.mutable_model()->mutable_llama();
  model.set_layers(like.layers());
  model.set_width(like.width());
  model.set_heads(like.heads());
  model.set_hidden(2 * like.width());
  model.set_context(like.context());
  model.set_vocabulary(like.vocabulary());
  model.mutable_experts()->set_count(4);
  model.mutable_experts()->set_per_token(2);
  spec.mutable_resources()->mutable_mesh()->set_expert(2);
  const v1::Job expected = cluster.Await(cluster.Submit(spec), IsTerminal);
  ASSERT_EQ(expected.state(), v1::JOB_STATE_SUCCEEDED) << expected.reason_detail();
  ExpectGoesOnAfter(cluster, spec, expected, /*lost_trainer=*/1);
}

TEST_F(ElasticTest, AJobGrowsOntoANewHost) {
  Cluster cluster(folder_, {.workers = 2, .slots = 1, .resize_seconds = 0.5});
  cluster.StartCoordinator();
  cluster.StartWorker(0);
  v1::JobSpec spec = Job(400);
  spec.mutable_resources()->set_min_ranks(1);
  spec.mutable_resources()->set_max_ranks(2);
  const v1::Job before = AwaitStep(cluster, cluster.Submit(spec), 20);
  EXPECT_EQ(before.placements_size(), 1);
  cluster.StartWorker(1);
  const v1::Job after = AwaitNextAttempt(cluster, before);
  EXPECT_EQ(after.placements_size(), 2) << after.reason_detail();
  EXPECT_EQ(after.failures(), 0);
  const v1::Job end = cluster.Await(before.name(), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.reason_detail();
  EXPECT_EQ(end.attempts(), 2);
  const v1::Job expected = cluster.Await(cluster.Submit(Job(400)), IsTerminal);
  EXPECT_NEAR(end.progress().train_loss(), expected.progress().train_loss(),
              1e-5 * expected.progress().train_loss());
}

}  // namespace
}  // namespace milepost::e2e
