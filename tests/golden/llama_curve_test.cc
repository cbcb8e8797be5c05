// Trains tiny Llamas from the weights and on the tokens that make_llama_curve.py gave Hugging
// Face's transformers, and compares 20 steps of losses, gradient norms and learning rates.
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class LlamaCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("llama_curve.json"); }

  void Expect(const char* name, int stage, int64_t micro) {
    const json golden = golden_["cases"][name];
    golden_["train"].update(golden.value("train", json::object()));
    WriteTokens(golden["model"]);
    const char* norms_about_one = golden["model"].value("norm_offset", false) ? "-" : "norm";
    ExpectTheCurve(Spec(LlamaOf(golden["model"]), stage, micro), golden, norms_about_one);
  }
};

TEST_F(LlamaCurve, GroupedQueriesAndScaledRotations) { Expect("llama", 0, 8); }

TEST_F(LlamaCurve, AccumulatedOverMicroSteps) { Expect("llama", 1, 2); }

TEST_F(LlamaCurve, TiedHeadAndOneHeadOfKeys) { Expect("llama-tied", 0, 4); }

TEST_F(LlamaCurve, Qwen2Biases) { Expect("qwen2", 1, 8); }

TEST_F(LlamaCurve, Qwen3NormsOfQueriesAndKeys) { Expect("qwen3", 3, 4); }

TEST_F(LlamaCurve, MistralsWindow) { Expect("mistral", 1, 4); }

TEST_F(LlamaCurve, Gemma) { Expect("gemma", 0, 8); }

TEST_F(LlamaCurve, Gemma3sLayersOfTwoKinds) { Expect("gemma3", 3, 4); }

TEST_F(LlamaCurve, Olmo2sNorms) { Expect("olmo2", 1, 4); }

TEST_F(LlamaCurve, Olmo3sLayersOfTwoKinds) { Expect("olmo3", 3, 4); }

// Each micro-batch would have a balance of its own: where it is trained there is one.
TEST_F(LlamaCurve, MixtralsExperts) { Expect("mixtral", 1, 8); }

TEST_F(LlamaCurve, Qwen3sExperts) { Expect("qwen3_moe", 3, 8); }

TEST_F(LlamaCurve, Qwen3sExpertsWithoutTheLossOfTheirBalance) {
  Expect("qwen3_moe-normalized", 2, 4);
}

TEST_F(LlamaCurve, GatedByGelu) { Expect("geglu", 2, 4); }

TEST_F(LlamaCurve, EveryOptimizer) {
  for (const char* optimizer : {"sgd", "lion", "lamb", "muon", "adamw_8bit"}) {
    SCOPED_TRACE(optimizer);
    Open(absl::StrCat("llama_", optimizer, "_curve.json"));
    Expect("llama", 1, 8);
  }
}

}  // namespace
}  // namespace milepost
