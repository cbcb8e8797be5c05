#include <array>
#include <vector>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/dora/dora_cpu_kernel.h"
#include "engine/ops/dora/dora_cuda_kernel-inl.h"
#include "engine/ops/dora/dora_fixture.h"

namespace milepost::kernels::cuda {
namespace {

const auto run_dora = [](const auto& kernel) { return RunAnywhere(kernel); };

template <typename T>
void TestDoraNorms(int64_t out, int64_t in, int64_t rank, bool transposed) {
  SCOPED_TRACE(testing::Message() << out << "x" << in << " rank " << rank << " bytes " << sizeof(T)
                                  << " transposed " << transposed);
  const DoraWeights<T> weights(out, in, rank, transposed);
  std::vector<float> want(static_cast<size_t>(2 * out));
  kernels::DoraNorms(weights.Args(want.data()));
  HostArray<T> weight(weights.weight), up(weights.up);
  HostArray<float> products(weights.products), gram(weights.gram);
  HostArray<float> got(static_cast<size_t>(2 * out));
  DoraNormsArgs<T> args = weights.Args(got.data());
  args.weight = weight.data();
  args.up = up.data();
  args.products = products.data();
  args.gram = gram.data();
  const absl::Status ran = RunDoraNorms(args, run_dora);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectNear(got.values(), want, 2e-6, 0, "norms");
}

TEST(DoraKernels, NormsAreTheCpus) {
  for (const bool transposed : {false, true}) {
    for (const auto& [out, in, rank] :
         {std::array<int64_t, 3>{1, 1, 1}, {37, 130, 3}, {64, 64, 16}, {40, 264, 40}}) {
      TestDoraNorms<float>(out, in, rank, transposed);
      TestDoraNorms<bf16>(out, in, rank, transposed);
      TestDoraNorms<f16>(out, in, rank, transposed);
    }
  }
}

// `layer`, with everything in arrays that are checked.
template <typename T>
struct DoraArrays {
  explicit DoraArrays(const DoraLayer<T>& layer)
      : v(layer.v),
        dy(layer.dy),
        change(layer.change),
        bias(layer.bias),
        norms{HostArray<float>(layer.norms[0]), HostArray<float>(layer.norms[1])} {}

  template <typename Args>
  Args Of(Args args) {
    constexpr int64_t kFirst = DoraLayer<T>::kFirst, kThird = DoraLayer<T>::kThird;
    args.v = v.data();
    args.part[0].norms = norms[0].data();
    args.part[0].change = change.data();
    args.part[1].bias = bias.data() + kFirst;
    args.part[2].norms = norms[1].data();
    args.part[2].change = change.data() + kThird;
    args.part[2].bias = bias.data() + kThird;
    return args;
  }

  HostArray<T> v, dy, change, bias;
  HostArray<float> norms[2];
};

// A width of packs, and one that is none.
template <typename T>
void TestDora(int64_t rows, int64_t width) {
  SCOPED_TRACE(testing::Message() << rows << "x" << width << " bytes " << sizeof(T));
  const DoraLayer<T> layer(rows, width);
  std::vector<T> want(layer.v.size()), want_dv(layer.v.size());
  std::vector<float> want_change(layer.change.size(), 2), want_bias(layer.bias.size(), 3);
  AlignedBuffer space(DoraForwardWorkspaceBytes(width));
  AlignedBuffer cpu_space(kernels::DoraBackwardWorkspaceBytes(rows, width));
  kernels::DoraForward(layer.Forward(layer.v.data(), want.data()), space.data());

  DoraArrays<T> arrays(layer);
  HostArray<float> workspace(static_cast<size_t>(cuda::DoraBackwardWorkspaceBytes(rows, width) /
                                                 static_cast<int64_t>(sizeof(float))));
  HostArray<T> y(layer.v.size()), dv(layer.v.size());
  absl::Status ran =
      RunDoraForward(arrays.Of(layer.Forward(nullptr, y.data())), workspace.data(), run_dora);
  ASSERT_TRUE(ran.ok()) << ran;
  EXPECT_TRUE(SameBits(y.values(), want));

  HostArray<float> change(want_change), bias(want_bias);
  for (const bool adds : {true, false}) {
    kernels::DoraBackward(
        layer.Backward(layer.dy.data(), want_dv.data(), want_change.data(), want_bias.data(), adds),
        cpu_space.data());
    ran = RunDoraBackward(
        arrays.Of(layer.Backward(arrays.dy.data(), dv.data(), change.data(), bias.data(), adds)),
        workspace.data(), run_dora);
    ASSERT_TRUE(ran.ok()) << ran;
    EXPECT_TRUE(SameBits(dv.values(), want_dv));
    ExpectNear(change.values(), want_change, 1e-5, 1e-5, "change");
    ExpectNear(bias.values(), want_bias, 1e-5, 1e-5, "bias");
  }
}

TEST(DoraKernels, AreTheCpus) {
  for (const auto& [rows, width] :
       {std::array<int64_t, 2>{1, 35}, {70, 35}, {70, 40}, {300, 1064}}) {
    TestDora<float>(rows, width);
    TestDora<bf16>(rows, width);
    TestDora<f16>(rows, width);
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
