// Texts that are made side by side, against the same ones alone: to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/spec/validate.h"
#include "engine/kernels/cpu/random.h"
#include "engine/runtime/generation/generator.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 100;
constexpr int64_t kVocabulary = 37;

v1::ModelSpec Gpt2() {
  v1::ModelSpec model;
  v1::Gpt2Spec* gpt2 = model.mutable_gpt2();
  gpt2->set_layers(2);
  gpt2->set_width(32);
  gpt2->set_heads(4);
  gpt2->set_context(kContext);
  gpt2->set_vocabulary(kVocabulary);
  return model;
}

v1::ModelSpec Llama() {
  v1::JobSpec spec;
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_layers(2);
  llama->set_width(40);
  llama->set_heads(5);
  llama->set_kv_heads(1);
  llama->set_head_dim(8);
  llama->set_hidden(52);
  llama->set_context(kContext);
  llama->set_vocabulary(kVocabulary);
  llama->set_qk_norm(true);
  llama->set_qkv_bias(true);
  llama->mutable_window()->set_positions(9);
  llama->mutable_window()->set_full_every(2);
  NormalizeJobSpec(&spec);
  return spec.model();
}

// Which rows share an expert's products differs from run to run.
v1::ModelSpec Mixture() {
  v1::JobSpec spec;
  *spec.mutable_model() = Llama();
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_qkv_bias(false);
  llama->mutable_experts()->set_count(5);
  llama->mutable_experts()->set_per_token(2);
  llama->mutable_experts()->set_hidden(52);
  NormalizeJobSpec(&spec);
  return spec.model();
}

v1::ModelSpec Adapted() {
  v1::ModelSpec model = Llama();
  model.mutable_lora()->set_rank(3);
  model.mutable_lora()->set_dora(true);
  return model;
}

std::unique_ptr<Generator> Make(const v1::ModelSpec& model, const GeneratorOptions& options) {
  auto generator = Generator::Create(model, options);
  EXPECT_TRUE(generator.ok()) << generator.status();
  for (const StateInterval& target : (*generator)->LoadTargets()) {
    std::vector<float> weights(static_cast<size_t>(target.end));
    kernels::NormalInit(weights.data(), target.end, 0, 0.3F, 1,
                        static_cast<uint64_t>(target.tensor), 0);
    std::memcpy(target.data, weights.data(), weights.size() * sizeof(float));
  }
  EXPECT_TRUE((*generator)->FinishLoad().ok());
  return *std::move(generator);
}

struct Asked {
  std::vector<int32_t> prompt;
  GenerateOptions options;
};

std::vector<int32_t> PromptOf(int64_t tokens, int64_t kind) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>((i * i + (3 + kind) * i + kind) % kVocabulary);
  }
  return prompt;
}

// Short prompts and ones of several chunks; some fill the window more than once.
std::vector<Asked> ManyTexts() {
  std::vector<Asked> texts;
  for (int64_t i = 0; i < 11; ++i) {
    const int64_t lengths[] = {1, 70, 3, 99, 130, 64, 65};
    texts.push_back({PromptOf(lengths[i % 7], i),
                     {.tokens = 5 + i * 17 % 90,
                      .temperature = i % 3 == 0 ? 0.0 : 0.9,
                      .top_k = i % 2 == 0 ? 0 : 8,
                      .top_p = i % 4 == 0 ? 0.8 : 1.0,
                      .seed = static_cast<uint64_t>(i),
                      .best = 2}});
  }
  return texts;
}

std::vector<TokenScore> Alone(Generator& generator, const Asked& asked) {
  std::vector<TokenScore> made;
  EXPECT_EQ(generator.Generate(asked.prompt, asked.options,
                               [&](const TokenScore& token) {
                                 made.push_back(token);
                                 return true;
                               }),
            absl::OkStatus());
  return made;
}

std::vector<std::vector<TokenScore>> AllAlone(Generator& generator,
                                              const std::vector<Asked>& texts) {
  std::vector<std::vector<TokenScore>> made;
  for (const Asked& asked : texts) made.push_back(Alone(generator, asked));
  return made;
}

// Begins texts as soon as there is room for them.
class SideBySide {
 public:
  explicit SideBySide(Generator& generator, int64_t most) : generator_(generator), most_(most) {}

  std::vector<std::vector<TokenScore>> Run(const std::vector<Asked>& texts) {
    std::vector<std::vector<TokenScore>> made(texts.size());
    size_t next = 0;
    while (next < texts.size() || generator_.running() > 0) {
      if (next < texts.size() && generator_.running() < most_) {
        const auto slot = generator_.Start(texts[next].prompt, texts[next].options);
        EXPECT_TRUE(slot.ok()) << slot.status();
        of_slot_[*slot] = next++;
      }
      EXPECT_EQ(generator_.Step([&](int32_t slot, const TokenScore& token) {
        made[of_slot_.at(slot)].push_back(token);
        return true;
      }),
                absl::OkStatus());
      most_running_ = std::max<int64_t>(most_running_, generator_.running());
    }
    return made;
  }
  int64_t most_running() const { return most_running_; }

 private:
  Generator& generator_;
  const int64_t most_;
  std::map<int32_t, size_t> of_slot_;
  int64_t most_running_ = 0;
};

TEST(SideBySide, TextsAreToTheBitThoseThatAreMadeAlone) {
  const std::vector<Asked> texts = ManyTexts();
  for (const v1::ModelSpec& model : {Gpt2(), Llama(), Mixture(), Adapted()}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      SCOPED_TRACE(testing::Message() << model.ShortDebugString() << " " << precision);
      const auto want = AllAlone(*Make(model, {.precision = precision}), texts);
      auto generator = Make(model, {.precision = precision, .texts = 5});
      EXPECT_EQ(AllAlone(*generator, texts), want);
      SideBySide beside(*generator, 5);
      EXPECT_EQ(beside.Run(texts), want);
      EXPECT_EQ(beside.most_running(), 5);
      // In other places, beside others.
      std::vector<Asked> backwards(texts.rbegin(), texts.rend());
      std::vector<std::vector<TokenScore>> got = SideBySide(*generator, 3).Run(backwards);
      std::reverse(got.begin(), got.end());
      EXPECT_EQ(got, want);
    }
  }
}

// A prompt's products are oneDNN's, which may depend on the number of threads.
TEST(SideBySide, TheNumberOfTextsDoesNotMatterWithTwoThreads) {
  std::vector<Asked> texts = ManyTexts();
  texts.resize(6);
  const auto want = AllAlone(*Make(Llama(), {.threads = 2}), texts);
  for (const int64_t count : {3, 64}) {
    auto generator = Make(Llama(), {.threads = 2, .texts = count});
    EXPECT_EQ(SideBySide(*generator, count).Run(texts), want) << count;
  }
}

// More texts than tokens in the window of each.
TEST(SideBySide, WindowsMayBeShort) {
  std::vector<Asked> texts = ManyTexts();
  texts.resize(6);
  for (const int64_t window : {1, 3}) {
    const auto want = AllAlone(*Make(Gpt2(), {.window = window}), texts);
    auto generator = Make(Gpt2(), {.window = window, .texts = 5});
    EXPECT_EQ(SideBySide(*generator, 5).Run(texts), want) << window;
  }
}

TEST(SideBySide, TextsAreScoredBesideThoseThatAreMade) {
  const GeneratorOptions options = {.scores = true, .texts = 3};
  const std::vector<int32_t> long_text = PromptOf(100, 1), short_text = PromptOf(2, 2);
  const Asked asked = {PromptOf(5, 3), {.tokens = 30, .temperature = 1, .seed = 9, .best = 1}};
  auto alone = Make(Gpt2(), {.scores = true});
  std::vector<std::vector<TokenScore>> want(3), got(3);
  const auto keep = [](std::vector<TokenScore>* to) {
    return [to](const TokenScore& score) {
      to->push_back(score);
      return true;
    };
  };
  ASSERT_EQ(alone->Score(long_text, 2, keep(&want[0])), absl::OkStatus());
  want[1] = Alone(*alone, asked);
  ASSERT_EQ(alone->Score(short_text, 0, keep(&want[2])), absl::OkStatus());
  auto generator = Make(Gpt2(), options);
  for (int repeat = 0; repeat < 2; ++repeat) {  // then with what was kept
    std::vector<int32_t> slots = {*generator->StartScore(long_text, 2),
                                  *generator->Start(asked.prompt, asked.options),
                                  *generator->StartScore(short_text, 0)};
    got.assign(3, {});
    while (generator->running() > 0) {
      ASSERT_EQ(generator->Step([&](int32_t slot, const TokenScore& score) {
        got[std::find(slots.begin(), slots.end(), slot) - slots.begin()].push_back(score);
        return true;
      }),
                absl::OkStatus());
    }
    EXPECT_EQ(got, want);
  }
}

// A text ends where it is told to, or where nobody wants more of it; the others do not notice.
TEST(SideBySide, ATextEndsAndAnotherTakesItsPlace) {
  auto generator = Make(Llama(), {.texts = 2});
  const Asked asked = {PromptOf(80, 1), {.tokens = 60, .temperature = 0, .best = 1}};
  const std::vector<TokenScore> want = Alone(*generator, asked);
  const int32_t stays = *generator->Start(asked.prompt, asked.options);
  const int32_t leaves = *generator->Start(PromptOf(3, 2), {.tokens = 1000});
  EXPECT_EQ(generator->Start(PromptOf(3, 2), {}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(generator->Generate(PromptOf(3, 2), {}, [](const TokenScore&) { return true; }).code(),
            absl::StatusCode::kFailedPrecondition);
  std::vector<TokenScore> made;
  std::map<int32_t, int> others;
  const auto step = [&](int most) {
    EXPECT_EQ(generator->Step([&](int32_t slot, const TokenScore& token) {
      if (slot != stays) return ++others[slot] < most;
      made.push_back(token);
      return true;
    }),
              absl::OkStatus());
  };
  while (generator->Runs(leaves)) step(7);
  EXPECT_EQ(others[leaves], 7);
  ASSERT_TRUE(generator->Runs(stays));
  const int32_t again = *generator->Start(PromptOf(90, 3), {.tokens = 1000});
  EXPECT_EQ(again, leaves);
  step(1000);
  generator->End(again);  // in the middle of its prompt
  EXPECT_FALSE(generator->Runs(again));
  while (generator->running() > 0) step(0);
  EXPECT_EQ(made, want);
}

// What a text has kept of its keys and values is used by the one that begins alike, wherever it was
// made: of 130 tokens only those behind the last whole chunk are run again.
TEST(SideBySide, ATextGoesWhereMostOfItIsKept) {
  v1::ModelSpec model = Gpt2();
  model.mutable_gpt2()->set_context(300);
  auto generator = Make(model, {.texts = 3});
  std::vector<Asked> texts;
  for (int64_t kind : {1, 2, 3}) texts.push_back({PromptOf(140, kind), {.tokens = 2}});
  std::map<int32_t, int> tokens;
  std::vector<int32_t> slots;
  for (const Asked& asked : texts) slots.push_back(*generator->Start(asked.prompt, asked.options));
  EXPECT_EQ(slots, (std::vector<int32_t>{0, 1, 2}));
  const auto emit = [&](int32_t, const TokenScore&) { return true; };
  const auto steps = [&] {
    int count = 0;
    for (; generator->running() > 0; ++count) EXPECT_EQ(generator->Step(emit), absl::OkStatus());
    return count;
  };
  EXPECT_GE(steps(), 9);  // three chunks each
  for (const int32_t slot : {1, 0, 2}) {
    std::vector<int32_t> prompt = texts[static_cast<size_t>(slot)].prompt;
    prompt.resize(135);
    EXPECT_EQ(*generator->Start(prompt, {.tokens = 1}), slot);
    EXPECT_EQ(steps(), 1);  // one chunk
  }
  // With nothing of it kept: the one that has been free for the longest.
  EXPECT_EQ(*generator->Start(PromptOf(5, 9), {.tokens = 1}), 1);
}

// A beginning that all texts share does not make them drive each other out.
TEST(SideBySide, ATextThatSharesLittleLeavesALongOneWhereItIs) {
  v1::ModelSpec model = Gpt2();
  model.mutable_gpt2()->set_context(600);
  auto generator = Make(model, {.texts = 3});
  const auto emit = [&](int32_t, const TokenScore&) { return true; };
  const auto make = [&](const std::vector<int32_t>& prompt) {
    const int32_t slot = *generator->Start(prompt, {.tokens = 1});
    while (generator->running() > 0) EXPECT_EQ(generator->Step(emit), absl::OkStatus());
    return slot;
  };
  const auto conversation = [&](int64_t kind, size_t length) {
    std::vector<int32_t> prompt = PromptOf(64, 1);
    const std::vector<int32_t> own = PromptOf(static_cast<int64_t>(length) - 64, kind);
    prompt.insert(prompt.end(), own.begin(), own.end());
    return prompt;
  };
  EXPECT_EQ(make(conversation(2, 400)), 0);
  EXPECT_EQ(make(conversation(3, 400)), 1);
  EXPECT_EQ(make(conversation(4, 400)), 2);
  for (const int turn : {1, 2}) {  // each goes on in its own place
    for (const int64_t kind : {2, 3, 4})
      EXPECT_EQ(make(conversation(kind, 400 + turn * 70)), kind - 2);
  }
}

// A prompt of many chunks does not hold up the others.
TEST(SideBySide, TextsGoOnWhileAPromptIsRead) {
  v1::ModelSpec model = Gpt2();
  model.mutable_gpt2()->set_context(1000);
  auto generator = Make(model, {.texts = 3});
  int first = 0;
  const int32_t writes = *generator->Start({1, 2}, {.tokens = 500});
  const auto emit = [&](int32_t slot, const TokenScore&) {
    first += slot == writes ? 1 : 0;
    return true;
  };
  ASSERT_EQ(generator->Step(emit), absl::OkStatus());
  first = 0;
  // Two prompts of ten chunks, in turns.
  ASSERT_TRUE(generator->Start(PromptOf(640, 1), {.tokens = 1}).ok());
  ASSERT_TRUE(generator->Start(PromptOf(640, 2), {.tokens = 1}).ok());
  int steps = 0;
  for (; generator->running() > 1; ++steps) ASSERT_EQ(generator->Step(emit), absl::OkStatus());
  EXPECT_EQ(steps, 20);
  EXPECT_EQ(first, 20);
}

TEST(SideBySide, EachTextTakesTheMemoryOfItsOwnTokens) {
  v1::ModelSpec model = Gpt2();
  model.mutable_gpt2()->set_context(1 << 16);
  const auto bytes = [&](int64_t texts, int64_t window) {
    auto generator = Generator::Create(model, {.window = window, .texts = texts});
    EXPECT_TRUE(generator.ok()) << generator.status();
    return (*generator)->plan().arena_bytes;
  };
  constexpr int64_t kBytesPerToken = 2 * 2 * 32 * 4;  // layers, keys and values, width
  for (const int64_t texts : {1, 4, 64}) {
    EXPECT_EQ(bytes(texts, 4096) - bytes(texts, 1024), texts * 3072 * kBytesPerToken);
  }
  for (const int64_t texts : {0, 65}) {
    EXPECT_THAT(Generator::Create(model, {.texts = texts}).status().message(),
                HasSubstr("1 to 64"));
  }
}

}  // namespace
}  // namespace milepost::runtime
