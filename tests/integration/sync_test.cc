// Islands that train apart, over whole training runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kEvery = 3;

struct SyncCase {
  std::string name;
  TinyOptions options;
  int islands = 2;
  v1::OptimizerSpec::Type optimizer = v1::OptimizerSpec::TYPE_ADAMW;
};

v1::JobSpec SyncSpecOf(const TinyJob& job, const SyncCase& c) {
  TinyOptions options = c.options;
  options.steps = 9;
  options.global_batch = 24;
  options.micro_batch = 1;
  v1::JobSpec spec = job.Spec(options);
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  const double lr = optimizer->lr();
  optimizer->Clear();
  optimizer->set_type(c.optimizer);
  optimizer->set_lr(lr);
  spec.mutable_train()->mutable_sync()->set_every(kEvery);
  spec.mutable_train()->mutable_sync()->set_islands(c.islands);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

const SyncCase kSyncCases[] = {
    {"one island", {.ranks = 1, .stage = 0}, 1},
    {"two islands of a rank", {.ranks = 2, .stage = 0}},
    {"three islands of a rank", {.ranks = 3, .stage = 1}, 3},
    {"stage 1", {.ranks = 4, .stage = 1}},
    {"stage 2, bf16", {.ranks = 4, .stage = 2, .precision = v1::PRECISION_BF16}},
    {"stage 3, bf16", {.ranks = 4, .stage = 3, .precision = v1::PRECISION_BF16}},
    {"groups", {.ranks = 8, .stage = 3, .group = 2, .llama = true}},
    {"tensor", {.ranks = 4, .tensor = 2, .stage = 1, .llama = true}},
    {"pipeline", {.ranks = 4, .pipeline = 2, .stage = 1}},
    {"context", {.ranks = 4, .context = 2, .stage = 1, .llama = true}},
    {"experts", {.ranks = 4, .expert = 2, .stage = 1, .llama = true, .experts = 4}},
    {"muon", {.ranks = 4, .stage = 1}, 2, v1::OptimizerSpec::TYPE_MUON},
    {"lamb", {.ranks = 4, .stage = 1}, 2, v1::OptimizerSpec::TYPE_LAMB},
    {"adan",
     {.ranks = 2, .stage = 0, .precision = v1::PRECISION_BF16},
     2,
     v1::OptimizerSpec::TYPE_ADAN},
    {"adapters", {.ranks = 2, .stage = 1, .llama = true, .lora = 2}},
};

// Losses of outer steps, which are those of all ranks; and the state at the end.
struct Synced {
  std::vector<double> losses;
  Snapshot end;
};

Synced TrainSynced(const v1::JobSpec& spec, int64_t steps, const Snapshot* from = nullptr) {
  Synced run;
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    // Also of what adapters adapt, which no state has.
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    if (from != nullptr) {
      ASSERT_EQ(Restore(session, *from), absl::OkStatus());
    }
    while (session.step() < steps) {
      const absl::StatusOr<StepReport> report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->of_all_ranks, session.step() % kEvery == 0);
      if (rank == 0 && report->of_all_ranks) run.losses.push_back(report->train_loss);
    }
    Save(session, run.end, mutex);
  });
  return run;
}

TEST(Sync, RepeatsToTheBit) {
  const TinyJob job;
  for (const SyncCase& c : kSyncCases) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = SyncSpecOf(job, c);
    const Synced once = TrainSynced(spec, 6);
    ExpectSameState(TrainSynced(spec, 6).end, once.end);
    EXPECT_GT(LengthOf(once.end, "outer_momentum"), 0);
  }
}

TEST(Sync, GoesOnFromACheckpointToTheBit) {
  const TinyJob job;
  for (const SyncCase& c : kSyncCases) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = SyncSpecOf(job, c);
    const Snapshot saved = TrainSynced(spec, kEvery).end;
    ExpectSameState(TrainSynced(spec, 9, &saved).end, TrainSynced(spec, 9).end);
  }
}

// Whatever an island's ranks divide among them.
TEST(Sync, IslandsOfAnyMeshTrainAlike) {
  const TinyJob job;
  const TinyOptions alone = {.ranks = 2, .stage = 0, .llama = true};
  const std::vector<double> want = TrainSynced(SyncSpecOf(job, {"", alone}), 9).losses;
  ASSERT_EQ(want.size(), 3u);
  TinyOptions meshes[] = {alone, alone, alone, alone, alone, alone, alone};
  for (int stage = 0; stage <= 3; ++stage) meshes[stage].stage = stage;
  meshes[4].tensor = meshes[5].context = meshes[6].pipeline = 2;
  for (TinyOptions& mesh : meshes) {
    mesh.ranks = 4;
    const std::vector<double> got = TrainSynced(SyncSpecOf(job, {"", mesh}), 9).losses;
    EXPECT_LT(LargestRelativeDifference(got, want), 1e-5)
        << "stage " << mesh.stage << ", tensor " << mesh.tensor << ", context " << mesh.context
        << ", pipeline " << mesh.pipeline;
  }
  TinyOptions together = alone;
  v1::JobSpec spec = SyncSpecOf(job, {"", together});
  spec.mutable_train()->clear_sync();
  std::vector<double> without = TrainFresh(spec);
  without = {without[2], without[5], without[8]};
  EXPECT_GT(LargestRelativeDifference(without, want), 1e-4) << "tells them apart";
}

// Fewer ranks to an island: a checkpoint goes on as it would have.
TEST(Sync, LoadsAtOtherNumbersOfRanks) {
  const TinyJob job;
  const SyncCase two = {"", {.ranks = 2, .stage = 1}};
  const SyncCase four = {"", {.ranks = 4, .stage = 1}};
  const Snapshot saved = TrainSynced(SyncSpecOf(job, four), kEvery).end;
  const Synced undisturbed = TrainSynced(SyncSpecOf(job, four), 9, &saved);
  const Synced smaller = TrainSynced(SyncSpecOf(job, two), 9, &saved);
  EXPECT_LT(LargestRelativeDifference(smaller.losses, undisturbed.losses), 1e-5);
}

// One that moves to where the only island is does nothing but round.
TEST(Sync, AnOuterStepOfOneIslandMayLeaveItWhereItIs) {
  const TinyJob job;
  v1::JobSpec spec = SyncSpecOf(job, {"", {.ranks = 2, .stage = 1}, 1});
  spec.mutable_train()->mutable_sync()->mutable_outer_optimizer()->set_lr(1);
  spec.mutable_train()->mutable_sync()->mutable_outer_optimizer()->set_momentum(0);
  const std::vector<double> with = TrainSynced(spec, 9).losses;
  spec.mutable_train()->clear_sync();
  std::vector<double> without = TrainFresh(spec);
  without = {without[2], without[5], without[8]};
  EXPECT_LT(LargestRelativeDifference(with, without), 1e-6);
}

TEST(Sync, AllocatesAndSendsWhatIsPlannedAndKeepsIslandsAlike) {
  const TinyJob job;
  for (const SyncCase& c : kSyncCases) {
    SCOPED_TRACE(c.name);
    if (c.options.experts > 0) continue;  // how many rows they send is known in a step alone
    const v1::JobSpec spec = SyncSpecOf(job, c);
    const int ranks = spec.resources().ranks(), of_island = ranks / c.islands;
    std::vector<std::vector<char>> held(static_cast<size_t>(ranks));
    ExpectSendsWhatIsPlanned(spec, [&](size_t rank, TrainingSession& session) {
      EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
      EXPECT_EQ(session.step(), kEvery);
      for (const StateInterval& i : session.RestoreTargets()) {
        const v1::TensorInfo& tensor = session.state_tensors()[i.tensor];
        const int64_t bytes = i.elements() * ByteSize(*state::ParseDType(tensor.dtype()));
        held[rank].insert(held[rank].end(), i.data, i.data + bytes);
      }
    });
    for (int rank = of_island; rank < ranks; ++rank) {
      EXPECT_TRUE(held[rank] == held[rank % of_island]) << "rank " << rank;
    }
  }
}

// Every rank saves an equal part: islands have the same.
TEST(Sync, IslandsShareOutWhatIsSaved) {
  const TinyJob job;
  const Synced run = TrainSynced(SyncSpecOf(job, {"", {.ranks = 4, .stage = 1}}), kEvery);
  ASSERT_EQ(run.end.rank_bytes.size(), 4u);
  for (const int64_t bytes : run.end.rank_bytes) {
    EXPECT_GT(bytes, 0);
    EXPECT_LT(static_cast<double>(bytes), 1.5 * static_cast<double>(run.end.rank_bytes[0]));
  }
}

// A rank of another island asks, between two outer steps.
TEST(Sync, StopsAfterAnOuterStep) {
  const TinyJob job;
  const v1::JobSpec spec = SyncSpecOf(job, {"", {.ranks = 4, .stage = 1}});
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    for (int64_t step = 1; step <= 6; ++step) {
      const absl::StatusOr<StepReport> report = session.Step(rank == 3 && step == 4);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->stop_agreed, step == 6) << step;
    }
    const absl::StatusOr<StepReport> after = session.Step(false);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_FALSE(after->stop_agreed);
  });
}

// Islands go at their own pace: an outer step waits longer for one than a collective may take.
TEST(Sync, AnIslandMayBeLate) {
  const TinyJob job;
  const v1::JobSpec spec = SyncSpecOf(job, {"", {.ranks = 2, .stage = 0}});
  constexpr absl::Duration kUsual = absl::Milliseconds(200);
  auto group = comm::MakeInProcessGroup(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto session = TrainingSession::Create(spec, {.threads = 1}, group[rank].get());
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE((*session)->InitializeParameters().ok());
      ASSERT_TRUE(group[rank]->Barrier().ok());
      group[rank]->SetTimeout(kUsual);
      while ((*session)->step() < kEvery) {
        if (rank == 1 && (*session)->step() + 1 == kEvery) absl::SleepFor(4 * kUsual);
        const absl::StatusOr<StepReport> report = (*session)->Step(false);
        ASSERT_TRUE(report.ok()) << report.status();
      }
      EXPECT_EQ(group[rank]->timeout(), kUsual);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One island's parameters are no numbers in a step: it skips that, and all count it alike. Their
// schedules stay the same.
TEST(Sync, CountsWhatAnyIslandSkips) {
  const TinyJob job;
  const v1::JobSpec spec = SyncSpecOf(job, {"", {.ranks = 2, .stage = 0}});
  const Snapshot good = TrainSynced(spec, kEvery).end;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(Restore(session, good), absl::OkStatus());
    std::vector<StateInterval> targets = session.RestoreTargets();
    // In place, as the CPU's arena is. The working parameters of fp32 are the masters.
    float* const first = reinterpret_cast<float*>(targets[0].data);
    const float kept = *first;
    if (rank == 1) *first = std::numeric_limits<float>::quiet_NaN();
    const absl::StatusOr<StepReport> skipped = session.Step(false);
    ASSERT_TRUE(skipped.ok()) << skipped.status();
    EXPECT_EQ(skipped->skipped, rank == 1);
    if (rank == 1) *first = kept;
    for (int64_t step = 5; step <= 6; ++step) {
      const absl::StatusOr<StepReport> report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_FALSE(report->skipped);
    }
    EXPECT_EQ(session.trainer_state().skipped_steps(), 1);
    EXPECT_EQ(session.trainer_state().schedule_step(), 6);
  });
}

}  // namespace
}  // namespace milepost::runtime
