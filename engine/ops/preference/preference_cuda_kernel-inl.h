// The kernel behind preference_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/ops/classifier/classifier_cuda_kernel-inl.h"
#include "engine/ops/preference/preference_cuda_kernel.h"

namespace milepost::kernels::cuda {

// A block has a sample: all its threads add up a pair's rows, pair by pair.
struct PreferenceKernel {
  static constexpr int kThreads = 256;
  PreferenceArgs a;
  PreferenceOutputs out;
  RowLoss* losses;  // by sample

  Grid grid() const { return {.x = a.batch}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t base = c.block() * a.sequence;
    if (out.gradients != nullptr) {
      for (int64_t row = c.thread(); row < a.sequence; row += kThreads) {
        c.Store(out.gradients + base + row, 0.0f);
      }
      c.Sync();  // those of pairs are other threads'
    }
    RowLoss total;
    for (int64_t first = 0; first < a.sequence; ++first) {
      if (c.Load(a.pairs + base + first) < 0) continue;  // for all threads alike
      double difference = 0;
      ForPair(c, base, first, [&](int64_t row, float sign) {
        difference +=
            sign * (static_cast<double>(c.Load(a.log_probs + row)) - c.Load(a.reference + row));
      });
      const double m = a.beta * BlockSum<kThreads, 0>(c, difference);
      total.loss += (1 - a.label_smoothing) * Softplus(m) + a.label_smoothing * Softplus(-m);
      total.target += 1;
      total.correct += m > 0 ? 1.0f : 0.0f;
      if (out.gradients == nullptr) continue;
      const double slope =
          a.beta * (a.label_smoothing * Sigmoid(m) - (1 - a.label_smoothing) * Sigmoid(-m));
      const auto scaled = static_cast<float>(slope * c.Load(out.scale));
      ForPair(c, base, first,
              [&](int64_t row, float sign) { c.Store(out.gradients + row, sign * scaled); });
    }
    if (c.thread() == 0) c.Store(losses + c.block(), total);
  }

 private:
  MP_DEVICE static double Softplus(double m) {
    return log1p(exp(m < 0 ? m : -m)) + (m < 0 ? -m : 0.0);
  }
  MP_DEVICE static double Sigmoid(double m) { return 1 / (1 + exp(-m)); }

  // body(row, sign) for this thread's rows of the pair: 1 in its first document, -1 in the second.
  template <typename Context, typename Body>
  MP_DEVICE void ForPair(Context& c, int64_t base, int64_t first, const Body& body) const {
    const int32_t document = c.Load(a.documents + base + first);
    for (int64_t row = first + c.thread(); row < a.sequence; row += kThreads) {
      const int32_t further = c.Load(a.documents + base + row) - document;
      if (further > 1) return;
      body(base + row, further == 0 ? 1.0f : -1.0f);
    }
  }
};

// run(kernel) launches it. `losses`: [batch].
template <typename Run>
absl::Status RunPreference(const PreferenceArgs& args, const PreferenceOutputs& outputs,
                           RowLoss* losses, const Run& run) {
  MP_RETURN_IF_ERROR(run(PreferenceKernel{args, outputs, losses}));
  return run(LossSumKernel{losses, args.batch, outputs.gradients == nullptr, outputs.accumulate,
                           outputs.sums});
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CUDA_KERNEL_INL_H_
