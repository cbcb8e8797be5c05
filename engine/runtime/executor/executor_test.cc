#include "engine/runtime/executor/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/synchronization/notification.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using plan::Stream;
using plan::When;

plan::PlannedOp MakeOp(OpKind kind, Stream stream, When when, std::vector<int32_t> wait_for = {}) {
  plan::PlannedOp op;
  op.op.kind = kind;
  op.stream = stream;
  op.when = when;
  op.wait_for = std::move(wait_for);
  return op;
}

// Records what runs; an op may be given a body.
class FakeBackend : public Backend {
 public:
  absl::StatusOr<BoundOp> Bind(const plan::StepPlan&, const plan::Program& program,
                               const plan::PlannedOp& planned) override {
    const int index = static_cast<int>(&planned - program.ops.data());
    return [this, index](const StepContext& context) {
      {
        std::lock_guard lock(mutex_);
        trace_.push_back(index);
      }
      const auto body = bodies.find(index);
      return body == bodies.end() ? absl::OkStatus() : body->second(context);
    };
  }
  std::vector<int> TakeTrace() {
    std::lock_guard lock(mutex_);
    return std::move(trace_);
  }

  std::map<int, BoundOp> bodies;  // set before the first run

 private:
  std::mutex mutex_;
  std::vector<int> trace_;
};

// A step as the planner makes it: reduce of the gradient overlaps the backward's end, the norm
// waits for it, gathers follow the updates.
plan::Program TwoStreamProgram() {
  plan::Program program;
  const auto compute = Stream::kCompute;
  const auto communication = Stream::kCommunication;
  program.ops = {
      MakeOp(OpKind::kLinear, compute, When::kEveryMicroStep),                     // 0
      MakeOp(OpKind::kLinearBackwardWeight, compute, When::kEveryMicroStep),       // 1
      MakeOp(OpKind::kReduceGradients, communication, When::kLastMicroStep, {1}),  // 2
      MakeOp(OpKind::kLinearBackwardInput, compute, When::kEveryMicroStep),        // 3
      MakeOp(OpKind::kGradNorm, compute, When::kUpdate, {2}),                      // 4
      MakeOp(OpKind::kReduceScalars, communication, When::kUpdate, {4}),           // 5
      MakeOp(OpKind::kOptimizer, compute, When::kUpdate, {5}),                     // 6
      MakeOp(OpKind::kGatherParameters, communication, When::kUpdate, {6}),        // 7
  };
  return program;
}

size_t PlaceOf(const std::vector<int>& trace, int op) {
  return static_cast<size_t>(std::find(trace.begin(), trace.end(), op) - trace.begin());
}

TEST(Executor, RunsSectionsInOrderAndHonoursEvents) {
  plan::StepPlan plan;
  const plan::Program program = TwoStreamProgram();
  FakeBackend backend;
  auto executor = Executor::Create(plan, program, &backend, nullptr);
  ASSERT_TRUE(executor.ok()) << executor.status();
  StepContext context;
  for (int step = 0; step < 200; ++step) {
    context.last_micro_step = false;
    ASSERT_TRUE((*executor)->Run(Section::kMicroStep, context).ok());
    EXPECT_EQ(backend.TakeTrace(), (std::vector<int>{0, 1, 3}));
    context.last_micro_step = true;
    ASSERT_TRUE((*executor)->Run(Section::kMicroStep, context).ok());
    ASSERT_TRUE((*executor)->Run(Section::kReduce, context).ok());
    std::vector<int> trace = backend.TakeTrace();
    EXPECT_EQ(std::set<int>(trace.begin(), trace.end()), (std::set<int>{0, 1, 2, 3, 4, 5}));
    EXPECT_LT(PlaceOf(trace, 1), PlaceOf(trace, 2));
    EXPECT_LT(PlaceOf(trace, 2), PlaceOf(trace, 4));
    EXPECT_LT(PlaceOf(trace, 4), PlaceOf(trace, 5));
    ASSERT_TRUE((*executor)->Run(Section::kUpdate, context).ok());
    EXPECT_EQ(backend.TakeTrace(), (std::vector<int>{6, 7}));
  }
}

// The reduction is held back until the compute stream has gone past the op it overlaps with: only
// possible if that op did not wait for it.
TEST(Executor, CommunicationOverlapsCompute) {
  plan::StepPlan plan;
  const plan::Program program = TwoStreamProgram();
  FakeBackend backend;
  absl::Notification reached;
  backend.bodies[2] = [&](const StepContext&) {
    reached.WaitForNotification();
    return absl::OkStatus();
  };
  backend.bodies[3] = [&](const StepContext&) {
    reached.Notify();
    return absl::OkStatus();
  };
  auto executor = Executor::Create(plan, program, &backend, nullptr);
  ASSERT_TRUE(executor.ok());
  EXPECT_TRUE((*executor)->Run(Section::kMicroStep, {}).ok());
  EXPECT_TRUE((*executor)->Run(Section::kReduce, {}).ok());
  EXPECT_EQ(backend.TakeTrace().size(), 6u);
}

// A command keeps the context that it was given.
TEST(Executor, CommunicationSeesItsOwnContext) {
  plan::StepPlan plan;
  const plan::Program program = TwoStreamProgram();
  FakeBackend backend;
  absl::Notification next_started;
  int64_t seen = -1;
  backend.bodies[2] = [&](const StepContext& context) {
    next_started.WaitForNotification();
    seen = context.step;
    return absl::OkStatus();
  };
  auto executor = Executor::Create(plan, program, &backend, nullptr);
  ASSERT_TRUE(executor.ok());
  StepContext context;
  context.step = 5;
  EXPECT_TRUE((*executor)->Run(Section::kMicroStep, context).ok());
  context.step = 6;
  next_started.Notify();
  EXPECT_TRUE((*executor)->Run(Section::kReduce, context).ok());
  EXPECT_EQ(seen, 5);
}

TEST(Executor, AComputeFailureStopsBothStreamsForGood) {
  plan::StepPlan plan;
  const plan::Program program = TwoStreamProgram();
  FakeBackend backend;
  absl::Notification aborted;
  // A collective that returns only because the failure aborts it.
  backend.bodies[2] = [&](const StepContext&) {
    aborted.WaitForNotification();
    return absl::AbortedError("aborted");
  };
  backend.bodies[3] = [](const StepContext&) { return absl::DataLossError("broken"); };
  int failures = 0;
  auto executor = Executor::Create(plan, program, &backend, [&](const absl::Status& status) {
    ++failures;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    aborted.Notify();
  });
  ASSERT_TRUE(executor.ok());
  const absl::Status status = (*executor)->Run(Section::kMicroStep, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("broken"), std::string::npos);
  EXPECT_EQ((*executor)->Run(Section::kUpdate, {}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(failures, 1);
  std::vector<int> trace = backend.TakeTrace();
  EXPECT_EQ(PlaceOf(trace, 6), trace.size());
}

TEST(Executor, ACommunicationFailureWakesWaitingCompute) {
  plan::StepPlan plan;
  const plan::Program program = TwoStreamProgram();
  FakeBackend backend;
  backend.bodies[2] = [](const StepContext&) { return absl::UnavailableError("peer gone"); };
  auto executor = Executor::Create(plan, program, &backend, nullptr);
  ASSERT_TRUE(executor.ok());
  (void)(*executor)->Run(Section::kMicroStep, {});  // may or may not see it yet
  EXPECT_EQ((*executor)->Run(Section::kReduce, {}).code(), absl::StatusCode::kUnavailable);
  const std::vector<int> trace = backend.TakeTrace();
  EXPECT_EQ(PlaceOf(trace, 4), trace.size());
}

TEST(Executor, AccountsByKind) {
  plan::StepPlan plan;
  plan::Program program;
  program.ops = {MakeOp(OpKind::kLinear, Stream::kCompute, When::kEveryMicroStep),
                 MakeOp(OpKind::kGelu, Stream::kCompute, When::kEveryMicroStep),
                 MakeOp(OpKind::kLinear, Stream::kCompute, When::kEveryMicroStep)};
  program.ops[0].flops = 3;
  program.ops[2].flops = 4;
  FakeBackend backend;
  auto executor = Executor::Create(plan, program, &backend, nullptr);
  ASSERT_TRUE(executor.ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE((*executor)->Run(Section::kMicroStep, {}).ok());
  const std::vector<OpKindTime> times = (*executor)->Times();
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].kind, OpKind::kLinear);
  EXPECT_EQ(times[0].runs, 10);
  EXPECT_EQ(times[0].flops, 35);
  EXPECT_EQ(times[1].runs, 5);
}

}  // namespace
}  // namespace milepost::runtime
