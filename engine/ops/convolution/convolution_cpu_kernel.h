// Two-dimensional convolutions through oneDNN. Activations are [batch, height, width, channels],
// weights [out, in, kernel, kernel] (torch's), both dense; square kernels, one stride and one
// padding in both directions; no bias.
//
//   ConvolutionCache cache;
//   ConvolutionSpec spec{.batch = 8, .height = 56, .width = 56, .in = 64, .out = 64, .kernel = 3};
//   MP_ASSIGN_OR_RETURN(size_t bytes, cache.WorkspaceBytes(spec, ConvolutionPass::kForward));
//   MP_RETURN_IF_ERROR(cache.Forward(spec, x, w, y, workspace));
//
// oneDNN wants weights in layouts of its own. They are made in the workspace at each call, which
// costs a pass over the weights: about a fortieth of a training step of 32 images, and every other
// part of the engine sees torch's layout.
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/cpu_features.h"
#include "engine/ops/convolution/convolution_contract.h"

namespace milepost::kernels {

// Primitives, created on first use of a (spec, pass) and kept; a few milliseconds each, so ask for
// WorkspaceBytes before the first step. Not thread-safe: one per executor. A call uses the OpenMP
// threads of the caller, blocks until its result is written and allocates nothing. Sizes hold for
// the thread count in force when they were asked for. `workspace`: 64-byte aligned; no pointer may
// alias a result. Errors: InvalidArgument for a bad spec, Unimplemented where this CPU or oneDNN
// cannot do it.
class ConvolutionCache {
 public:
  // `bf16_products`: bf16 goes to oneDNN; false: by way of fp32 (convolution_widened_cpu_kernel.h).
  explicit ConvolutionCache(bool bf16_products = HasBf16Products());
  ~ConvolutionCache();
  ConvolutionCache(const ConvolutionCache&) = delete;
  ConvolutionCache& operator=(const ConvolutionCache&) = delete;

  absl::StatusOr<size_t> WorkspaceBytes(const ConvolutionSpec& spec, ConvolutionPass pass);

  absl::Status Forward(const ConvolutionSpec& spec, const void* x, const void* w, void* y,
                       void* workspace);
  absl::Status BackwardData(const ConvolutionSpec& spec, const void* dy, const void* w, void* dx,
                            void* workspace);
  // `accumulate`: dw +=.
  absl::Status BackwardWeights(const ConvolutionSpec& spec, const void* x, const void* dy,
                               bool accumulate, float* dw, void* workspace);

 private:
  struct Entry;
  struct Impl;
  absl::StatusOr<Entry*> Find(const ConvolutionSpec& spec, ConvolutionPass pass);
  bool Widens(const ConvolutionSpec& spec) const {
    return spec.type == DType::kBf16 && !bf16_products_;
  }
  const bool bf16_products_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_CPU_KERNEL_H_
