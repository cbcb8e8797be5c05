#include "engine/plan/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kOneForwardOneBackward,
                                           PipelineSchedule::kZeroBubble};

PipelineShape Interleaved(int stages, int chunks, int micro_batches) {
  return {PipelineSchedule::kInterleaved, stages, micro_batches, chunks};
}

// Calls check(shape) for every small interleaved pipeline.
template <typename Check>
void ForSmallInterleaved(const Check& check) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
        SCOPED_TRACE(absl::StrCat(stages, " stages, ", chunks, " chunks, ", micro_batches,
                                  " micro-batches"));
        check(Interleaved(stages, chunks, micro_batches));
      }
    }
  }
}

std::vector<std::string> Text(const std::vector<Pass>& passes) {
  std::vector<std::string> text;
  for (const Pass& pass : passes) {
    const char* kind = pass.kind == PassKind::kForward    ? "F"
                       : pass.kind == PassKind::kBackward ? "B"
                                                          : "W";
    text.push_back(absl::StrCat(kind, pass.micro_batch, std::string(pass.chunk, '\'')));
  }
  return text;
}

TEST(PipelineSchedule, OneForwardOneBackward) {
  const PipelineShape shape = {.stages = 3, .micro_batches = 4};
  EXPECT_THAT(Text(PassesOf(shape, 0)),
              ElementsAre("F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"));
  EXPECT_THAT(Text(PassesOf(shape, 2)),
              ElementsAre("F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"));
}

// Gradients of weights come where there is nothing else to do.
TEST(PipelineSchedule, ZeroBubble) {
  const PipelineShape shape = {PipelineSchedule::kZeroBubble, /*stages=*/2, /*micro_batches=*/3};
  EXPECT_THAT(Text(PassesOf(shape, 1)),
              ElementsAre("F0", "B0", "F1", "B1", "F2", "B2", "W0", "W1", "W2"));
  EXPECT_THAT(Text(PassesOf(shape, 0)),
              ElementsAre("F0", "F1", "F2", "B0", "W0", "B1", "W1", "B2", "W2"));
}

// As many micro-batches as there are stages go through one chunk, then through the next (marked).
TEST(PipelineSchedule, InterleavedOneForwardOneBackward) {
  EXPECT_THAT(Text(PassesOf(Interleaved(2, 2, 4), 0)),
              ElementsAre("F0", "F1", "F0'", "F1'", "F2", "B0'", "F3", "B1'", "F2'", "B0", "F3'",
                          "B1", "B2'", "B3'", "B2", "B3"));
  EXPECT_THAT(Text(PassesOf(Interleaved(2, 2, 4), 1)),
              ElementsAre("F0", "F1", "F0'", "B0'", "F1'", "B1'", "F2", "B0", "F3", "B1", "F2'",
                          "B2'", "F3'", "B3'", "B2", "B3"));
  // Micro-batches that are no whole rounds.
  EXPECT_THAT(
      Text(PassesOf(Interleaved(2, 2, 3), 1)),
      ElementsAre("F0", "F1", "F0'", "B0'", "F1'", "B1'", "F2", "B0", "B1", "F2'", "B2'", "B2"));
}

// Each pass once, a micro-batch's in order of its chunks and back, and no more passes kept than the
// header says.
TEST(PipelineSchedule, InterleavedStagesDoAllPassesAndKeepFew) {
  ForSmallInterleaved([](const PipelineShape& shape) {
    const std::vector<int> in_flight = MostInFlight(shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const std::vector<Pass> passes = PassesOf(shape, stage);
      ASSERT_EQ(passes.size(), 2 * shape.micro_batches * shape.chunks);
      std::vector<int> done(shape.micro_batches, 0);
      std::map<std::pair<PassKind, int>, int> next;  // micro-batch, by kind and chunk
      int kept = 0, most = 0;
      for (const Pass& pass : passes) {
        const bool forward = pass.kind == PassKind::kForward;
        EXPECT_EQ(done[pass.micro_batch]++,
                  forward ? pass.chunk : 2 * shape.chunks - 1 - pass.chunk);
        const int expected = next[std::pair(pass.kind, pass.chunk)]++;
        EXPECT_EQ(pass.micro_batch, expected);
        kept += forward ? 1 : -1;
        most = std::max(most, kept);
      }
      const int behind = shape.stages - 1 - stage;
      EXPECT_LE(most, shape.chunks == 1 ? behind + 1
                                        : (shape.chunks - 1) * shape.stages + 2 * behind + 1);
      EXPECT_EQ(most, in_flight[stage]);
    }
  });
}

// Each pass once, a micro-batch's in order, and no more micro-batches kept than there are stages
// from this one on.
TEST(PipelineSchedule, EveryStageDoesAllPassesAndKeepsFewMicroBatches) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 9; ++stages) {
      for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
        const PipelineShape shape = {schedule, stages, micro_batches};
        const std::vector<int> in_flight = MostInFlight(shape);
        for (int stage = 0; stage < stages; ++stage) {
          SCOPED_TRACE(absl::StrCat(Name(schedule), ", stage ", stage, " of ", stages, ", ",
                                    micro_batches, " micro-batches"));
          const bool split = schedule == PipelineSchedule::kZeroBubble;
          const std::vector<Pass> passes = PassesOf(shape, stage);
          ASSERT_EQ(passes.size(), (split ? 3 : 2) * micro_batches);
          std::vector<int> done(micro_batches, 0);
          int kept = 0, most = 0, last[3] = {-1, -1, -1};
          for (const Pass& pass : passes) {
            EXPECT_EQ(done[pass.micro_batch]++, static_cast<int>(pass.kind));
            EXPECT_EQ(pass.micro_batch, last[static_cast<int>(pass.kind)] + 1);
            last[static_cast<int>(pass.kind)] = pass.micro_batch;
            kept += pass.kind == PassKind::kForward ? 1 : 0;
            most = std::max(most, kept);
            kept -= pass.kind == (split ? PassKind::kWeights : PassKind::kBackward) ? 1 : 0;
          }
          EXPECT_LE(most, split ? stages + 1 : stages - stage);
          EXPECT_EQ(most, in_flight[stage]);
        }
      }
    }
  }
}

// Whether hosts enqueue what they receive ahead, or when they come to it.
absl::Status CheckEither(const PipelineShape& shape) {
  MP_RETURN_IF_ERROR(CheckSchedule(shape));
  return Annotate(CheckSchedule(shape, Receives::kWhenNeeded), "received when needed");
}

TEST(PipelineSchedule, NobodyWaitsForEver) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 16; ++stages) {
      for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
        EXPECT_EQ(CheckEither({schedule, stages, micro_batches}), absl::OkStatus())
            << Name(schedule) << ", " << stages << " stages, " << micro_batches;
      }
    }
    for (const int stages : {17, 31, 48, 63, 64}) {  // as many as there may be
      for (const int micro_batches : {1, 2, 31, 63, 64, 65, 129, 256}) {
        EXPECT_EQ(CheckEither({schedule, stages, micro_batches}), absl::OkStatus())
            << Name(schedule) << ", " << stages << " stages, " << micro_batches;
      }
    }
  }
}

TEST(PipelineSchedule, FindsPassesThatWaitForEachOther) {
  const std::vector<StageOrder> orders = OrdersOf({.stages = 3, .micro_batches = 4});
  EXPECT_EQ(CheckOrders(orders), absl::OkStatus());
  // The first stage wants the second micro-batch's gradient before the first one's.
  auto swapped = orders;
  std::swap(swapped[0].passes[3], swapped[0].passes[5]);
  EXPECT_THAT(CheckOrders(swapped).message(), HasSubstr("stage 0 stops at pass"));
  // It wants a gradient of what it has not sent.
  swapped = orders;
  std::swap(swapped[0].passes[2], swapped[0].passes[3]);
  std::swap(swapped[0].passes[1], swapped[0].passes[2]);
  std::swap(swapped[0].passes[0], swapped[0].passes[1]);
  EXPECT_THAT(CheckOrders(swapped).message(), HasSubstr("wait for each other"));
  // The middle one sends two activations in another order than they are received.
  swapped = orders;
  std::swap(swapped[1].passes[0], swapped[1].passes[1]);
  EXPECT_FALSE(CheckOrders(swapped).ok());
}

// Whatever the numbers of stages, chunks and micro-batches, by the orders alone.
TEST(PipelineSchedule, NobodyWaitsForEverInARing) {
  ForSmallInterleaved(
      [](const PipelineShape& shape) { EXPECT_EQ(CheckEither(shape), absl::OkStatus()); });
  for (const int stages : {2, 17, 63, 64}) {  // as many as there may be
    for (const int micro_batches : {1, 63, 65, 256}) {
      for (const int chunks : {2, 16}) {
        EXPECT_EQ(CheckEither(Interleaved(stages, chunks, micro_batches)), absl::OkStatus())
            << stages << " stages, " << chunks << " chunks, " << micro_batches;
      }
    }
  }
}

// What a pass needs is received one pass ahead, as in other schedules: in a ring every stage then
// waits to receive what the one before has yet to send.
TEST(PipelineSchedule, FindsARingThatWaitsForItself) {
  int found = 0, all = 0;
  ForSmallInterleaved([&](const PipelineShape& shape) {
    std::vector<StageOrder> orders;
    for (std::vector<Pass>& passes : PassesOfStages(shape)) {
      StageOrder order = {.passes = std::move(passes)};
      const auto count = static_cast<int>(order.passes.size());
      for (int i = -1; i < count; ++i) {
        if (i + 1 < count) order.steps.push_back({StageStep::kReceive, i + 1});
        if (i < 0) continue;
        order.steps.push_back({StageStep::kCompute, i});
        order.steps.push_back({StageStep::kSend, i});
      }
      orders.push_back(std::move(order));
    }
    found += CheckOrders(orders).ok() ? 0 : 1;
    ++all;
  });
  EXPECT_GT(found, 100);
  EXPECT_LT(found, all);  // those of one chunk, or one micro-batch
}

// Two neighbours in the order of one stage that its peers do not swap: each such pair is found.
TEST(PipelineSchedule, FindsTransfersInAnotherOrder) {
  for (const PipelineShape& shape : {Interleaved(2, 2, 4), Interleaved(3, 2, 5)}) {
    const std::vector<StageOrder> orders = OrdersOf(shape);
    ASSERT_EQ(CheckOrders(orders), absl::OkStatus());
    int pairs = 0;
    for (size_t stage = 0; stage < orders.size(); ++stage) {
      const auto stream_of = [&](const StageStep& step) {
        return step.kind == StageStep::kCompute                             ? -1
               : orders[stage].passes[step.pass].kind == PassKind::kForward ? 0
                                                                            : 1;
      };
      for (size_t i = 0; i < orders[stage].steps.size(); ++i) {
        size_t j = i + 1;  // the next one of the same stream
        const int stream = stream_of(orders[stage].steps[i]);
        while (j < orders[stage].steps.size() && stream_of(orders[stage].steps[j]) != stream) ++j;
        if (stream < 0 || j == orders[stage].steps.size()) continue;
        auto swapped = orders;
        std::swap(swapped[stage].steps[i], swapped[stage].steps[j]);
        const bool same_kind = orders[stage].steps[i].kind == orders[stage].steps[j].kind;
        if (!same_kind) continue;
        EXPECT_FALSE(CheckOrders(swapped).ok()) << "stage " << stage << ", " << i;
        ++pairs;
      }
    }
    EXPECT_GT(pairs, 10);
    // A send that is left out.
    auto without = orders;
    std::erase_if(without[0].steps, [](const StageStep& step) {
      return step.kind == StageStep::kSend && step.pass == 0;
    });
    EXPECT_FALSE(CheckOrders(without).ok());
    // A chunk's activations where another chunk's are awaited.
    auto chunks = orders;
    for (Pass& pass : chunks[1].passes) pass.chunk = shape.chunks - 1 - pass.chunk;
    EXPECT_FALSE(CheckOrders(chunks).ok());
  }
}

// (p - 1) / (m + p - 1) of the time with one forward and one backward in turn: p - 1 of each. The
// paper's H1 waits for p - 1 passes. Up to 4 stages so does what is scheduled here; with more some
// passes wait until a peer takes what was made before.
TEST(PipelineSchedule, IdleShares) {
  for (const auto& [stages, passes] : std::map<int, int>{{2, 1}, {4, 3}, {8, 10}, {16, 24}}) {
    const int micro_batches = 2 * stages;
    const double bubble = stages - 1;
    EXPECT_NEAR(TimeOf({.stages = stages, .micro_batches = micro_batches}).idle_share(),
                bubble / (micro_batches + bubble), 1e-9);
    const PipelineTime zero = TimeOf({PipelineSchedule::kZeroBubble, stages, micro_batches});
    EXPECT_DOUBLE_EQ(zero.step, 3 * micro_batches + passes) << stages;
  }
}

// (p - 1) / (v m) of what a stage computes, where micro-batches are whole rounds; and no more than
// without chunks otherwise.
TEST(PipelineSchedule, InterleavedIdleShares) {
  ForSmallInterleaved([](const PipelineShape& shape) {
    const double step = TimeOf(shape).step;
    if (shape.micro_batches % shape.stages == 0) {
      EXPECT_NEAR(step, 3.0 * shape.micro_batches + 3.0 * (shape.stages - 1) / shape.chunks, 1e-9);
    }
    const PipelineShape plain = {.stages = shape.stages, .micro_batches = shape.micro_batches};
    EXPECT_LE(step, TimeOf(plain).step + 1e-9);
  });
}

// With transfers that take as long as they are planned to, orders cost next to nothing: no stage
// computes more than 3 % longer than if each transfer had a stream of its own.
TEST(PipelineSchedule, InterleavedTransfersHardlyWaitForEachOther) {
  const double transfer = 0.1;  // of a forward through all chunks
  for (const auto& [stages, chunks] : std::map<int, int>{{2, 2}, {4, 2}, {8, 4}}) {
    const PipelineShape shape = Interleaved(stages, chunks, 4 * stages);
    const double rounds = 2.0 * (stages * chunks - 1) * transfer;  // of one micro-batch
    const double ideal = 3.0 * shape.micro_batches + 3.0 * (stages - 1) / chunks + rounds;
    EXPECT_LE(TimeOf(shape, transfer).step, 1.03 * ideal) << stages << " stages";
  }
}

// A forward of 1 and a backward of 2 on each of two stages, and a way of 10 there and back.
TEST(PipelineSchedule, TransfersTakeTheirTime) {
  const PipelineShape shape = {.stages = 2, .micro_batches = 1};
  const auto timeline = TimelineOf(shape, {{1, 2, 0}, {1, 2, 0}}, 10);
  EXPECT_DOUBLE_EQ(timeline[1].front().begin, 1 + 10);
  EXPECT_DOUBLE_EQ(timeline[0].back().begin, 1 + 10 + 1 + 2 + 10);
  EXPECT_DOUBLE_EQ(timeline[0].back().end, 26);
}

// More micro-batches than there are stages and one are in no stage at once.
TEST(PipelineSchedule, LongStepsKeepNoMoreThanShorterOnes) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 2; stages <= 16; ++stages) {
      EXPECT_EQ(MostInFlight({schedule, stages, stages + 2}),
                MostInFlight({schedule, stages, 5 * stages}))
          << Name(schedule) << ", " << stages << " stages";
    }
  }
}

}  // namespace
}  // namespace milepost::plan
