#include <vector>

#include "engine/dtype/nf4.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/ops/nf4/nf4_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
void TestUnpack(int64_t elements) {
  const std::vector<float> values = RandomVector<float>(elements, 21);
  const auto read = [&](int64_t begin, int64_t end, float* at) {
    std::copy(values.begin() + begin, values.begin() + end, at);
    return absl::OkStatus();
  };
  std::vector<uint8_t> packed(static_cast<size_t>(Nf4Bytes(elements)));
  ASSERT_EQ(PackNf4(elements, 0, Nf4Bytes(elements), read, packed.data()), absl::OkStatus());
  std::vector<T> want(static_cast<size_t>(elements));
  kernels::UnpackNf4(packed.data(), elements, want.data());
  HostArray<uint8_t> codes(packed);
  HostArray<T> got(std::vector<T>(static_cast<size_t>(elements)));
  RunKernel(UnpackNf4Kernel<T>{codes.data(), elements, got.data()});
  EXPECT_TRUE(SameBits(got.values(), want)) << elements;
}

TEST(Nf4Kernels, UnpackAsTheCpu) {
  for (const int64_t elements : {int64_t{64}, int64_t{64 * 33}, int64_t{5000}, int64_t{7}}) {
    TestUnpack<float>(elements);
    TestUnpack<bf16>(elements);
    TestUnpack<f16>(elements);
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
