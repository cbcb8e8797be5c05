#include "engine/ops/backward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/graph/builder.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/batch_norm/batch_norm.h"
#include "engine/ops/classifier/classifier.h"
#include "engine/ops/convolution/convolution.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/images/images.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/pooling/pooling.h"
#include "engine/ops/reference/gradient_check.h"
#include "engine/ops/rope/rope.h"
#include "engine/ops/swiglu/swiglu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::graph {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kVocabulary = 9;
constexpr int64_t kWidth = 6;

// A head over whatever `body` makes of the embedded tokens.
template <typename Body>
Graph ModelOf(double dropout, Body body) {
  Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const auto parameter = [&b](const char* name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId wte = parameter("wte", {kVocabulary, kWidth});
  const ValueId x =
      ops::Embedding(b, "x", b.Tokens(), wte, {.wpe = parameter("wpe", {7, kWidth})}, dropout);
  ops::LmHeadLoss(b, "loss", body(b, x, parameter), wte, b.Targets(), 4);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

void ExpectGradientsRight(const Graph& graph) {
  for (int micro_steps : {1, 2}) {
    EXPECT_THAT(GradientErrors(graph, {.vocabulary = kVocabulary,
                                       .elements_per_parameter = 1000,
                                       .micro_steps = micro_steps}),
                IsEmpty());
  }
}

TEST(Autodiff, TiedEmbeddingAndHead) {
  for (double dropout : {0.0, 0.3}) {
    ExpectGradientsRight(ModelOf(dropout, [](Builder&, ValueId x, auto) { return x; }));
  }
}

TEST(Autodiff, LinearAndGelu) {
  ExpectGradientsRight(ModelOf(0, [](Builder& b, ValueId x, auto parameter) {
    const ValueId up = ops::Linear(b, "up", x, parameter("w1", {kWidth, 8}), parameter("b1", {8}));
    return ops::Linear(b, "down", ops::Gelu(b, "gelu", up), parameter("w2", {8, kWidth}),
                       parameter("b2", {kWidth}));
  }));
}

TEST(Autodiff, LayerNorm) {
  ExpectGradientsRight(ModelOf(0, [](Builder& b, ValueId x, auto parameter) {
    return ops::LayerNorm(b, "ln", x, parameter("gamma", {kWidth}), parameter("beta", {kWidth})).y;
  }));
}

TEST(Autodiff, Attention) {
  ExpectGradientsRight(ModelOf(0, [](Builder& b, ValueId x, auto parameter) {
    const ValueId qkv = ops::Linear(b, "qkv", x, parameter("w", {kWidth, 3 * kWidth}),
                                    parameter("b", {3 * kWidth}));
    return ops::Attention(b, "attention", qkv, {.heads = 2});
  }));
}

// Weights [out, in] whose results lie side by side, with biases and without.
TEST(Autodiff, LinearRows) {
  for (bool biased : {false, true}) {
    ExpectGradientsRight(ModelOf(0, [biased](Builder& b, ValueId x, auto parameter) {
      const ValueId w[] = {parameter("w1", {4, kWidth}), parameter("w2", {1, kWidth}),
                           parameter("w3", {3, kWidth})};
      std::vector<ValueId> biases;
      if (biased) biases = {parameter("b1", {4}), parameter("b2", {1}), parameter("b3", {3})};
      const ValueId y = ops::LinearRows(b, "y", x, w, biases);
      const ValueId back = parameter("w4", {kWidth, 8});
      return ops::LinearRows(b, "z", ops::Gelu(b, "gelu", y), {back});
    }));
  }
}

TEST(Autodiff, RmsNormAndItsResidual) {
  ExpectGradientsRight(ModelOf(0, [](Builder& b, ValueId x, auto parameter) {
    const auto first = ops::RmsNorm(b, "n1", x, parameter("g1", {kWidth}), 1e-3);
    const ValueId delta = ops::LinearRows(b, "d", first.y, {parameter("w", {kWidth, kWidth})});
    const auto second = ops::ResidualRmsNorm(b, "n2", x, delta, parameter("g2", {kWidth}), 0.1);
    const ValueId other = ops::LinearRows(b, "e", second.y, {parameter("u", {kWidth, kWidth})});
    return ops::ResidualRmsNorm(b, "n3", second.sum, other, parameter("g3", {kWidth}), 1e-5).y;
  }));
}

TEST(Autodiff, SwiGlu) {
  ExpectGradientsRight(ModelOf(0, [](Builder& b, ValueId x, auto parameter) {
    const ValueId up =
        ops::LinearRows(b, "up", x, {parameter("g", {5, kWidth}), parameter("u", {5, kWidth})});
    return ops::LinearRows(b, "down", ops::SwiGlu(b, "act", up), {parameter("d", {kWidth, 5})});
  }));
}

// Rotated, with fewer heads of keys than of queries, as few as one, and as many.
TEST(Autodiff, RopeAndGroupedAttention) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kDim = 4;
  for (int64_t kv_heads : {1, 2, 4}) {
    ExpectGradientsRight(ModelOf(0, [kv_heads](Builder& b, ValueId x, auto parameter) {
      const ValueId table =
          ops::RopeTable(b, "rope", kDim, {.theta = 10, .factor = 3, .original_context = 20});
      const ValueId qkv = ops::LinearRows(
          b, "qkv", x,
          {parameter("q", {kHeads * kDim, kWidth}), parameter("k", {kv_heads * kDim, kWidth}),
           parameter("v", {kv_heads * kDim, kWidth})});
      const ValueId rotated = ops::Rope(b, "rotated", qkv, table, kHeads, kv_heads);
      const ValueId out =
          ops::Attention(b, "attention", rotated, {.heads = kHeads, .kv_heads = kv_heads});
      return ops::LinearRows(b, "out", out, {parameter("o", {kWidth, kHeads * kDim})});
    }));
  }
}

// Not causal, and within documents: here the positions of equal tokens are one.
TEST(Autodiff, AttentionWithoutTheCausalMaskAndWithinDocuments) {
  for (bool causal : {false, true}) {
    for (bool documents : {false, true}) {
      if (causal && !documents) continue;
      ExpectGradientsRight(ModelOf(0, [=](Builder& b, ValueId x, auto parameter) {
        const ValueId qkv = ops::LinearRows(b, "qkv", x, {parameter("q", {4 * 4, kWidth})});
        const ValueId out = ops::Attention(b, "attention", qkv,
                                           {.heads = 2,
                                            .kv_heads = 1,
                                            .causal = causal,
                                            .documents = documents ? b.Tokens() : kNoValue});
        return ops::LinearRows(b, "out", out, {parameter("o", {kWidth, 2 * 4})});
      }));
    }
  }
}

// Rows of every table given from outside, and positions of the rotation.
TEST(Autodiff, GivenPositionsAndSegments) {
  Builder b({.batch = 2, .sequence = kVocabulary});
  b.BeginBlock("only");
  const auto parameter = [&b](const char* name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId wte = parameter("wte", {kVocabulary, kWidth});
  const ValueId places = b.Tokens();  // any i32 below the sequence length
  const ValueId x = ops::Embedding(b, "x", b.Tokens(), wte,
                                   {.wpe = parameter("wpe", {kVocabulary + 1, kWidth}),
                                    .positions = places,
                                    .wse = parameter("wse", {kVocabulary, kWidth}),
                                    .segments = places},
                                   0.2);
  const ValueId table = ops::RopeTable(b, "rope", 4, {.theta = 10});
  const ValueId qkv = ops::LinearRows(b, "qkv", x, {parameter("w", {12, kWidth})});
  const ValueId rotated = ops::Rope(b, "rotated", qkv, table, 1, 1, places);
  const ValueId out = ops::Attention(b, "attention", rotated, {.heads = 1});
  ops::LmHeadLoss(b, "loss", ops::LinearRows(b, "out", out, {parameter("o", {kWidth, 4})}), wte,
                  b.Targets(), 4);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ExpectGradientsRight(*graph);
}

// Normalised after each sub-layer: y is read by the next one and is the residual, too.
TEST(Autodiff, PostNorm) {
  for (double dropout : {0.0, 0.3}) {
    ExpectGradientsRight(ModelOf(0, [dropout](Builder& b, ValueId x, auto parameter) {
      ValueId y =
          ops::LayerNorm(b, "ln", x, parameter("g", {kWidth}), parameter("c", {kWidth}), 0.1).y;
      if (dropout > 0) y = ops::Dropout(b, "dropped", y, dropout);
      for (const char* name : {"1", "2"}) {
        const auto named = [name](const char* what) { return absl::StrCat(what, name); };
        const ValueId up =
            ops::LinearRows(b, named("up"), y, {parameter(named("u").c_str(), {4, kWidth})});
        const ValueId active = ops::Gelu(b, named("gelu"), up, /*exact=*/true);
        const ValueId delta =
            ops::LinearRows(b, named("down"), active, {parameter(named("d").c_str(), {kWidth, 4})});
        y = ops::ResidualLayerNorm(b, named("norm"), y, delta,
                                   parameter(named("g").c_str(), {kWidth}),
                                   parameter(named("c").c_str(), {kWidth}), dropout, 1e-12)
                .y;
      }
      return y;
    }));
  }
}

TEST(Autodiff, HeadWithBias) {
  Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const ValueId wte = b.Parameter("wte", {kVocabulary, kWidth}, Initializer::kNormal, 1);
  const ValueId bias = b.Parameter("bias", {kVocabulary}, Initializer::kZeros);
  const ValueId x = ops::Embedding(b, "x", b.Tokens(), wte, {}, 0);
  ops::MaskedLmHeadLoss(b, "loss", x, wte, bias, b.Targets(), 4);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ExpectGradientsRight(*graph);
}

// Heads of several weights over one value, which a norm before the last of them reads as well.
TEST(Autodiff, SeveralHeadsOverOneTrunk) {
  Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const auto parameter = [&b](const std::string& name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId wte = parameter("wte", {kVocabulary, kWidth});
  const ValueId x = ops::Embedding(b, "x", b.Tokens(), wte, {}, 0);
  const auto head = [&](const std::string& name, int64_t classes, int64_t chunk, double weight) {
    ops::TokenClassifierLoss(b, name, x, parameter(name + ".w", {classes, kWidth}),
                             parameter(name + ".b", {classes}),
                             b.Input("labels." + name, DType::kI32, {b.rows()}), chunk, weight);
  };
  ops::LmHeadLoss(b, "lm", x, wte, b.Targets(), 4, 0.75);
  head("few", 3, 10, 0.5);
  const ValueId y = ops::LayerNorm(b, "y", x, parameter("g", {kWidth}), parameter("c", {kWidth})).y;
  ops::MaskedLmHeadLoss(b, "masked", y, wte, kNoValue, b.Targets(), 3, 2);
  head("many", 13, 3, 1.5);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ExpectGradientsRight(*graph);
}

// The first of them must not write over what the others read: only the last one has x to itself.
TEST(Autodiff, HeadsOverOneTrunkAddToEachOther) {
  Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const ValueId wte = b.Parameter("wte", {kVocabulary, kWidth}, Initializer::kNormal, 1);
  const ValueId x = ops::Embedding(b, "x", b.Tokens(), wte, {}, 0);
  ops::LmHeadLoss(b, "one", x, wte, b.Targets(), 4);
  ops::LmHeadLoss(b, "two", x, wte, b.Targets(), 4);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(ops::AddBackward(*graph).ok());
  std::vector<Op> heads;
  for (const Op& op : graph->ops) {
    if (op.kind == OpKind::kLmHeadLossBackward) heads.push_back(op);
  }
  ASSERT_EQ(heads.size(), 2);
  EXPECT_EQ(heads[0].attributes.head, 1);
  EXPECT_EQ(heads[0].inputs[4], kNoValue);
  EXPECT_EQ(heads[0].outputs[1].may_overwrite, x);
  EXPECT_EQ(heads[1].inputs[4], heads[0].outputs[1].value);
  EXPECT_EQ(heads[1].outputs[1].may_overwrite, heads[0].outputs[1].value);
}

TEST(Autodiff, UntiedHeadWithoutPositions) {
  Builder b({.batch = 2, .sequence = 5});
  b.BeginBlock("only");
  const auto parameter = [&b](const char* name) {
    return b.Parameter(name, {kVocabulary, kWidth}, Initializer::kNormal, 1);
  };
  const ValueId x = ops::Embedding(b, "x", b.Tokens(), parameter("wte"), {}, 0);
  ops::LmHeadLoss(b, "loss", x, parameter("head"), b.Targets(), 4);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ExpectGradientsRight(*graph);
}

// x has two consumers, the norm and the residual; with dropout the residual and delta differ.
TEST(Autodiff, ResidualStream) {
  for (double dropout : {0.0, 0.3}) {
    ExpectGradientsRight(ModelOf(dropout, [dropout](Builder& b, ValueId x, auto parameter) {
      const auto ln1 =
          ops::LayerNorm(b, "ln1", x, parameter("g1", {kWidth}), parameter("c1", {kWidth}));
      const ValueId d1 =
          ops::Linear(b, "d1", ln1.y, parameter("w1", {kWidth, kWidth}), parameter("b1", {kWidth}));
      const auto ln2 = ops::ResidualLayerNorm(b, "ln2", x, d1, parameter("g2", {kWidth}),
                                              parameter("c2", {kWidth}), dropout);
      const ValueId d2 =
          ops::Linear(b, "d2", ln2.y, parameter("w2", {kWidth, kWidth}), parameter("b2", {kWidth}));
      return ops::ResidualLayerNorm(b, "ln3", ln2.sum, d2, parameter("g3", {kWidth}),
                                    parameter("c3", {kWidth}), dropout)
          .y;
    }));
  }
}

// A classifier over whatever `body` makes of normalised images.
template <typename Body>
Graph ClassifierOf(double smoothing, Body body) {
  Builder b({.batch = 3});
  b.BeginBlock("only");
  const auto parameter = [&b](const std::string& name, const Shape& shape) {
    return b.Parameter(name, shape, Initializer::kNormal, 1);
  };
  const ValueId x = ops::NormalizeImages(b, "x", b.Images(6, 5), {0.4, 0.5, 0.6}, {0.2, 0.25, 0.3});
  const ValueId pooled = ops::AveragePool(b, "pooled", body(b, x, parameter));
  const ValueId logits = ops::LinearRows(b, "logits", pooled, {parameter("head", {kVocabulary, 4})},
                                         {parameter("c", {kVocabulary})});
  ops::ClassifierLoss(b, "loss", logits, b.Targets(), smoothing);
  absl::StatusOr<Graph> graph = std::move(b).Finish();
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

ops::BatchNormParameters NormParameters(Builder& b, const std::string& name) {
  const auto parameter = [&](const char* suffix) {
    return b.Parameter(name + suffix, {4}, Initializer::kOnes);
  };
  return {.gamma = parameter(".gamma"),
          .beta = parameter(".beta"),
          .running_mean = b.Statistic(name + ".mean_", DType::kF32, {4}, 0),
          .running_variance = b.Statistic(name + ".variance_", DType::kF32, {4}, 1),
          .batches = b.Statistic(name + ".batches", DType::kI64, {}, 0)};
}

TEST(Autodiff, ConvolutionAndPools) {
  for (double smoothing : {0.0, 0.3}) {
    ExpectGradientsRight(ClassifierOf(smoothing, [](Builder& b, ValueId x, auto parameter) {
      const ValueId y =
          ops::Convolution(b, "y", x, parameter("w1", {5, 3, 3, 3}), {.stride = 1, .padding = 1});
      const ValueId pool = ops::MaxPool(b, "pool", y, 3, {.stride = 2, .padding = 1});
      return ops::Convolution(b, "z", pool, parameter("w2", {4, 5, 2, 2}), {.stride = 2});
    }));
  }
}

// Norms with and without a ReLU; a stream whose values have two consumers: the next convolution
// and the next residual, after a pool and after a norm; statistics synchronised and not.
TEST(Autodiff, BatchNormAndItsResidual) {
  for (bool synchronised : {false, true}) {
    ExpectGradientsRight(ClassifierOf(0.1, [&](Builder& b, ValueId x, auto parameter) {
      const auto norm = [&](const std::string& name, ValueId in, bool relu,
                            ValueId residual = kNoValue) {
        return ops::BatchNorm(
            b, name, in, NormParameters(b, name),
            {.synchronised = synchronised, .relu = relu, .residual = residual, .epsilon = 0.1});
      };
      const auto convolve = [&](const std::string& name, ValueId in) {
        return ops::Convolution(b, name, in, parameter(name + ".w", {4, 4, 3, 3}),
                                {.stride = 1, .padding = 1});
      };
      const ValueId first = ops::Convolution(b, "c0", x, parameter("w0", {4, 3, 1, 1}), {});
      const ValueId pool =
          ops::MaxPool(b, "pool", norm("n0", first, true), 3, {.stride = 2, .padding = 1});
      const ValueId one = norm("n1", convolve("c1", pool), true, pool);
      const ValueId two = norm("n2", convolve("c2", one), false, one);
      const ValueId side = norm("n3", convolve("c3", two), false);
      return norm("n4", convolve("c4", norm("n5", convolve("c5", two), true)), true, side);
    }));
  }
}

TEST(Autodiff, WritesEachGradientFirstInStepThenAccumulates) {
  Graph graph = ModelOf(0, [](Builder&, ValueId x, auto) { return x; });
  ASSERT_TRUE(ops::AddBackward(graph).ok());
  const ValueId dwte = graph.parameters[0].gradient;
  std::vector<WriteMode> modes;
  for (const Op& op : graph.ops) {
    for (const Output& output : op.outputs) {
      if (output.value == dwte) modes.push_back(output.mode);
    }
  }
  EXPECT_THAT(modes, testing::ElementsAre(WriteMode::kAccumulateInStep, WriteMode::kAccumulate));
  EXPECT_EQ(graph.values[dwte].dtype, DType::kF32);
  EXPECT_EQ(graph.values[dwte].shape, graph.values[graph.parameters[0].value].shape);
}

TEST(Autodiff, RefusesAGraphWithoutLossAndASecondBackward) {
  Graph graph = ModelOf(0, [](Builder&, ValueId x, auto) { return x; });
  ASSERT_TRUE(ops::AddBackward(graph).ok());
  EXPECT_EQ(ops::AddBackward(graph).code(), absl::StatusCode::kFailedPrecondition);
  Graph empty;
  EXPECT_EQ(ops::AddBackward(empty).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Autodiff, NamesAValueWhoseGradientItCannotAdd) {
  Graph graph = ModelOf(0, [](Builder& b, ValueId x, auto parameter) {
    const ValueId left = ops::Gelu(b, "left", x);
    const ValueId right = ops::Gelu(b, "right", x);
    return ops::ResidualLayerNorm(b, "ln", left, right, parameter("g", {kWidth}),
                                  parameter("c", {kWidth}), 0)
        .y;
  });
  const absl::Status status = ops::AddBackward(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("gradient of x"));
}

TEST(Autodiff, NamesAValueThatLeadsNowhere) {
  Graph graph = ModelOf(0, [](Builder& b, ValueId x, auto) {
    ops::Gelu(b, "unused", x);
    return x;
  });
  EXPECT_THAT(ops::AddBackward(graph).message(), HasSubstr("unused"));
}

}  // namespace
}  // namespace milepost::graph
