// Trains adapters of tiny models from the weights and on the tokens that make_lora_curve.py gave
// PEFT, also on preferences. Compares 20 steps of losses, gradient norms and learning rates, and
// the adapters then.
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class LoraCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("lora_curve.json"); }

  static void SetLlama(const json& golden, v1::LlamaSpec& llama) {
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
    if (!golden.contains("rope_scaling")) return;
    const json& scaling = golden["rope_scaling"];
    llama.mutable_rope_scaling()->set_factor(scaling["factor"]);
    llama.mutable_rope_scaling()->set_low_freq_factor(scaling["low_freq_factor"]);
    llama.mutable_rope_scaling()->set_high_freq_factor(scaling["high_freq_factor"]);
    llama.mutable_rope_scaling()->set_original_context(scaling["original_context"]);
  }

  static v1::ModelSpec Model(const json& golden) {
    v1::ModelSpec spec;
    const json& model = golden["model"];
    if (model.contains("kv_heads")) {
      SetLlama(model, *spec.mutable_llama());
    } else {
      v1::Gpt2Spec& gpt2 = *spec.mutable_gpt2();
      gpt2.set_layers(model["layers"]);
      gpt2.set_width(model["width"]);
      gpt2.set_heads(model["heads"]);
      gpt2.set_context(model["context"]);
      gpt2.set_vocabulary(model["vocabulary"]);
    }
    v1::LoraSpec& lora = *spec.mutable_lora();
    lora.set_rank(golden["lora"]["rank"]);
    lora.set_alpha(golden["lora"]["alpha"]);
    lora.set_rank_stabilized(golden["lora"]["rank_stabilized"]);
    for (const json& target : golden["lora"]["targets"]) lora.add_targets(target);
    for (const json& name : golden["lora"]["also_train"]) lora.add_also_train(name);
    return spec;
  }

  void Expect(const char* name, const char* norm, int stage, int64_t micro) {
    const json golden = golden_["cases"][name];
    const bool pairs = !golden["dpo"].is_null();
    WriteTokens(golden["model"], pairs ? golden["dpo"]["separator"].get<int64_t>() : -1);
    v1::JobSpec spec;
    if (pairs) {
      spec.mutable_train()->mutable_dpo()->set_beta(golden["dpo"]["beta"]);
      spec.mutable_train()->mutable_dpo()->set_label_smoothing(golden["dpo"]["label_smoothing"]);
      spec.mutable_data()->set_document_separator(golden["dpo"]["separator"]);
    }
    ExpectTheCurve(Spec(Model(golden), stage, micro, spec), golden, norm);
  }
};

TEST_F(LoraCurve, EveryLayerOfALlama) { Expect("llama", "norm", 0, 8); }

TEST_F(LoraCurve, RankStabilizedWithATrainedNorm) { Expect("qwen2", "norm", 3, 4); }

TEST_F(LoraCurve, Gpt2sTurnedWeights) { Expect("gpt2", "ln_", 1, 2); }

TEST_F(LoraCurve, Preferences) { Expect("dpo", "norm", 1, 4); }

}  // namespace
}  // namespace milepost
