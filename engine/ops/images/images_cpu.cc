#include "engine/ops/images/images_binding.h"
#include "engine/ops/pooling/pooling_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/image_ops.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::ImageRows;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> NormalizeImagesOf(const Binding& b) {
  return [x = b.Input<uint8_t>(0), y = b.Output<T>(0), table = ChannelTable<T>(b),
          pixels = ImageRows(b.InputShape(0)).rows](const StepContext&) {
    kernels::LookUpChannels<T>(x, pixels, graph::kImageChannels, table.data(), y);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kNormalizeImages = {.bind = MP_F32_OR_BF16(NormalizeImagesOf)};

}  // namespace milepost::ops::cpu
