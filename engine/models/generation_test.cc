// Models that go on from a cache, by the fp64 reference: the same logits as from the beginning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/spec/validate.h"
#include "engine/models/model.h"
#include "engine/ops/reference/gradient_check.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Graph;
using graph::ReferenceInterpreter;
using testing::HasSubstr;

constexpr int64_t kContext = 16;
constexpr int64_t kVocabulary = 19;

v1::ModelSpec Gpt2() {
  v1::ModelSpec model;
  v1::Gpt2Spec* gpt2 = model.mutable_gpt2();
  gpt2->set_layers(2);
  gpt2->set_width(16);
  gpt2->set_heads(2);
  gpt2->set_context(kContext);
  gpt2->set_vocabulary(kVocabulary);
  return model;
}

v1::ModelSpec Llama(bool variant) {
  v1::JobSpec spec;
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_layers(2);
  llama->set_width(16);
  llama->set_heads(4);
  llama->set_kv_heads(variant ? 1 : 2);
  llama->set_hidden(24);
  llama->set_context(kContext);
  llama->set_vocabulary(kVocabulary);
  if (variant) {
    llama->set_tied(true);
    llama->set_qkv_bias(true);
    llama->set_qk_norm(true);
    llama->mutable_rope_scaling()->set_factor(4);
    llama->mutable_rope_scaling()->set_original_context(8);
    llama->set_rope_theta(10);
  }
  NormalizeJobSpec(&spec);
  return spec.model();
}

// Windows that the text outgrows, in one of two layers.
v1::ModelSpec Gemma3() {
  v1::JobSpec spec;
  *spec.mutable_model() = Llama(false);
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_qk_norm(true);
  llama->set_norm_offset(true);
  llama->set_post_norms(true);
  llama->set_scale_embedding(true);
  llama->mutable_window()->set_positions(4);
  llama->mutable_window()->set_full_every(2);
  llama->mutable_window()->set_rope_theta(10);
  NormalizeJobSpec(&spec);
  return spec.model();
}

v1::ModelSpec Olmo2() {
  v1::JobSpec spec;
  *spec.mutable_model() = Llama(false);
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_wide_qk_norm(true);
  llama->set_pre_norms(false);
  llama->set_post_norms(true);
  NormalizeJobSpec(&spec);
  return spec.model();
}

// Other experts for each token.
v1::ModelSpec Mixture() {
  v1::JobSpec spec;
  *spec.mutable_model() = Llama(false);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_count(5);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_per_token(2);
  NormalizeJobSpec(&spec);
  return spec.model();
}

Graph Build(const v1::ModelSpec& model, int64_t rows, int64_t cached) {
  absl::StatusOr<Graph> graph =
      BuildModel(model, {.mode = Mode::kGeneration, .sequence = rows, .cached_positions = cached});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// Weights by parameter, the same in each graph of a model.
void SetWeights(const Graph& graph, ReferenceInterpreter& reference) {
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    std::vector<double>& values = reference.values(graph.parameters[p].value);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.5 * graph::TestNumber(1000 * p + i);
    }
  }
}

std::vector<int32_t> Text() {
  std::vector<int32_t> text(kContext);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>((i * i + 5 * i) % 19);
  return text;
}

// The logits after each token of the text, from its beginning each time.
std::vector<std::vector<double>> Whole(const v1::ModelSpec& model) {
  const Graph graph = Build(model, kContext, 0);
  ReferenceInterpreter reference(graph);
  SetWeights(graph, reference);
  reference.integers(graph.Input("tokens")) = Text();
  std::vector<std::vector<double>> logits;
  for (int64_t position = 0; position < kContext; ++position) {
    reference.Run({.position = position});
    logits.push_back(reference.values(graph.logits));
  }
  return logits;
}

class Piece {
 public:
  Piece(const v1::ModelSpec& model, int64_t rows)
      : graph_(Build(model, rows, kContext)), rows_(rows), reference_(graph_) {
    SetWeights(graph_, reference_);
  }

  // `count` rows of the text from `first` on, behind what `before` left.
  std::vector<double> Run(int64_t first, int64_t count, Piece* before) {
    if (before != nullptr) TakeCaches(*before);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t filled = first + std::min(row, count - 1);
      reference_.integers(graph_.Input("tokens"))[row] = Text()[filled];
      reference_.integers(graph_.Input("positions"))[row] = static_cast<int32_t>(filled);
    }
    reference_.Run({.position = count - 1});
    return reference_.values(graph_.logits);
  }

 private:
  void TakeCaches(Piece& other) {
    int caches = 0;
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      if (graph_.values[id].kind != graph::ValueKind::kCache) continue;
      EXPECT_EQ(graph_.values[id].name, other.graph_.values[id].name);
      reference_.values(id) = other.reference_.values(id);
      ++caches;
    }
    EXPECT_EQ(caches, 2);  // of each layer
  }

  const Graph graph_;
  const int64_t rows_;
  ReferenceInterpreter reference_;
};

void ExpectSame(const std::vector<double>& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-10);
}

TEST(Generation, LogitsFromACacheAreThoseOfTheWholeText) {
  for (const v1::ModelSpec& model :
       {Gpt2(), Llama(false), Llama(true), Gemma3(), Olmo2(), Mixture()}) {
    SCOPED_TRACE(model.ShortDebugString());
    const std::vector<std::vector<double>> whole = Whole(model);
    Piece chunk(model, 5), one(model, 1);
    ExpectSame(chunk.Run(0, 5, nullptr), whole[4]);
    ExpectSame(chunk.Run(5, 5, nullptr), whole[9]);
    ExpectSame(chunk.Run(10, 2, nullptr), whole[11]);  // partly filled
    for (int64_t t = 12; t < kContext; ++t) {
      ExpectSame(one.Run(t, 1, t == 12 ? &chunk : nullptr), whole[t]);
    }
  }
}

// What the programs of several texts share: caches of three texts, of which two are used.
class Texts {
 public:
  explicit Texts(const v1::ModelSpec& model, int64_t rows, bool apart)
      : graph_(BuildFor(model, rows, apart)), reference_(graph_) {
    SetWeights(graph_, reference_);
  }
  void Set(int64_t row, int32_t token, int64_t position, int32_t text) {
    reference_.integers(graph_.Input("tokens"))[row] = token;
    reference_.integers(graph_.Input("positions"))[row] = static_cast<int32_t>(position);
    reference_.integers(graph_.Input("texts"))[row] = text;
  }
  std::vector<double> Run(int64_t last, Texts* before) {
    for (size_t id = 0; before != nullptr && id < graph_.values.size(); ++id) {
      if (graph_.values[id].kind != graph::ValueKind::kCache) continue;
      for (size_t other = 0; other < before->graph_.values.size(); ++other) {
        if (before->graph_.values[other].name != graph_.values[id].name) continue;
        reference_.values(id) = before->reference_.values(other);
      }
    }
    reference_.Run({.position = last});
    return reference_.values(graph_.logits);
  }

 private:
  static Graph BuildFor(const v1::ModelSpec& model, int64_t rows, bool apart) {
    absl::StatusOr<Graph> graph = BuildModel(model, {.mode = Mode::kGeneration,
                                                     .sequence = rows,
                                                     .cached_positions = kContext,
                                                     .cached_texts = 3,
                                                     .rows_apart = apart,
                                                     .every_logits = apart});
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  const Graph graph_;
  ReferenceInterpreter reference_;
};

// One in the first cache, and one in the last, which is five tokens ahead.
TEST(Generation, TextsSideBySideHaveTheirOwnLogits) {
  for (const v1::ModelSpec& model :
       {Gpt2(), Llama(false), Llama(true), Gemma3(), Olmo2(), Mixture()}) {
    SCOPED_TRACE(model.ShortDebugString());
    const std::vector<std::vector<double>> whole = Whole(model);
    Texts piece(model, 7, /*apart=*/false), tokens(model, 3, /*apart=*/true);
    for (const auto& [text, count] : {std::pair<int32_t, int64_t>{0, 2}, {2, 7}}) {
      for (int64_t row = 0; row < 7; ++row) {
        const int64_t filled = std::min(row, count - 1);
        piece.Set(row, Text()[filled], filled, text);
      }
      ExpectSame(piece.Run(count - 1, nullptr), whole[count - 1]);
    }
    for (int64_t t = 2; t + 5 < kContext; ++t) {
      tokens.Set(0, Text()[t], t, 0);
      tokens.Set(1, 3, 0, -1);  // none
      tokens.Set(2, Text()[t + 5], t + 5, 2);
      const std::vector<double> logits = tokens.Run(0, t == 2 ? &piece : nullptr);
      ASSERT_EQ(logits.size(), 3U * kVocabulary);
      ExpectSame({logits.begin(), logits.begin() + kVocabulary}, whole[t]);
      ExpectSame({logits.begin() + 2 * kVocabulary, logits.end()}, whole[t + 5]);
    }
  }
}

TEST(Generation, RefusesWhatHasNoCache) {
  const auto message = [](const v1::ModelSpec& model, int64_t rows, int64_t cached) {
    return std::string(
        BuildModel(model, {.mode = Mode::kGeneration, .sequence = rows, .cached_positions = cached})
            .status()
            .message());
  };
  EXPECT_THAT(message(Gpt2(), 1, kContext + 1), HasSubstr("do not fit 16 positions"));
  EXPECT_THAT(message(Llama(false), 1, kContext + 1), HasSubstr("do not fit 16 positions"));
  EXPECT_THAT(message(Gpt2(), 5, 4), HasSubstr("no piece of one text"));
  v1::JobSpec spec;
  v1::BertSpec* bert = spec.mutable_model()->mutable_bert();
  bert->set_layers(1);
  bert->set_width(16);
  bert->set_heads(2);
  bert->set_hidden(16);
  bert->set_context(kContext);
  bert->set_vocabulary(kVocabulary);
  NormalizeJobSpec(&spec);
  EXPECT_THAT(message(spec.model(), 1, kContext), HasSubstr("only causal attention"));
}

}  // namespace
}  // namespace milepost::models
