// The family of docs/use/models.md: the part between the two markers is what the page shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/graph/builder.h"
#include "engine/models/model.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/reference/gradient_check.h"
#include "engine/ops/rope/rope.h"

namespace milepost::models {
namespace {

// [begin worked example]
using graph::Builder;
using graph::Initializer;
using graph::ValueId;

struct RotaryGptSpec {
  int64_t layers, width, heads, vocabulary;
};

class RotaryGptBuilder {
 public:
  RotaryGptBuilder(const RotaryGptSpec& spec, const ModelOptions& options)
      : spec_(spec),
        options_(options),
        b_({.compute_dtype = options.compute_dtype,
            .batch = options.batch,
            .sequence = options.sequence,
            .cached_positions = options.cached_positions}) {}

  absl::StatusOr<graph::Graph> Build() && {
    b_.BeginBlock("embedding");
    const ValueId wte = Weight("wte.weight", spec_.vocabulary, spec_.width);
    rope_ = ops::RopeTable(b_, "rope", spec_.width / spec_.heads, {.theta = 10000});
    residual_ = ops::Embedding(b_, "embedding", b_.Tokens(), wte, {}, /*dropout=*/0);
    for (int64_t layer = 0; layer < spec_.layers; ++layer) Layer(absl::StrCat("h.", layer));
    b_.BeginBlock("ln_f");
    const ValueId y = Norm("ln_f");
    if (options_.mode == Mode::kGeneration) {
      ops::LmHeadLogits(b_, "logits", y, wte);
    } else {
      const int64_t chunk = options_.lm_head_chunk_rows;
      ops::LmHeadLoss(b_, "lm", y, wte, b_.Targets(), chunk == 0 ? b_.rows() : chunk);
    }
    return std::move(b_).Finish();
  }

 private:
  ValueId Weight(absl::string_view name, int64_t out, int64_t in) {
    return b_.Parameter(name, {out, in}, Initializer::kNormal, 0.02);
  }

  // Adds what the last sub-layer left to the residual stream, and normalises that.
  ValueId Norm(absl::string_view name) {
    const ValueId gamma =
        b_.Parameter(absl::StrCat(name, ".weight"), {spec_.width}, Initializer::kOnes);
    if (delta_ == graph::kNoValue) return ops::RmsNorm(b_, name, residual_, gamma, 1e-5).y;
    const auto result = ops::ResidualRmsNorm(b_, name, residual_, delta_, gamma, 1e-5);
    residual_ = result.sum;
    return result.y;
  }

  void Layer(const std::string& h) {
    const int64_t width = spec_.width;
    b_.BeginBlock(h);
    ValueId x = Norm(h + ".ln_1");
    x = ops::LinearRows(b_, h + ".qkv", x, {Weight(h + ".qkv.weight", 3 * width, width)});
    x = ops::Rope(b_, h + ".rope", x, rope_, spec_.heads, spec_.heads);
    x = ops::Attention(b_, h + ".attention", x, {.heads = spec_.heads});
    delta_ = ops::LinearRows(b_, h + ".out", x, {Weight(h + ".out.weight", width, width)});
    x = Norm(h + ".ln_2");
    x = ops::LinearRows(b_, h + ".up", x, {Weight(h + ".up.weight", 4 * width, width)});
    x = ops::Gelu(b_, h + ".gelu", x);
    delta_ = ops::LinearRows(b_, h + ".down", x, {Weight(h + ".down.weight", width, 4 * width)});
  }

  const RotaryGptSpec spec_;
  const ModelOptions options_;
  Builder b_;
  ValueId rope_ = graph::kNoValue;
  ValueId residual_ = graph::kNoValue;
  ValueId delta_ = graph::kNoValue;
};

TEST(RotaryGpt, GradientsAreThoseOfFiniteDifferences) {
  const RotaryGptSpec spec = {.layers = 2, .width = 16, .heads = 2, .vocabulary = 11};
  const auto graph = RotaryGptBuilder(spec, {.batch = 2, .sequence = 6}).Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(graph::GradientErrors(*graph, {.vocabulary = 11, .elements_per_parameter = 5}),
              testing::IsEmpty());
}
// [end worked example]

}  // namespace
}  // namespace milepost::models
