#include "engine/plan/passes/memory_pass.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/workspace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// Ops by hand: each touches the buffers named (capitals write).
class PassTest : public testing::Test {
 protected:
  BufferId Add(int64_t bytes, bool persistent = false) {
    plan_.buffers.push_back({.name = std::to_string(plan_.buffers.size()),
                             .buffer_class = BufferClass::kActivations,
                             .bytes = bytes,
                             .persistent = persistent});
    return static_cast<BufferId>(plan_.buffers.size()) - 1;
  }
  void Op(Stream stream, const std::vector<BufferId>& reads, const std::vector<BufferId>& writes) {
    PlannedOp op = {.stream = stream};
    op.op.kind = stream == Stream::kCommunication ? OpKind::kReduceGradients : OpKind::kGelu;
    for (BufferId b : reads) op.accesses.push_back({b, 0, plan_.buffers[b].bytes, false});
    for (BufferId b : writes) op.accesses.push_back({b, 0, plan_.buffers[b].bytes, true});
    plan_.train.ops.push_back(op);
  }
  Lifetime LifetimeOf(BufferId buffer) {
    for (const Lifetime& lifetime : LifetimesOf(plan_, plan_.train)) {
      if (lifetime.buffer == buffer) return lifetime;
    }
    return {};
  }

  StepPlan plan_;
  static constexpr Stream kCompute = Stream::kCompute;
  static constexpr Stream kCommunication = Stream::kCommunication;
};

TEST_F(PassTest, DeadBuffersGiveTheirBytesToLaterOnes) {
  const BufferId a = Add(1000), b = Add(1000), c = Add(1000);
  Op(kCompute, {}, {a});
  Op(kCompute, {a}, {b});
  Op(kCompute, {b}, {c});
  ASSERT_EQ(AssignOffsets(plan_), absl::OkStatus());
  EXPECT_EQ(plan_.buffers[a].offset, plan_.buffers[c].offset);
  EXPECT_NE(plan_.buffers[a].offset, plan_.buffers[b].offset);
  EXPECT_EQ(plan_.arena_bytes, 2 * 1024);
  EXPECT_EQ(plan_.slack_bytes, 2 * 24);
}

TEST_F(PassTest, PersistentBuffersKeepTheirBytes) {
  const BufferId a = Add(64), p = Add(64, true), b = Add(64);
  Op(kCompute, {}, {a});
  Op(kCompute, {}, {p});
  Op(kCompute, {}, {b});
  ASSERT_EQ(AssignOffsets(plan_), absl::OkStatus());
  EXPECT_EQ(plan_.buffers[p].offset, 0);
  EXPECT_EQ(plan_.buffers[a].offset, 64);
  EXPECT_EQ(plan_.buffers[b].offset, 64);
}

TEST_F(PassTest, ProgramsShareWhatIsNotPersistent) {
  const BufferId a = Add(640), b = Add(64);
  Op(kCompute, {}, {a});
  std::swap(plan_.train, plan_.evaluate);
  Op(kCompute, {}, {b});
  ASSERT_EQ(AssignOffsets(plan_), absl::OkStatus());
  EXPECT_EQ(plan_.buffers[a].offset, plan_.buffers[b].offset);
  EXPECT_EQ(plan_.arena_bytes, 640);
}

// A collective may run from when the compute stream lets it start until the compute stream waits.
TEST_F(PassTest, CollectivesHoldTheirBuffersUntilTheyAreWaitedFor) {
  const BufferId grad = Add(64), scratch = Add(64), other = Add(64);
  Op(kCompute, {}, {other});              // 0
  Op(kCompute, {}, {grad});               // 1
  Op(kCompute, {other}, {});              // 2
  Op(kCommunication, {grad}, {scratch});  // 3: needs op 1 only
  Op(kCompute, {other}, {});              // 4
  Op(kCompute, {scratch}, {});            // 5
  plan_.train.ops[3].wait_for = {1};
  plan_.train.ops[5].wait_for = {3};
  EXPECT_EQ(LifetimeOf(scratch).first, 2);
  EXPECT_EQ(LifetimeOf(scratch).last, 5);
  EXPECT_EQ(LifetimeOf(grad).first, 1);
  EXPECT_EQ(LifetimeOf(grad).last, 4);
  plan_.train.ops[5].wait_for = {};  // never waited for: until the streams are joined
  EXPECT_EQ(LifetimeOf(grad).last, 5);
}

TEST_F(PassTest, StreamsWaitOnceForTheLatestConflict) {
  const BufferId x = Add(64), y = Add(64), z = Add(64);
  Op(kCompute, {}, {x});           // 0
  Op(kCompute, {}, {y});           // 1
  Op(kCommunication, {x, y}, {});  // 2: waits for 1, which covers 0
  Op(kCommunication, {x}, {});     // 3: covered by stream order
  Op(kCompute, {}, {z});           // 4: touches nothing of theirs
  Op(kCompute, {}, {x});           // 5: must wait for 3
  Op(kCompute, {}, {y});           // 6: covered
  AddStreams(plan_.train, {.world = 2});
  const auto& ops = plan_.train.ops;
  EXPECT_EQ(ops[2].wait_for, std::vector<int32_t>{1});
  EXPECT_TRUE(ops[3].wait_for.empty());
  EXPECT_TRUE(ops[4].wait_for.empty());
  EXPECT_EQ(ops[5].wait_for, std::vector<int32_t>{3});
  EXPECT_TRUE(ops[6].wait_for.empty());
}

TEST_F(PassTest, OneRankStaysOnOneStream) {
  const BufferId x = Add(64);
  Op(kCompute, {}, {x});
  Op(kCommunication, {x}, {});
  AddStreams(plan_.train, {.world = 1});
  EXPECT_EQ(plan_.train.ops[1].stream, kCompute);
  EXPECT_TRUE(plan_.train.ops[1].wait_for.empty());
}

// Every pair of buffers that live at once lies apart, in plans of real models.
TEST(MemoryPass, LiveBuffersNeverOverlap) {
  for (double dropout : {0.0, 0.1}) {
    const absl::StatusOr<StepPlan> plan =
        PlanTraining(SpecOf({.layers = 5, .dropout = dropout}), OptionsOf(2, 1, DType::kBf16));
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const Program* program : {&plan->train, &plan->evaluate}) {
      const std::vector<Lifetime> lifetimes = LifetimesOf(*plan, *program);
      ASSERT_GT(lifetimes.size(), 30u);
      for (size_t i = 0; i < lifetimes.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (lifetimes[i].last < lifetimes[j].first || lifetimes[j].last < lifetimes[i].first) {
            continue;
          }
          const Buffer& a = plan->buffers[lifetimes[i].buffer];
          const Buffer& b = plan->buffers[lifetimes[j].buffer];
          EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset)
              << a.name << " and " << b.name;
        }
      }
    }
  }
}

TEST(Workspace, ChunksOfTheHeadFitTheirBytes) {
  EXPECT_EQ(LmHeadChunkRows(1024, 50257, DType::kBf16, 64 << 20), 512);
  EXPECT_EQ(LmHeadChunkRows(1024, 50257, DType::kF32, 64 << 20), 256);
  EXPECT_EQ(LmHeadChunkRows(1024, 256, DType::kF32, 64 << 20), 1024);  // all rows
  EXPECT_EQ(LmHeadChunkRows(1024, 50257, DType::kF32, 1), 16);         // at least
  EXPECT_EQ(LmHeadChunkRows(9, 50257, DType::kF32, 1), 9);             // never more than rows
}

}  // namespace
}  // namespace milepost::plan
