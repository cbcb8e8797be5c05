// Internal to cpu_backend: one binder per op family. Each resolves pointers and sizes once and
// returns the call.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_OPS_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_OPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/round_up.h"
#include "engine/kernels/cpu/convolution.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cpu/types.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/op_binding.h"

namespace milepost::comm {
class Communicator;
}

namespace milepost::runtime {

// Parts of workspaces begin with cache lines.
constexpr int64_t LineAligned(int64_t bytes) { return RoundUp(bytes, 64); }

// What a binder is given.
struct Binding : OpBinding {
  kernels::MatmulCache& matmuls;
  kernels::ConvolutionCache& convolutions;
  comm::Communicator* communicator;  // null: world 1
  int threads;
};

// A dropout mask's parameters for the rows of the current micro-batch.
struct DropoutBinding {
  explicit DropoutBinding(const Binding& binding, int64_t width);
  kernels::DropoutParams At(const StepContext& context) const;

  double p;
  uint32_t tag;
  int64_t elements_per_sample;
};

// The matrix products that an op makes, for the workspace check; empty for the other kinds.
std::vector<kernels::MatmulSpec> MatmulSpecsOf(const plan::StepPlan& plan,
                                               const plan::Program& program, const graph::Op& op);
// Bytes beside the products' own scratch in front of it (the chunk of logits and so on).
int64_t MatmulOpFixedBytes(const plan::StepPlan& plan, const plan::Program& program,
                           const graph::Op& op);

// Their parts for kLinear and its backwards.
std::vector<kernels::MatmulSpec> LinearMatmulSpecs(const plan::Program& program,
                                                   const graph::Op& op);
int64_t LinearFixedBytes(const plan::Program& program, const graph::Op& op);

absl::StatusOr<BoundOp> BindEmbedding(const Binding& b);
absl::StatusOr<BoundOp> BindEmbeddingBackward(const Binding& b);
absl::StatusOr<BoundOp> BindLayerNorm(const Binding& b);
absl::StatusOr<BoundOp> BindResidualLayerNorm(const Binding& b);
absl::StatusOr<BoundOp> BindLayerNormBackward(const Binding& b);  // both kinds
absl::StatusOr<BoundOp> BindGelu(const Binding& b);
absl::StatusOr<BoundOp> BindGeluBackward(const Binding& b);
absl::StatusOr<BoundOp> BindDropout(const Binding& b);  // forward and backward
absl::StatusOr<BoundOp> BindAttention(const Binding& b);
absl::StatusOr<BoundOp> BindAttentionBackward(const Binding& b);
absl::StatusOr<BoundOp> BindCachedAttention(const Binding& b);

absl::StatusOr<BoundOp> BindRmsNorm(const Binding& b);
absl::StatusOr<BoundOp> BindResidualRmsNorm(const Binding& b);
absl::StatusOr<BoundOp> BindRmsNormBackward(const Binding& b);
absl::StatusOr<BoundOp> BindSwiGlu(const Binding& b);
absl::StatusOr<BoundOp> BindSwiGluBackward(const Binding& b);
absl::StatusOr<BoundOp> BindQkNorm(const Binding& b);
absl::StatusOr<BoundOp> BindQkNormBackward(const Binding& b);
absl::StatusOr<BoundOp> BindRopeTable(const Binding& b);
absl::StatusOr<BoundOp> BindRope(const Binding& b);  // forward and backward

// What oneDNN needs for a convolution; 0 for the other kinds.
absl::StatusOr<int64_t> ConvolutionWorkspaceBytes(const graph::Graph& graph, const graph::Op& op,
                                                  kernels::ConvolutionCache& convolutions);
absl::StatusOr<BoundOp> BindNormalizeImages(const Binding& b);
absl::StatusOr<BoundOp> BindConvolution(const Binding& b);  // and its two backwards
absl::StatusOr<BoundOp> BindBatchNormSums(const Binding& b);
absl::StatusOr<BoundOp> BindBatchNormStatistics(const Binding& b);
absl::StatusOr<BoundOp> BindBatchNormRunning(const Binding& b);
absl::StatusOr<BoundOp> BindBatchNorm(const Binding& b);
absl::StatusOr<BoundOp> BindBatchNormBackwardSums(const Binding& b);
absl::StatusOr<BoundOp> BindBatchNormBackward(const Binding& b);
absl::StatusOr<BoundOp> BindMaxPool(const Binding& b);
absl::StatusOr<BoundOp> BindMaxPoolBackward(const Binding& b);
absl::StatusOr<BoundOp> BindAveragePool(const Binding& b);     // forward and backward
absl::StatusOr<BoundOp> BindClassifierLoss(const Binding& b);  // forward only, and with backward

absl::StatusOr<BoundOp> BindLinear(const Binding& b);
absl::StatusOr<BoundOp> BindLinearBackwardInput(const Binding& b);
absl::StatusOr<BoundOp> BindLinearBackwardWeight(const Binding& b);
absl::StatusOr<BoundOp> BindLmHeadLoss(const Binding& b);  // forward only, and with backward
absl::StatusOr<BoundOp> BindLmHeadLogits(const Binding& b);

// cpu_ops_fp8.cc: kLinear* with `fp8`, and what makes codes and scalings.
std::vector<kernels::MatmulSpec> Fp8MatmulSpecs(const plan::Program& program, const graph::Op& op);
int64_t Fp8FixedBytes(const plan::Program& program, const graph::Op& op);
absl::StatusOr<BoundOp> BindQuantize(const Binding& b);
absl::StatusOr<BoundOp> BindFp8Linear(const Binding& b);
absl::StatusOr<BoundOp> BindFp8BackwardInput(const Binding& b);
absl::StatusOr<BoundOp> BindFp8BackwardWeight(const Binding& b);
absl::StatusOr<BoundOp> BindUpdateScalings(const Binding& b);

absl::StatusOr<BoundOp> BindGatherAmaxes(const Binding& b);
absl::StatusOr<BoundOp> BindReduceGradients(const Binding& b);
absl::StatusOr<BoundOp> BindRoundGradients(const Binding& b);
absl::StatusOr<BoundOp> BindReduceScalars(const Binding& b);
absl::StatusOr<BoundOp> BindGatherParameters(const Binding& b);
absl::StatusOr<BoundOp> BindReduceStatistics(const Binding& b);
absl::StatusOr<BoundOp> BindAverageStatistics(const Binding& b);
absl::StatusOr<BoundOp> BindCall(const Binding& b);  // the other collectives: the call alone

absl::StatusOr<BoundOp> BindGradNorm(const Binding& b);
absl::StatusOr<BoundOp> BindOptimizer(const Binding& b);
absl::StatusOr<BoundOp> BindUpdateNorms(const Binding& b);
absl::StatusOr<BoundOp> BindMuonMomentum(const Binding& b);
absl::StatusOr<BoundOp> BindOrthogonalize(const Binding& b);

// Those of a group that kOrthogonalize works on, for the same.
std::vector<kernels::MatmulSpec> OrthogonalizeMatmulSpecs(const plan::FlatGroup& group);
int64_t OrthogonalizeFixedBytes(const plan::FlatGroup& group);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_OPS_H_
