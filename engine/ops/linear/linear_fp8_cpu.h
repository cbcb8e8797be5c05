// Linear layers of 8-bit codes on the CPU.
#ifndef MILEPOST_ENGINE_OPS_LINEAR_LINEAR_FP8_CPU_H_
#define MILEPOST_ENGINE_OPS_LINEAR_LINEAR_FP8_CPU_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {

std::vector<kernels::MatmulSpec> Fp8MatmulSpecs(const plan::Program& program, const graph::Op& op);
absl::StatusOr<runtime::BoundOp> BindFp8Linear(const runtime::Binding& b);
absl::StatusOr<runtime::BoundOp> BindFp8BackwardInput(const runtime::Binding& b);
absl::StatusOr<runtime::BoundOp> BindFp8BackwardWeight(const runtime::Binding& b);

}  // namespace milepost::ops::cpu

#endif  // MILEPOST_ENGINE_OPS_LINEAR_LINEAR_FP8_CPU_H_
