// Weights in 4 bits against bitsandbytes' (make_nf4.py): codes and scales to the bit.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/dtype/nf4.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

using Nf4 = GoldenCurve;

TEST_F(Nf4, IsPackedAsBitsandbytesDoes) {
  Open("nf4.json");
  for (const json& tensor : golden_["tensors"]) {
    const int64_t elements = tensor["elements"];
    const auto read = [&](int64_t begin, int64_t end, float* at) {
      for (int64_t e = begin; e < end; ++e) {
        const bool zero = e >= tensor["zeros"][0] && e < tensor["zeros"][1];
        at[e - begin] = zero ? 0 : Uniform(static_cast<int>(elements), e);
      }
      return absl::OkStatus();
    };
    std::vector<uint8_t> packed(static_cast<size_t>(Nf4Bytes(elements)));
    ASSERT_EQ(kernels::PackNf4(elements, 0, Nf4Bytes(elements), read, packed.data()),
              absl::OkStatus());
    const std::string codes = tensor["codes"];
    const std::string bytes(packed.begin(), packed.begin() + elements / 2);
    EXPECT_EQ(absl::BytesToHexString(bytes), codes);
    std::vector<float> scales(static_cast<size_t>(Nf4Blocks(elements)));
    std::memcpy(scales.data(), packed.data() + Nf4ScalesAt(elements), scales.size() * 4);
    EXPECT_EQ(scales, tensor["scales"].get<std::vector<float>>());
  }
}

}  // namespace
}  // namespace milepost
