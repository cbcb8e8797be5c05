// Gradients that travel as factors, over whole training runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/powersgd_runs.h"

namespace milepost::runtime {
namespace {

TEST(PowerSgd, RepeatsToTheBit) {
  const TinyJob job;
  for (const PowerSgdCase& c : kPowerSgdCases) {
    const v1::JobSpec spec = PowerSgdSpecOf(job, c);
    ExpectSameState(TrainAndKeep(spec, 6), TrainAndKeep(spec, 6));
  }
}

// Whose samples a gradient is of makes no difference to what the factors leave of the sum.
TEST(PowerSgd, IsTheSameAtAnyNumberOfRanks) {
  const TinyJob job;
  for (const bool warm : {true, false}) {
    const std::vector<double> alone = TrainFresh(PowerSgdSpecOf(job, {.ranks = 1, .warm = warm}));
    for (const int ranks : {2, 3, 4}) {
      const auto losses = TrainFresh(PowerSgdSpecOf(job, {.ranks = ranks, .warm = warm}));
      EXPECT_LT(LargestRelativeDifference(losses, alone), 1e-5) << ranks << " ranks";
    }
    v1::JobSpec whole = PowerSgdSpecOf(job, {.ranks = 1});
    whole.mutable_train()->clear_powersgd();
    EXPECT_GT(LargestRelativeDifference(TrainFresh(whole), alone), 1e-3) << "tells them apart";
  }
}

TEST(PowerSgd, StepsBeforeTheStartSendGradientsWhole) {
  const TinyJob job;
  for (const int ranks : {1, 2, 3}) {
    v1::JobSpec spec = PowerSgdSpecOf(job, {.ranks = ranks, .start = 4});
    const std::vector<double> with = TrainFresh(spec);
    spec.mutable_train()->clear_powersgd();
    const std::vector<double> without = TrainFresh(spec);
    // A step's loss is that of the updates before it.
    for (size_t step = 0; step < with.size(); ++step) {
      EXPECT_EQ(with[step] == without[step], step < 5) << ranks << " ranks, step " << step;
    }
  }
}

TEST(PowerSgd, AHighRankCompressesNothing) {
  const TinyJob job;
  v1::JobSpec spec = PowerSgdSpecOf(job, {.rank = 32, .start = 0});
  const std::vector<double> with = TrainFresh(spec);
  spec.mutable_train()->clear_powersgd();
  EXPECT_EQ(with, TrainFresh(spec));
}

// Two tokens in all: gradients of layers have rank 2 at most, that of the table of tokens, which is
// the head's too, 4. Factors of 7 leave out nothing, though none has a use for so many.
TEST(PowerSgd, FactorsOfAGradientsOwnRankLeaveOutNothing) {
  const TinyJob job;
  for (const bool warm : {true, false}) {
    v1::JobSpec spec = PowerSgdSpecOf(job, {.rank = 7, .start = 0, .warm = warm});
    spec.mutable_data()->set_sequence_length(1);
    spec.mutable_train()->mutable_batch()->set_global(2);
    spec.mutable_train()->mutable_batch()->set_micro(1);
    spec.mutable_train()->mutable_batch()->clear_accumulation();
    NormalizeJobSpec(&spec);
    ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    const Snapshot end = TrainAndKeep(spec, 6);
    EXPECT_LT(LengthOf(end, "error"), 1e-4);
    const std::vector<double> with = TrainFresh(spec);
    spec.mutable_train()->clear_powersgd();
    EXPECT_LT(LargestRelativeDifference(with, TrainFresh(spec)), 1e-5);
  }
}

// What is left out comes later: it does not pile up.
TEST(PowerSgd, ErrorsStayBounded) {
  const TinyJob job;
  v1::JobSpec spec = PowerSgdSpecOf(job, {.rank = 1, .start = 0});
  spec.mutable_train()->set_steps(60);
  const double early = LengthOf(TrainAndKeep(spec, 20), "error");
  const double late = LengthOf(TrainAndKeep(spec, 60), "error");
  EXPECT_GT(early, 0.1);
  EXPECT_LT(late, 2 * early);
}

TEST(PowerSgd, GoesOnFromACheckpointToTheBit) {
  const TinyJob job;
  for (const PowerSgdCase& c : kPowerSgdCases) {
    SCOPED_TRACE(testing::Message() << c.ranks << " ranks, factors of " << c.rank);
    const v1::JobSpec spec = PowerSgdSpecOf(job, c);
    for (const int64_t at : {1, 4}) {  // before the start and after it
      const Snapshot undisturbed = TrainAndKeep(spec, 7, /*save_at=*/at);
      const Snapshot saved = TrainAndKeep(spec, at);
      EXPECT_EQ(LengthOf(saved, "error") > 0, at > c.start);
      ExpectSameState(RestoreAndKeep(spec, saved, 7), undisturbed);
    }
  }
}

// The errors' mean is what counts, and stays to the bit.
TEST(PowerSgd, LoadsAtOtherNumbersOfRanks) {
  const TinyJob job;
  const Snapshot at_two = TrainAndKeep(PowerSgdSpecOf(job, {}), 5);
  const Snapshot undisturbed = TrainAndKeep(PowerSgdSpecOf(job, {}), 9, /*save_at=*/5);
  for (const int ranks : {1, 3, 4}) {
    const v1::JobSpec spec = PowerSgdSpecOf(job, {.ranks = ranks});
    ExpectSameState(RestoreAndKeep(spec, at_two, 5), at_two);
    const Snapshot end = RestoreAndKeep(spec, at_two, 9);
    EXPECT_NEAR(end.state.train_loss(), undisturbed.state.train_loss(), 1e-5);
    EXPECT_NEAR(LengthOf(end, "error"), LengthOf(undisturbed, "error"),
                1e-3 * LengthOf(undisturbed, "error"));
  }
}

// A second save of the same step is the same, and changes nothing.
TEST(PowerSgd, SavingTwiceIsSavingOnce) {
  const TinyJob job;
  const v1::JobSpec spec = PowerSgdSpecOf(job, {.ranks = 3});
  Snapshot first, second, end;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    while (session.step() < 4) ASSERT_TRUE(session.Step(false).ok());
    Save(session, first, mutex);
    Save(session, second, mutex);
    while (session.step() < 6) ASSERT_TRUE(session.Step(false).ok());
    Save(session, end, mutex);
  });
  ExpectSameState(second, first);
  ExpectSameState(end, TrainAndKeep(spec, 6, /*save_at=*/4));
}

TEST(PowerSgd, AllocatesAndSendsWhatIsPlannedAndKeepsRanksAlike) {
  const TinyJob job;
  for (const PowerSgdCase& c : kPowerSgdCases) {
    const v1::JobSpec spec = PowerSgdSpecOf(job, c);
    auto group = comm::MakeInProcessGroup(c.ranks);
    std::vector<std::vector<char>> held(static_cast<size_t>(c.ranks));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < group.size(); ++rank) {
      threads.emplace_back([&, rank] {
        auto session = TrainingSession::Create(spec, {.threads = 1}, group[rank].get());
        ASSERT_TRUE(session.ok()) << session.status();
        EXPECT_EQ((*session)->allocated_bytes(), (*session)->plan().arena_bytes);
        ASSERT_TRUE((*session)->InitializeParameters().ok());
        while ((*session)->step() < 5) {
          const int64_t before = group[rank]->stats().bytes_sent;
          ASSERT_TRUE((*session)->Step(false).ok());
          if ((*session)->step() <= c.start) continue;
          const auto sent = static_cast<double>(group[rank]->stats().bytes_sent - before);
          // A few elements of each exchange do not divide, and scalars are not sent as in a ring.
          EXPECT_NEAR(sent, (*session)->plan().wire_bytes_per_step, 800);
        }
        for (const StateInterval& i : (*session)->RestoreTargets()) {
          const v1::TensorInfo& tensor = (*session)->state_tensors()[i.tensor];
          if (tensor.kind() == state::kErrorKind) continue;
          const int64_t bytes = (i.end - i.begin) * ByteSize(*state::ParseDType(tensor.dtype()));
          held[rank].insert(held[rank].end(), i.data, i.data + bytes);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<char>& one : held) EXPECT_EQ(one, held[0]);
  }
}

// Errors and factors of a step that is skipped are no numbers; the next begins without them.
TEST(PowerSgd, ASkippedStepForgetsTheErrors) {
  const TinyJob job;
  for (const bool warm : {true, false}) {
    const v1::JobSpec spec = PowerSgdSpecOf(job, {.warm = warm});
    Snapshot good = TrainAndKeep(spec, 4);
    const Snapshot skipped = RestoreAndKeep(spec, Spoiled(good), 5);
    EXPECT_EQ(skipped.state.skipped_steps(), 1);
    EXPECT_EQ(LengthOf(skipped, "error"), 0);
    EXPECT_EQ(LengthOf(skipped, "factor"), 0);
    // And goes on, with parameters that are numbers.
    good.state = skipped.state;
    for (size_t i = 0; i < good.tensors.size(); ++i) {
      const std::string& kind = good.tensors[i].kind();
      if (kind == "error" || kind == "factor") good.data[i] = skipped.data[i];
    }
    const Snapshot end = RestoreAndKeep(spec, good, 7);
    EXPECT_EQ(end.state.skipped_steps(), 1);
    EXPECT_GT(LengthOf(end, "error"), 0);
    EXPECT_TRUE(std::isfinite(LengthOf(end, "error")));
  }
}

}  // namespace
}  // namespace milepost::runtime
