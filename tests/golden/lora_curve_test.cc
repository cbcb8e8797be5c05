// Trains adapters of tiny models from the weights and on the tokens that make_lora_curve.py gave
// PEFT, also on preferences; and whole models on these. Compares 20 steps of losses, gradient norms
// and learning rates, and the trained weights then.
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class LoraCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("lora_curve.json"); }

  static v1::ModelSpec Model(const json& golden) {
    const json& model = golden["model"];
    v1::ModelSpec spec = model.contains("kv_heads") ? LlamaOf(model) : Gpt2Of(model);
    if (golden["lora"].is_null()) return spec;
    v1::LoraSpec& lora = *spec.mutable_lora();
    lora.set_rank(golden["lora"]["rank"]);
    lora.set_alpha(golden["lora"]["alpha"]);
    lora.set_rank_stabilized(golden["lora"]["rank_stabilized"]);
    for (const json& target : golden["lora"]["targets"]) lora.add_targets(target);
    for (const json& name : golden["lora"]["also_train"]) lora.add_also_train(name);
    lora.set_dora(golden["lora"].value("dora", false));
    if (golden["quantize_base"] == "nf4") lora.set_quantize_base(v1::BASE_QUANTIZATION_NF4);
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

TEST_F(LoraCurve, WithMagnitudes) { Expect("dora", "norm", 2, 4); }

TEST_F(LoraCurve, WithMagnitudesOfTurnedWeights) { Expect("dora_gpt2", "ln_", 3, 8); }

TEST_F(LoraCurve, OfALlamaIn4Bits) { Expect("nf4", "norm", 3, 4); }

TEST_F(LoraCurve, Preferences) { Expect("dpo", "norm", 1, 4); }

TEST_F(LoraCurve, PreferencesOfAWholeModel) { Expect("dpo_whole", "norm", 3, 4); }

TEST_F(LoraCurve, PreferencesOfAWholeGpt2) { Expect("dpo_whole_gpt2", "ln_", 1, 8); }

}  // namespace
}  // namespace milepost
