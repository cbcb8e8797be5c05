#include "engine/runtime/gpu/backend/draw_values.h"

#include "common/check.h"
#include "common/philox.h"
#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/initial_values.h"

namespace milepost::runtime {
namespace {

template <typename T>
absl::Status DrawAs(const DrawnValues& values, char* buffer, cudaStream_t stream) {
  T* const out = reinterpret_cast<T*>(buffer) + values.begin;
  const auto key = PhiloxKey(values.seed, values.stream);
  switch (values.initializer) {
    case graph::Initializer::kNormal:
      return kernels::cuda::NormalInit(out, values.count, values.scale, key, values.first, stream);
    case graph::Initializer::kUniform:
      return kernels::cuda::UniformInit(out, values.count, values.scale, key, values.first, stream);
    case graph::Initializer::kOnes:
      return kernels::cuda::ConstantInit(out, values.count, 1.0F, stream);
    case graph::Initializer::kZeros:
      break;
  }
  MP_CHECK(false) << "zeros are not drawn";
  return absl::OkStatus();
}

absl::Status DrawEach(const DrawnValues& values, char* buffer, cudaStream_t stream) {
  if (values.dtype == DType::kBf16) return DrawAs<bf16>(values, buffer, stream);
  if (values.dtype == DType::kF16) return DrawAs<f16>(values, buffer, stream);
  MP_CHECK(values.dtype == DType::kF32);
  return DrawAs<float>(values, buffer, stream);
}

}  // namespace

absl::Status DrawValues(const plan::StepPlan& plan, absl::Span<const DrawnValues> drawn,
                        char* arena, cudaStream_t stream) {
  for (const DrawnValues& values : drawn) {
    MP_RETURN_IF_ERROR(DrawEach(values, arena + plan.buffers[values.buffer].offset, stream));
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
