// Muon's iterations in bf16 against torch.optim.Muon's (make_muon_update.py).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/optim/muon/muon_cpu_kernel.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

using kernels::MuonMatrix;

class MuonUpdate : public GoldenCurve {
 protected:
  static std::vector<float> Orthogonalized(const nlohmann::json& test, DType dtype) {
    const MuonMatrix matrix = {test["rows"], test["cols"], dtype};
    std::vector<float> x(static_cast<size_t>(matrix.elements()));
    for (size_t i = 0; i < x.size(); ++i) x[i] = Uniform(test["number"], static_cast<int64_t>(i));
    kernels::MatmulCache cache;
    size_t scratch = 0;
    for (const kernels::MatmulSpec& spec : kernels::OrthogonalizeProducts(matrix)) {
      scratch = std::max(scratch, *cache.WorkspaceBytes(spec));
    }
    kernels::AlignedBuffer workspace(
        static_cast<size_t>(kernels::OrthogonalizeScratch(matrix).bytes) + scratch);
    EXPECT_EQ(kernels::Orthogonalize(matrix, test["steps"], cache, x.data(),
                                     static_cast<char*>(workspace.data())),
              absl::OkStatus());
    return x;
  }

  // Of x from what torch made, relative to it.
  static double Distance(const std::vector<float>& x, const std::string& bits) {
    double differences = 0, squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto stored = static_cast<uint16_t>(std::stoul(bits.substr(4 * i, 4), nullptr, 16));
      const double want = ToFloat(bf16{stored});
      differences += std::pow(x[i] - want, 2);
      squares += want * want;
    }
    return std::sqrt(differences / squares);
  }
};

// Sums of another order are now and then rounded to the other neighbour, which each iteration
// enlarges. The exact rule is farther off.
TEST_F(MuonUpdate, InBf16IsTorchs) {
  Open("muon_update.json");
  ASSERT_EQ(golden_["cases"].size(), 12u);
  for (const nlohmann::json& test : golden_["cases"]) {
    const int steps = test["steps"];
    SCOPED_TRACE(testing::Message() << test["rows"] << " x " << test["cols"] << ", " << steps);
    const double bound = steps == 1 ? 2e-4 : steps == 2 ? 1e-3 : 8e-3;
    EXPECT_LT(Distance(Orthogonalized(test, DType::kBf16), test["bits"]), bound);
    EXPECT_GT(Distance(Orthogonalized(test, DType::kF32), test["bits"]), 1.2 * bound);
  }
}

}  // namespace
}  // namespace milepost
