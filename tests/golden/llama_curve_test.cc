// Trains tiny Llamas from the weights and on the tokens that make_llama_curve.py gave Hugging
// Face's transformers, and compares 20 steps of losses, gradient norms and learning rates.
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class LlamaCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("llama_curve.json"); }

  static v1::ModelSpec Model(const json& golden) {
    v1::ModelSpec model;
    v1::LlamaSpec& llama = *model.mutable_llama();
    llama.set_layers(golden["layers"]);
    llama.set_width(golden["width"]);
    llama.set_heads(golden["heads"]);
    llama.set_kv_heads(golden["kv_heads"]);
    llama.set_head_dim(golden["head_dim"]);
    llama.set_hidden(golden["hidden"]);
    llama.set_context(golden["context"]);
    llama.set_vocabulary(golden["vocabulary"]);
    llama.set_rope_theta(golden["rope_theta"]);
    llama.set_norm_epsilon(golden["norm_epsilon"]);
    llama.set_tied(golden["tied"]);
    llama.set_qkv_bias(golden["qkv_bias"]);
    llama.set_qk_norm(golden.value("qk_norm", false));
    if (golden.value("activation", "swiglu") == "geglu") {
      llama.set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
    }
    if (!golden.contains("rope_scaling")) return model;
    const json& scaling = golden["rope_scaling"];
    llama.mutable_rope_scaling()->set_factor(scaling["factor"]);
    llama.mutable_rope_scaling()->set_low_freq_factor(scaling["low_freq_factor"]);
    llama.mutable_rope_scaling()->set_high_freq_factor(scaling["high_freq_factor"]);
    llama.mutable_rope_scaling()->set_original_context(scaling["original_context"]);
    return model;
  }

  void Expect(const char* name, int stage, int64_t micro) {
    const json golden = golden_["cases"][name];
    golden_["train"].update(golden.value("train", json::object()));
    WriteTokens(golden["model"]);
    ExpectTheCurve(Spec(Model(golden["model"]), stage, micro), golden, "norm");
  }
};

TEST_F(LlamaCurve, GroupedQueriesAndScaledRotations) { Expect("llama", 0, 8); }

TEST_F(LlamaCurve, AccumulatedOverMicroSteps) { Expect("llama", 1, 2); }

TEST_F(LlamaCurve, TiedHeadAndOneHeadOfKeys) { Expect("llama-tied", 0, 4); }

TEST_F(LlamaCurve, Qwen2Biases) { Expect("qwen2", 1, 8); }

TEST_F(LlamaCurve, Qwen3NormsOfQueriesAndKeys) { Expect("qwen3", 3, 4); }

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
