#include "engine/ops/images/images_binding.h"
#include "engine/ops/patches/patches_binding.h"
#include "engine/ops/patches/patches_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> ImagePatchesOf(const Binding& b) {
  return [grid = PatchGridOf(b), images = b.Input<uint8_t>(0), rows = b.Output<T>(0),
          table = ChannelTable<T>(b)](const StepContext&) {
    kernels::ImagePatches<T>(grid, images, table.data(), rows);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> PatchTokensOf(const Binding& b) {
  return [tokens = TokenRowsOf(b.OutputShape(0), b.attributes().batch), rows = b.Input<T>(0),
          cls = b.Input<T>(1), positions = b.Input<T>(2), x = b.Output<T>(0)](const StepContext&) {
    kernels::PatchTokens<T>(tokens, rows, cls, positions, x);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> PatchTokensBackwardOf(const Binding& b) {
  return [tokens = TokenRowsOf(b.InputShape(0), b.attributes().batch), dx = b.Input<T>(0),
          drows = b.Output<T>(0), cls = TokenSumOf(b, 1),
          positions = TokenSumOf(b, 2)](const StepContext& context) {
    kernels::PatchTokensBackward<T>(tokens, dx, drows, cls.At(context), positions.At(context));
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> FirstRowsOf(const Binding& b) {
  return [tokens = TokenRowsOf(b.InputShape(0), b.OutputShape(0)[0]), x = b.Input<T>(0),
          y = b.Output<T>(0)](const StepContext&) {
    kernels::FirstRows<T>(tokens, x, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> FirstRowsBackwardOf(const Binding& b) {
  return [tokens = TokenRowsOf(b.OutputShape(0), b.InputShape(0)[0]), dy = b.Input<T>(0),
          dx = b.Output<T>(0)](const StepContext&) {
    kernels::FirstRowsBackward<T>(tokens, dy, dx);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kImagePatches = {.bind = MP_BY_DTYPE(ImagePatchesOf)};
constinit const CpuOp kPatchTokens = {.bind = MP_BY_DTYPE(PatchTokensOf)};
constinit const CpuOp kPatchTokensBackward = {.bind = MP_BY_DTYPE(PatchTokensBackwardOf)};
constinit const CpuOp kFirstRows = {.bind = MP_BY_DTYPE(FirstRowsOf)};
constinit const CpuOp kFirstRowsBackward = {.bind = MP_BY_DTYPE(FirstRowsBackwardOf)};

}  // namespace milepost::ops::cpu
