#include "engine/ops/experts/experts.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/ops/backward.h"
#include "engine/ops/cost.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/reference/gradient_check.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/ops/swiglu/swiglu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::graph {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kVocabulary = 7, kWidth = 6, kHidden = 5;

struct MixtureSizes {
  int64_t experts = 4;
  int64_t per_token = 2;
  bool normalize = true;
  ops::ExpertLosses losses = {};
  int64_t weights = -1;  // that an op of experts is told of; -1: all
};

// Two layers of experts between an embedding and the head.
absl::StatusOr<Graph> MixtureModel(const MixtureSizes& sizes) {
  Builder b({.batch = 2, .sequence = 9});
  b.BeginBlock("only");
  const auto parameter = [&b](const std::string& name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId wte = parameter("wte", {kVocabulary, kWidth});
  ValueId x = ops::Embedding(b, "embedding", b.Tokens(), wte, {}, 0);
  const bool balanced = sizes.losses.balance_loss > 0 || sizes.losses.z_loss > 0;
  ValueId counts = kNoValue;
  for (const std::string layer : {"0.", "1."}) {
    const ValueId router = parameter(layer + "router", {sizes.experts, kWidth});
    std::vector<ValueId> up, down;
    for (int64_t e = 0; e < sizes.experts; ++e) {
      const std::string expert = absl::StrCat(layer, e);
      up.push_back(parameter(expert + ".gate", {kHidden, kWidth}));
      up.push_back(parameter(expert + ".up", {kHidden, kWidth}));
      down.push_back(parameter(expert + ".down", {kWidth, kHidden}));
    }
    if (sizes.weights >= 0) up.resize(static_cast<size_t>(sizes.weights));
    const ValueId logits = ops::LinearRows(b, layer + "logits", x, {router});
    const ops::ExpertRoutes routes = ops::RouteExperts(b, layer + "routes", logits,
                                                       {.per_token = sizes.per_token,
                                                        .normalize = sizes.normalize,
                                                        .counts = balanced,
                                                        .before = counts});
    counts = routes.counts;
    const ValueId rows = ops::DispatchRows(b, layer + "rows", x, routes);
    const ValueId both = ops::ExpertLinear(b, layer + "gate_up", rows, routes, up, 2);
    b.SetSequence(9 * sizes.per_token);
    const ValueId active = ops::SwiGlu(b, layer + "active", both);
    b.SetSequence(9);
    const ValueId made = ops::ExpertLinear(b, layer + "down", active, routes, down, 1);
    x = ops::CombineRows(b, layer + "out", made, routes);
  }
  if (balanced) ops::ExpertBalance(b, "balance", b.Targets(), counts, sizes.losses);
  ops::LmHeadLoss(b, "lm", x, wte, b.Targets(), 18);
  return std::move(b).Finish();
}

Graph Mixture(const MixtureSizes& sizes) {
  absl::StatusOr<Graph> graph = MixtureModel(sizes);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(ExpertOps, GradientsAreThoseOfFiniteDifferences) {
  for (const bool normalize : {true, false}) {
    for (const int64_t per_token : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat(per_token, " of 4, normalize ", normalize));
      const Graph graph = Mixture({.per_token = per_token, .normalize = normalize});
      EXPECT_THAT(GradientErrors(graph, {.vocabulary = kVocabulary, .micro_steps = 2}), IsEmpty());
    }
  }
}

// The values of a graph with fixed parameters and inputs after a run.
ReferenceInterpreter RunMixture(const Graph& graph, double nudge = 0, size_t nudged = 0) {
  ReferenceInterpreter run(graph);
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    std::vector<double>& values = run.values(graph.parameters[p].value);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.7 * TestNumber(p << 32 | i);
    if (p == nudged) values[3] += nudge;
  }
  for (int32_t i = 0; i < 18; ++i) {
    run.integers(graph.Input("tokens"))[i] = i * i % kVocabulary;
    run.integers(graph.Input("targets"))[i] = i % 5 == 0 ? -1 : i % kVocabulary;
  }
  run.Run({.gradient_scale = 1});
  return run;
}

// The losses of all that the experts' layers of a run show, times the targets' number.
double BalanceLossOf(const Graph& graph, ReferenceInterpreter& run, const MixtureSizes& sizes) {
  std::vector<double> rows(static_cast<size_t>(sizes.experts)), p(rows.size());
  double squares = 0;
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::kRouteExperts) continue;
    const std::vector<double>& logits = run.values(op.inputs[0]);
    const std::vector<int32_t>& offsets = run.integers(op.outputs[3].value);
    for (size_t n = 0; n < 18; ++n) {
      double sum = 0;
      for (size_t e = 0; e < rows.size(); ++e) sum += std::exp(logits[n * rows.size() + e]);
      for (size_t e = 0; e < rows.size(); ++e) {
        p[e] += std::exp(logits[n * rows.size() + e]) / sum;
      }
      squares += std::log(sum) * std::log(sum);
    }
    for (size_t e = 0; e < rows.size(); ++e) rows[e] += offsets[e + 1] - offsets[e];
  }
  double balance = 0;
  for (size_t e = 0; e < rows.size(); ++e) balance += rows[e] / 36 * p[e] / 36;
  return 14 * (sizes.losses.balance_loss * static_cast<double>(sizes.experts) * balance +
               sizes.losses.z_loss * squares / 36);
}

TEST(ExpertOps, FurtherLossesAreTrainedThoughNoneReportsThem) {
  for (const ops::ExpertLosses losses :
       {ops::ExpertLosses{.balance_loss = 0.5}, {.z_loss = 0.25}, {0.5, 0.25}}) {
    const MixtureSizes sizes = {.losses = losses};
    const Graph forward = Mixture(sizes);
    Graph graph = forward;
    ASSERT_EQ(ops::AddBackward(graph), absl::OkStatus());
    ReferenceInterpreter trained = RunMixture(graph);
    double largest = 0;
    for (size_t p = 0; p < graph.parameters.size(); ++p) {
      const auto loss = [&](double nudge) {
        ReferenceInterpreter run = RunMixture(forward, nudge, p);
        return run.values(forward.losses[0].sums)[kLossSum] + BalanceLossOf(forward, run, sizes);
      };
      constexpr double kStep = 1e-5;
      const double expected = (loss(kStep) - loss(-kStep)) / (2 * kStep);
      const double found = trained.values(graph.parameters[p].gradient)[3];
      EXPECT_NEAR(found, expected, 1e-7 * std::max(1.0, std::abs(expected)))
          << graph.values[graph.parameters[p].value].name;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 0.1);
  }
}

TEST(ExpertOps, OnlyChosenExpertsCount) {
  double all = 0;
  for (const int64_t per_token : {4, 2, 1}) {
    Graph graph = Mixture({.per_token = per_token});
    ASSERT_EQ(ops::AddBackward(graph), absl::OkStatus());
    double flops = 0;
    for (const Op& op : graph.ops) {
      const bool experts = op.kind == OpKind::kExpertLinear ||
                           op.kind == OpKind::kExpertLinearBackwardInput ||
                           op.kind == OpKind::kExpertLinearBackwardWeight;
      if (experts) flops += ops::OpCost(graph, op).flops;
    }
    if (per_token == 4) all = flops;
    // Two layers, three products each; forward and twice backward.
    EXPECT_EQ(flops, 2.0 * 3 * 3 * 2 * 18 * static_cast<double>(per_token * kWidth * kHidden));
    EXPECT_EQ(flops * 4, all * static_cast<double>(per_token));
  }
}

TEST(ExpertOps, RefuseWhatDoesNotFit) {
  const auto refusal = [](const MixtureSizes& sizes) {
    const absl::Status status = MixtureModel(sizes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({.per_token = 5}), HasSubstr("0.routes: 5 of 4 experts; at most 1024"));
  EXPECT_THAT(refusal({.per_token = 0}), HasSubstr("0.routes: 0 of 4 experts"));
  EXPECT_THAT(refusal({.experts = 1025}), HasSubstr("2 of 1025 experts; at most 1024"));
  EXPECT_THAT(refusal({.weights = 6}), HasSubstr("0.gate_up: 6 weights of 4 experts"));
  Builder many({.batch = 1 << 20, .sequence = 1 << 10});
  many.BeginBlock("only");
  const ValueId logits = many.AddActivation("logits", "", DType::kF32, {1 << 30, 4});
  ops::RouteExperts(many, "routes", logits, {.per_token = 2});
  EXPECT_THAT(std::move(many).Finish().status().message(),
              HasSubstr("routes: 1073741824 tokens of 2 experts each are too many at once"));
}

}  // namespace
}  // namespace milepost::graph
