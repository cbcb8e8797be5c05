#include "engine/ops/preference/preference_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/preference/preference_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int64_t kBatch = 3;
constexpr int64_t kSequence = 700;  // more than a block's threads

// Documents of many lengths; of each sample the second pair is none, and what is left over at the
// end neither.
struct PreferencePairs {
  PreferencePairs() {
    for (int64_t sample = 0; sample < kBatch; ++sample) {
      int32_t document = 0;
      int64_t left = 5 + sample;
      for (int64_t row = 0; row < kSequence; ++row) {
        const bool begins = row == 0 || left == 0;
        if (begins && row > 0) {
          ++document;
          left = (document * 97 + sample * 31) % 260 + 1;
        }
        --left;
        documents.push_back(document);
        pairs.push_back(begins && document % 2 == 0 && document != 2 && document < 6 ? 1 : -1);
      }
    }
    log_probs = RandomVector<float>(kBatch * kSequence, 1);
    reference = RandomVector<float>(kBatch * kSequence, 2);
  }
  std::vector<int32_t> documents, pairs;
  std::vector<float> log_probs, reference;
};

TEST(PreferenceKernels, AreTheCpus) {
  const PreferencePairs of;
  for (const double smoothing : {0.0, 0.2}) {
    for (const bool gradient : {false, true}) {
      HostArray<float> log_probs(of.log_probs), reference(of.reference);
      HostArray<int32_t> documents(of.documents), pairs(of.pairs);
      HostArray<float> scale(std::vector<float>{0.25F}), got(kBatch * kSequence);
      HostArray<double> sums(std::vector<double>{1, 2, 3});
      HostArray<RowLoss> losses(kBatch);
      const PreferenceArgs args = {log_probs.data(),
                                   reference.data(),
                                   documents.data(),
                                   pairs.data(),
                                   kBatch,
                                   kSequence,
                                   0.7,
                                   smoothing};
      const PreferenceOutputs outputs = {.sums = sums.data(),
                                         .accumulate = true,
                                         .scale = scale.data(),
                                         .gradients = gradient ? got.data() : nullptr};
      const absl::Status ran = RunPreference(
          args, outputs, losses.data(), [](const auto& kernel) { return RunAnywhere(kernel, 4); });
      ASSERT_TRUE(ran.ok()) << ran;
      LossSum want;
      std::vector<float> gradients(kBatch * kSequence, 5.0F);
      const PreferenceArgs on_cpu = {of.log_probs.data(),
                                     of.reference.data(),
                                     of.documents.data(),
                                     of.pairs.data(),
                                     kBatch,
                                     kSequence,
                                     0.7,
                                     smoothing};
      kernels::PreferenceLoss(on_cpu, 0.25F, gradient ? gradients.data() : nullptr, &want);
      EXPECT_GE(want.targets, 4);
      EXPECT_NEAR(sums.values()[0], 1 + want.loss, 1e-9 * want.loss);
      EXPECT_EQ(sums.values()[1], 2 + static_cast<double>(want.targets));
      EXPECT_EQ(sums.values()[2], 3 + (gradient ? 0 : static_cast<double>(want.correct)));
      if (gradient) ExpectNear(got.values(), gradients, 1e-6, 1e-12, "gradients");
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
