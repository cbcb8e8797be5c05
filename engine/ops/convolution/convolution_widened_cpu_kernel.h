// A bf16 convolution as fp32 convolutions of some images at a time, for CPUs that have no
// instructions for bf16: weights and the pieces' activations are widened into scratch, results are
// rounded once. Scratch: the weights and, of the images, at most 8 MiB or one image. Internal to
// convolution.cc.
#ifndef MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_WIDENED_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_WIDENED_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/ops/convolution/convolution_cpu_kernel.h"

namespace milepost::kernels {

class WidenedConvolution {
 public:
  // `spec`: of type kBf16, checked. `cache` makes the fp32 convolutions.
  WidenedConvolution(const ConvolutionSpec& spec, ConvolutionCache& cache)
      : spec_(spec), cache_(cache) {}

  absl::StatusOr<size_t> WorkspaceBytes(ConvolutionPass pass) const;
  // The arguments are those of ConvolutionCache's functions.
  absl::Status Forward(const bf16* x, const bf16* w, bf16* y, void* workspace) const;
  absl::Status BackwardData(const bf16* dy, const bf16* w, bf16* dx, void* workspace) const;
  absl::Status BackwardWeights(const bf16* x, const bf16* dy, bool accumulate, float* dw,
                               void* workspace) const;

 private:
  struct Scratch;
  int64_t ImagesAtOnce() const;
  int64_t InputElements() const { return spec_.height * spec_.width * spec_.in; }
  int64_t OutputElements() const { return spec_.OutHeight() * spec_.OutWidth() * spec_.out; }
  Scratch Carve(void* workspace) const;
  // visit(first image, fp32 convolution of that many images).
  template <typename Visit>
  absl::Status ForEachPiece(const Visit& visit) const;

  const ConvolutionSpec spec_;
  ConvolutionCache& cache_;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONVOLUTION_CONVOLUTION_WIDENED_CPU_KERNEL_H_
