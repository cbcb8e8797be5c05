// Log-probabilities of texts, and what is kept from one text to the next.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/spec/validate.h"
#include "engine/kernels/cpu/random.h"
#include "engine/models/model.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/runtime/cpu/cpu_generation_engine.h"
#include "engine/runtime/generation/generator.h"
#include "engine/runtime/generation/token_scores.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kWindow = 150;  // more than two chunks of a prompt
constexpr int64_t kFew = 37;

std::vector<v1::ModelSpec> Models() {
  v1::JobSpec spec;
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_layers(2);
  llama->set_width(32);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_hidden(40);
  llama->set_context(kWindow);
  llama->set_vocabulary(kFew);
  NormalizeJobSpec(&spec);
  v1::ModelSpec other;
  v1::Gpt2Spec* gpt2 = other.mutable_gpt2();
  gpt2->set_layers(2);
  gpt2->set_width(32);
  gpt2->set_heads(4);
  gpt2->set_context(kWindow);
  gpt2->set_vocabulary(kFew);
  return {spec.model(), other};
}

std::vector<float> Drawn(size_t tensor, int64_t elements) {
  std::vector<float> weights(static_cast<size_t>(elements));
  kernels::NormalInit(weights.data(), elements, 0, 0.3F, 1, tensor, 0);
  return weights;
}

// Counts the tokens that are run.
class Counting : public GenerationEngine {
 public:
  Counting(std::unique_ptr<GenerationEngine> engine, int64_t* tokens)
      : engine_(std::move(engine)), tokens_(tokens) {}
  void UseThread() override { engine_->UseThread(); }
  const plan::StepPlan& plan() const override { return engine_->plan(); }
  char* host_arena() override { return engine_->host_arena(); }
  absl::Status Upload() override { return engine_->Upload(); }
  absl::StatusOr<const float*> Run(const plan::Program& program, const TextPiece& piece) override {
    *tokens_ += static_cast<int64_t>(piece.tokens.size());
    return engine_->Run(program, piece);
  }
  absl::StatusOr<const float*> RunNext(absl::Span<const TextToken> tokens) override {
    *tokens_ += static_cast<int64_t>(tokens.size());
    return engine_->RunNext(tokens);
  }

 private:
  const std::unique_ptr<GenerationEngine> engine_;
  int64_t* const tokens_;
};

// A generator and how many tokens it has run.
struct Counted {
  explicit Counted(const v1::ModelSpec& model, bool scores = true) {
    GeneratorOptions options = {.scores = scores};
    options.engine =
        [this](const v1::ModelSpec& spec,
               const plan::PlanOptions& plan) -> absl::StatusOr<std::unique_ptr<GenerationEngine>> {
      auto engine = CpuGenerationEngine(spec, plan);
      EXPECT_TRUE(engine.ok()) << engine.status();
      return std::make_unique<Counting>(*std::move(engine), &tokens);
    };
    auto made = Generator::Create(model, options);
    EXPECT_TRUE(made.ok()) << made.status();
    generator = *std::move(made);
    for (const StateInterval& target : generator->LoadTargets()) {
      const std::vector<float> weights = Drawn(static_cast<size_t>(target.tensor), target.end);
      std::memcpy(target.data, weights.data(), weights.size() * sizeof(float));
    }
    EXPECT_EQ(generator->FinishLoad(), absl::OkStatus());
  }

  std::vector<TokenScore> Score(const std::vector<int32_t>& text, int64_t best,
                                size_t most = std::numeric_limits<size_t>::max()) {
    std::vector<TokenScore> scores;
    const auto keep = [&](const TokenScore& score) {
      scores.push_back(score);
      return scores.size() < most;
    };
    EXPECT_EQ(generator->Score(text, best, keep), absl::OkStatus());
    return scores;
  }
  std::vector<TokenScore> Generate(const std::vector<int32_t>& text, int64_t count) {
    std::vector<TokenScore> made;
    const auto keep = [&](const TokenScore& token) {
      made.push_back(token);
      return true;
    };
    EXPECT_EQ(generator->Generate(text, {.tokens = count, .best = 2}, keep), absl::OkStatus());
    return made;
  }
  // Tokens run since the last call.
  int64_t Ran() { return std::exchange(tokens, 0); }

  int64_t tokens = 0;
  std::unique_ptr<Generator> generator;
};

// `other`: another text from token `from` on.
std::vector<int32_t> TextOf(int64_t tokens, int64_t from = kWindow, int64_t other = 1) {
  std::vector<int32_t> text(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    text[i] = static_cast<int32_t>((i * i + 3 * i + (i < from ? 1 : 1 + other)) % kFew);
  }
  return text;
}

// log softmax in fp64, of each row of the reference's logits.
std::vector<std::vector<double>> ReferenceLogProbs(const v1::ModelSpec& model,
                                                   const std::vector<int32_t>& text) {
  const auto graph = models::BuildModel(model, {.mode = models::Mode::kGeneration,
                                                .sequence = static_cast<int64_t>(text.size()),
                                                .every_logits = true});
  EXPECT_TRUE(graph.ok()) << graph.status();
  graph::ReferenceInterpreter reference(*graph);
  for (size_t i = 0; i < graph->parameters.size(); ++i) {
    const graph::ValueId id = graph->parameters[i].value;
    const std::vector<float> weights = Drawn(i, graph::Elements(graph->values[id].shape));
    reference.values(id).assign(weights.begin(), weights.end());
  }
  reference.integers(graph->Input("tokens")) = text;
  reference.Run({});
  const std::vector<double>& logits = reference.values(graph->logits);
  std::vector<std::vector<double>> rows;
  for (size_t at = 0; at < logits.size(); at += kFew) {
    std::vector<double> row(logits.begin() + at, logits.begin() + at + kFew);
    double sum = 0;
    for (const double logit : row) sum += std::exp(logit);
    for (double& logit : row) logit -= std::log(sum);
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(Scores, AreTheReferences) {
  const std::vector<int32_t> text = TextOf(kWindow);
  for (const v1::ModelSpec& model : Models()) {
    const auto want = ReferenceLogProbs(model, text);
    const std::vector<TokenScore> got = Counted(model).Score(text, 3);
    ASSERT_EQ(got.size(), text.size() - 1);
    for (size_t i = 0; i < got.size(); ++i) {
      const std::vector<double>& row = want[i];
      EXPECT_EQ(got[i].token.token, text[i + 1]);
      EXPECT_NEAR(got[i].token.log_prob, row[text[i + 1]], 2e-5) << i;
      std::vector<double> sorted = row;
      std::sort(sorted.rbegin(), sorted.rend());
      ASSERT_EQ(got[i].best.size(), 3);
      for (size_t j = 0; j < 3; ++j) {
        EXPECT_NEAR(got[i].best[j].log_prob, sorted[j], 2e-5) << i << " " << j;
        EXPECT_NEAR(row[got[i].best[j].token], sorted[j], 2e-5) << i << " " << j;
      }
    }
  }
}

TEST(Scores, OfMadeTokensAreThoseOfTheWholeText) {
  for (const v1::ModelSpec& model : Models()) {
    std::vector<int32_t> text = TextOf(70);
    const std::vector<TokenScore> made = Counted(model).Generate(text, 20);
    for (const TokenScore& score : made) text.push_back(score.token.token);
    const std::vector<TokenScore> whole = Counted(model).Score(text, 2);
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_NEAR(made[i].token.log_prob, whole[69 + i].token.log_prob, 2e-5);
      EXPECT_NEAR(made[i].best[1].log_prob, whole[69 + i].best[1].log_prob, 2e-5);
    }
  }
}

TEST(Scores, AWholeChunkOfTheTextBeforeIsNotRunAgain) {
  Counted counted(Models()[0]);
  counted.Score(TextOf(140), 1);
  EXPECT_EQ(counted.Ran(), 139);
  counted.Score(TextOf(150), 1);  // 128 are kept
  EXPECT_EQ(counted.Ran(), 149 - 128);
  const auto other = counted.Score(TextOf(150, 128), 1);  // token 128 has another score: 64
  EXPECT_EQ(counted.Ran(), 149 - 64);
  EXPECT_EQ(other, Counted(Models()[0]).Score(TextOf(150, 128), 1));
  counted.Generate(TextOf(150, 128), 1);  // whose logits are those of its last token
  EXPECT_EQ(counted.Ran(), 150 - 128);
  counted.Score(TextOf(150, 128), 2);  // other figures
  EXPECT_EQ(counted.Ran(), 149);
  counted.Generate(TextOf(130, 3), 1);
  EXPECT_EQ(counted.Ran(), 130);
  counted.Score(TextOf(130, 3), 2);  // tokens that are kept have no scores
  EXPECT_EQ(counted.Ran(), 129);
}

// Whatever comes one after another, figures are those of a generator that has seen nothing else.
TEST(Scores, WhatIsKeptChangesNoBit) {
  for (const v1::ModelSpec& model : Models()) {
    Counted used(model);
    int64_t saved = 0;
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t length = i % 3 == 0 ? 150 - i % 7 : 60 + 11 * i % 90;
      const std::vector<int32_t> text = TextOf(length, 31 * i % 150, 1 + i % 2);
      Counted fresh(model);
      if (i % 5 == 2) {
        EXPECT_EQ(used.Generate(text, 4 + i), fresh.Generate(text, 4 + i)) << i;
      } else {
        const size_t most = i % 4 == 3 ? 70 : 1000;  // or it is ended early
        EXPECT_EQ(used.Score(text, i % 8 == 0, most), fresh.Score(text, i % 8 == 0, most)) << i;
      }
      saved += fresh.Ran() - used.Ran();
    }
    EXPECT_GT(saved, 256);  // of several chunks
  }
}

TEST(Scores, SaysWhatIsWrong) {
  Counted counted(Models()[0]);
  const auto go_on = [](const TokenScore&) { return true; };
  for (const std::vector<int32_t>& text :
       {std::vector<int32_t>{}, std::vector<int32_t>{1, kFew}, TextOf(kWindow + 1)}) {
    EXPECT_EQ(counted.generator->Score(text, 1, go_on).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(counted.Score({1}, 1).empty());
  Counted without(Models()[0], /*scores=*/false);
  EXPECT_EQ(without.generator->Score(TextOf(3), 1, go_on).code(),
            absl::StatusCode::kFailedPrecondition);
}

// In a row that is longer than vectors.
TEST(ScoresOf, WhatIsNotFinite) {
  for (const size_t place : {3, 150, 198}) {
    std::vector<float> logits(199, 1.0F);
    logits[place] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(ScoresOf(logits.data(), 199, {7}, 1)[0].token.log_prob)) << place;
    logits[place] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isnan(ScoresOf(logits.data(), 199, {7}, 1)[0].token.log_prob)) << place;
    logits[place] = -std::numeric_limits<float>::infinity();
    const auto scores = ScoresOf(logits.data(), 199, {static_cast<int32_t>(place)}, 1);
    EXPECT_EQ(scores[0].token.log_prob, -std::numeric_limits<double>::infinity()) << place;
    EXPECT_NEAR(scores[0].best[0].log_prob, -std::log(198), 1e-5) << place;
  }
}

TEST(ScoresOf, TellsTheLikeliestOfEachRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {0, 2,   2, 1,  //
                                     5, nan, 1, 0};
  const auto scores = ScoresOf(logits.data(), 4, {3, 2}, 3);
  const double sum = std::log(1 + 2 * std::exp(2.0) + std::exp(1.0));
  EXPECT_NEAR(scores[0].token.log_prob, 1 - sum, 1e-6);
  ASSERT_EQ(scores[0].best.size(), 3);
  EXPECT_EQ(scores[0].best[0].token, 1);
  EXPECT_EQ(scores[0].best[1].token, 2);
  EXPECT_EQ(scores[0].best[2], scores[0].token);
  EXPECT_TRUE(std::isnan(scores[1].token.log_prob));
  EXPECT_EQ(scores[1].best[0].token, 0);
  EXPECT_EQ(ScoresOf(logits.data(), 4, {3}, 9)[0].best.size(), 4);
  EXPECT_TRUE(ScoresOf(logits.data(), 4, {3}, 0)[0].best.empty());
}

}  // namespace
}  // namespace milepost::runtime
