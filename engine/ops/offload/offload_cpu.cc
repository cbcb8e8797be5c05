#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/offload/offload_copy.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::ops::cpu {
namespace {

using runtime::BindDiskTransfer;
using runtime::Binding;
using runtime::BindOffloadCopy;
using runtime::BoundOp;

absl::StatusOr<BoundOp> BindCopy(const Binding& b) { return BindOffloadCopy(b); }
absl::StatusOr<BoundOp> BindTransfer(const Binding& b) { return BindDiskTransfer(b); }

}  // namespace

constinit const CpuOp kGradientsToHost = {.bind = BindCopy};
constinit const CpuOp kScalarsToHost = {.bind = BindCopy};
constinit const CpuOp kParametersToDevice = {.bind = BindCopy};
constinit const CpuOp kCopyToHost = {.bind = BindCopy};
constinit const CpuOp kCopyToDevice = {.bind = BindCopy};
constinit const CpuOp kReadState = {.bind = BindTransfer};
constinit const CpuOp kWriteState = {.bind = BindTransfer};

}  // namespace milepost::ops::cpu
