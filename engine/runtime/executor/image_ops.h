// Internal to backends and to the rooms of ops on images.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_IMAGE_OPS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_IMAGE_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/dtype/half.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

// Rows and channels of images.
struct ImageRows {
  explicit ImageRows(const graph::Shape& shape)
      : channels(shape[3]), rows(graph::Elements(shape) / channels) {}
  int64_t channels;
  int64_t rows;
};

inline absl::Status NoImageKernel(const OpBinding& b) {
  return absl::UnimplementedError(absl::StrCat(graph::Name(b.planned.op.kind),
                                               ": there is no kernel for ",
                                               Name(b.plan.options.compute_dtype)));
}

}  // namespace milepost::runtime

// Calls binder<T>(b) with the plan's compute dtype. Images have no kernels on halves: a spec that
// asks for them is refused.
#define MP_BIND_F32_OR_BF16(binder, b)                                                      \
  ((b).plan.options.compute_dtype == ::milepost::DType::kBf16 ? binder<::milepost::bf16>(b) \
   : (b).plan.options.compute_dtype == ::milepost::DType::kF32                              \
       ? binder<float>(b)                                                                   \
       : ::milepost::runtime::NoImageKernel(b))

// The same as a binder: {.bind = MP_F32_OR_BF16(MaxPoolOf)}.
#define MP_F32_OR_BF16(binder) [](const auto& b) { return MP_BIND_F32_OR_BF16(binder, b); }

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_IMAGE_OPS_H_
