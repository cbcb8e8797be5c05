// Plans whose gradients travel as factors: what they keep and send, and what is proven of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/plan/compression.h"
#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kFactorRank = 4;

PlanOptions Compressing(int world, bool warm = true, DType dtype = DType::kBf16) {
  PlanOptions options = OptionsOf(world, 0, dtype);
  options.powersgd_rank = kFactorRank;
  options.powersgd_start = 10;
  options.powersgd_warm = warm;
  return options;
}

StepPlan CompressionPlanOf(const PlanOptions& options) {
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(CompressionPlan, CompressesWhatHasLessThanHalfAsFactors) {
  EXPECT_EQ(FactorRank({64, 64}, 4), 4);
  EXPECT_EQ(FactorRank({64, 64}, 15), 15);
  EXPECT_EQ(FactorRank({64, 64}, 16), 0) << "half as much is not less than that";
  EXPECT_EQ(FactorRank({64, 64, 3, 3}, 20), 20) << "64 by 576";
  EXPECT_EQ(FactorRank({5, 1000}, 4), 0);
  EXPECT_EQ(FactorRank({5, 1000}, 2), 2);
  EXPECT_EQ(FactorRank({1000}, 1), 0);
  EXPECT_EQ(FactorRank({}, 1), 0);
  EXPECT_EQ(FactorRank({64, 64}, 0), 0);
}

// Factors of the matrices, and all else as it is, in this order.
TEST(CompressionPlan, LaysOutFactorsAndTheRest) {
  const StepPlan plan = CompressionPlanOf(Compressing(2));
  for (const FlatGroup& group : plan.groups) {
    const FactorLayout layout = LayOutFactors(group);
    int64_t left = 0, right = 0;
    for (const FactoredMatrix& m : layout.matrices) {
      EXPECT_EQ(m.left, left);
      EXPECT_EQ(m.right, right);
      EXPECT_EQ(m.rows * m.cols, group.parameters[m.parameter].elements);
      EXPECT_EQ(m.rank, kFactorRank);
      left += m.rank * m.rows;
      right += m.rank * m.cols;
    }
    for (const FactorLayout::Whole& w : layout.whole) {
      EXPECT_EQ(w.left, left);
      left += group.parameters[w.parameter].elements;
    }
    EXPECT_EQ(layout.left_elements, left);
    EXPECT_EQ(layout.right_elements, right);
    EXPECT_EQ(layout.matrices.size() + layout.whole.size(), group.parameters.size());
    EXPECT_EQ(group.Compressed(), !layout.matrices.empty());
  }
}

TEST(CompressionPlan, KeepsErrorsAndFactorsAndSendsLess) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const bool warm : {true, false}) {
      for (const int world : {1, 2, 3, 4}) {
        const StepPlan with = CompressionPlanOf(Compressing(world, warm, dtype));
        const StepPlan without = CompressionPlanOf(OptionsOf(world, 0, dtype));
        int64_t errors = 0, right = 0, sent = 0;
        for (const FlatGroup& group : with.groups) {
          const FactorLayout layout = LayOutFactors(group);
          const bool compressed = !layout.matrices.empty();
          errors += compressed ? group.padded_elements : 0;
          right += layout.right_elements;
          sent += compressed ? layout.left_elements + layout.right_elements : group.padded_elements;
        }
        const auto kept = [](const StepPlan& plan) {
          return plan.bytes_by_class[static_cast<int>(BufferClass::kOptimizer)];
        };
        EXPECT_EQ(kept(with) - kept(without), 4 * (errors + (warm ? right : 0)));
        EXPECT_EQ(with.flops_per_step, without.flops_per_step) << "what MFU counts is the model's";
        const double share = 2 * (1 - 1.0 / world);
        const double scalars = share * 8 * with.ReducedScalars();
        EXPECT_NEAR(with.wire_bytes_per_step, share * 4 * static_cast<double>(sent) + scalars, 1);
        if (world > 1) {
          EXPECT_LT(with.wire_bytes_per_step, 0.4 * without.wire_bytes_per_step);
        }
      }
    }
  }
}

// Nothing that it works on lies in a rank's other states.
TEST(CompressionPlan, EveryAccumulationVerifies) {
  for (const int64_t accumulation : {1, 2, 5}) {
    for (const bool warm : {true, false}) {
      PlanOptions options = Compressing(2, warm);
      options.accumulation = accumulation;
      EXPECT_EQ(PlanTraining(SpecOf({}), options).status(), absl::OkStatus());
    }
  }
}

TEST(CompressionPlan, IsForWholeGradientsInFp32) {
  const auto refused = [](auto change) {
    PlanOptions options = Compressing(4);
    change(options);
    EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(),
                testing::HasSubstr("train.powersgd"));
  };
  refused([](PlanOptions& o) { o.zero_stage = 1; });
  refused([](PlanOptions& o) { o.tensor = 2; });
  refused([](PlanOptions& o) { o.context = 2; });
  refused([](PlanOptions& o) { o.offload_optimizer = true; });
  refused([](PlanOptions& o) {
    o.accumulation = 1;
    o.grad_dtype = DType::kBf16;
  });
}

constexpr OpKind kCompressionOps[] = {OpKind::kCompressGradients, OpKind::kReduceLeftFactors,
                                      OpKind::kProjectGradients,  OpKind::kReduceRightFactors,
                                      OpKind::kExpandGradients,   OpKind::kForgetErrors};

TEST(CompressionPlan, AnOpThatIsLeftOutIsFound) {
  for (const OpKind kind : kCompressionOps) {
    StepPlan plan = CompressionPlanOf(Compressing(2));
    std::vector<int> order = Identity(plan.train);
    order.erase(order.begin() + FindOp(plan.train, kind));
    Reorder(plan.train, order);
    ExpectRefused(plan, graph::Name(kind));
  }
}

TEST(CompressionPlan, OpsInAnotherOrderAreFound) {
  for (const auto& [a, b] : {std::pair(OpKind::kCompressGradients, OpKind::kReduceLeftFactors),
                             std::pair(OpKind::kProjectGradients, OpKind::kReduceRightFactors),
                             std::pair(OpKind::kReduceScalars, OpKind::kForgetErrors)}) {
    StepPlan plan = CompressionPlanOf(Compressing(2));
    std::vector<int> order = Identity(plan.train);
    std::swap(order[FindOp(plan.train, a)], order[FindOp(plan.train, b)]);
    Reorder(plan.train, order);
    ExpectRefused(plan, graph::Name(a));
  }
}

TEST(CompressionPlan, FactorsThatLoseTheirBytesAreFound) {
  StepPlan plan = CompressionPlanOf(Compressing(2));
  const int expand = FindOp(plan.train, OpKind::kExpandGradients);
  const FlatGroup& group = plan.groups[plan.train.ops[expand].op.attributes.group];
  // What is made between the two.
  for (int i = FindOp(plan.train, OpKind::kCompressGradients) + 2; i < expand; ++i) {
    for (const graph::Output& output : plan.train.ops[i].op.outputs) {
      if (output.value == graph::kNoValue) continue;
      if (plan.train.graph.values[output.value].kind != graph::ValueKind::kActivation) continue;
      Buffer& buffer = plan.buffers[plan.train.places[output.value].buffer];
      if (buffer.persistent) continue;
      plan.buffers[group.left_buffer].offset = buffer.offset;
      ExpectRefused(plan, buffer.name);
      return;
    }
  }
  FAIL() << "nothing is made between compressing and expanding";
}

TEST(CompressionPlan, WrongBytesOnTheWireAreFound) {
  for (const OpKind kind : {OpKind::kReduceLeftFactors, OpKind::kReduceRightFactors}) {
    StepPlan plan = CompressionPlanOf(Compressing(2));
    plan.train.ops[FindOp(plan.train, kind)].wire_bytes += 4;
    EXPECT_THAT(VerifyWire(plan).message(), testing::HasSubstr(graph::Name(kind)));
  }
}

TEST(CompressionPlan, ErrorsAreInACheckpoint) {
  const StepPlan plan = CompressionPlanOf(Compressing(3));
  int groups = 0;
  for (const FlatGroup& group : plan.groups) {
    if (!group.Compressed()) continue;
    ++groups;
    EXPECT_EQ(StatesOf(group).back().kind, "error");
    EXPECT_TRUE(plan.buffers[group.error_buffer].persistent);
    EXPECT_TRUE(plan.buffers[group.right_buffer].persistent);
  }
  EXPECT_GT(groups, 2);
}

}  // namespace
}  // namespace milepost::plan
