// Valid plans and ways to break them, shared by the verifier's tests.
#ifndef MILEPOST_ENGINE_PLAN_TESTING_VERIFY_FIXTURE_H_
#define MILEPOST_ENGINE_PLAN_TESTING_VERIFY_FIXTURE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {

inline StepPlan ValidPlan(int world = 2, int stage = 1, double dropout = 0) {
  absl::StatusOr<StepPlan> plan =
      PlanTraining(SpecOf({.dropout = dropout}), OptionsOf(world, stage, DType::kBf16));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

inline void ExpectRefused(const StepPlan& plan, const std::string& what,
                          const std::string& why = "") {
  const absl::Status status = Verify(plan);
  EXPECT_FALSE(status.ok()) << "not seen: " << what;
  EXPECT_THAT(status.message(), testing::HasSubstr(why)) << what;
}

inline std::string Describe(const Program& program, size_t i) {
  return absl::StrCat("op ", i, " ", graph::Name(program.ops[i].op.kind));
}

inline int FindOp(const Program& program, graph::OpKind kind) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].op.kind == kind) return static_cast<int>(i);
  }
  ADD_FAILURE() << "no " << graph::Name(kind);
  return 0;
}

// Puts the ops in another order (or leaves some out), with waits following the ops they name.
inline void Reorder(Program& program, const std::vector<int>& order) {
  std::vector<int> position(program.ops.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
  std::vector<PlannedOp> ops;
  for (int old : order) {
    PlannedOp op = program.ops[old];
    std::vector<int32_t> waits;
    for (int32_t wait : op.wait_for) {
      if (position[wait] >= 0) waits.push_back(position[wait]);
    }
    op.wait_for = waits;
    ops.push_back(std::move(op));
  }
  program.ops = std::move(ops);
}

inline std::vector<int> Identity(const Program& program) {
  std::vector<int> order(program.ops.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  return order;
}

// The first op that reads what op `writer` writes.
}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_TESTING_VERIFY_FIXTURE_H_
