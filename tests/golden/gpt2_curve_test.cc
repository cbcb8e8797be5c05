// Trains a tiny GPT-2 from the weights and on the tokens that make_gpt2_curve.py gave PyTorch, and
// compares 20 steps of losses, gradient norms and learning rates with what PyTorch got.
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class Gpt2Curve : public GoldenCurve {
 protected:
  void Expect(const char* file, int stage, int64_t micro) {
    Open(file);
    WriteTokens(golden_["model"]);
    ExpectTheCurve(Spec(Gpt2Of(golden_["model"]), stage, micro), golden_, "ln_");
  }
};

TEST_F(Gpt2Curve, WholeBatchAtOnce) { Expect("gpt2_curve.json", 0, 8); }

TEST_F(Gpt2Curve, AccumulatedOverMicroSteps) { Expect("gpt2_curve.json", 1, 2); }

TEST_F(Gpt2Curve, Sgd) { Expect("gpt2_sgd_curve.json", 0, 8); }

TEST_F(Gpt2Curve, Lamb) { Expect("gpt2_lamb_curve.json", 0, 8); }

TEST_F(Gpt2Curve, Muon) { Expect("gpt2_muon_curve.json", 1, 8); }

TEST_F(Gpt2Curve, AdamW8Bit) { Expect("gpt2_adamw_8bit_curve.json", 1, 4); }

TEST_F(Gpt2Curve, Adan) { Expect("gpt2_adan_curve.json", 0, 8); }
TEST_F(Gpt2Curve, Lion) { Expect("gpt2_lion_curve.json", 0, 8); }

}  // namespace
}  // namespace milepost
