#include "engine/plan/cuda_beside.h"

#include "engine/ops/attention/library_attention.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/experts/experts.h"
#include "engine/plan/compression.h"

namespace milepost::plan {
namespace {

// runtime/gpu/backend/tables_on_device.cc: small tables share pieces, of which some is left over.
constexpr int64_t kPiece = 256 << 10;
// runtime/gpu/backend/step_control.h, kernels/cuda/flat_update.h, kernels/cuda/flat.h
constexpr int64_t kControl = 512;
constexpr int64_t kUpdateControl = 256;
constexpr int64_t kPosition = 16;
constexpr int64_t kSegment = 64;
constexpr int64_t kChunk = 16;
// ops/compression/compression_cuda_kernel.h
constexpr int64_t kFactorRows = 32;
constexpr int64_t kCopiedTensor = 24;
// Of image models: a value for each byte and channel, for training and for evaluation.
constexpr int64_t kImageTables = 2 * 256 * 3 * 4;

int64_t TableBytes(int64_t bytes) {
  return bytes < kPiece ? 2 * DeviceAligned(bytes) : DeviceAligned(bytes);
}

int64_t ChunkTableBytes(int64_t elements, int64_t ranges) {
  return TableBytes(kChunk * (elements / kernels::cuda::kChunkElements + ranges));
}

// Of each: one for each factor, or for what is copied there and back.
int64_t FactorTableBytes(const FlatGroup& group) {
  const FactorLayout layout = LayOutFactors(group);
  return 2 * TableBytes(kFactorRows * static_cast<int64_t>(layout.matrices.size())) +
         2 * TableBytes(kCopiedTensor * static_cast<int64_t>(layout.whole.size()));
}

int64_t GroupBytes(const FlatGroup& group) {
  // Of a shard; what lies behind the last one is another.
  const auto segments = static_cast<int64_t>(group.parameters.size()) + 1;
  int64_t bytes = DeviceAligned(segments * kSegment);
  // Zeroed before gradients are reduced.
  bytes += ChunkTableBytes(group.padded_elements - group.elements, segments);
  bytes += ChunkTableBytes(group.shard_elements, segments);
  if (group.Compressed()) bytes += FactorTableBytes(group);
  if (group.Needs() != optim::StepNeeds::kTensorNorms) return bytes;
  return bytes + ChunkTableBytes(group.shard_elements, segments) + TableBytes(kChunk * segments);
}

int64_t ExpertTableBytesOf(const Program& program) {
  int64_t bytes = 0;
  for (const PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    if (!ops::IsExpertProduct(op.kind)) continue;
    constexpr int64_t kAddress = 8;
    bytes += op.attributes.parts * TableBytes(kAddress * op.attributes.experts.count);
  }
  return bytes;
}

}  // namespace

int64_t ExpertTableBytes(const StepPlan& plan) {
  int64_t bytes = 0;
  for (const Program* program : plan.Programs()) bytes += ExpertTableBytesOf(*program);
  return bytes;
}

int64_t CudaBesideBytes(const StepPlan& plan) {
  if (plan.options.device != DeviceKind::kCuda) return 0;
  int64_t bytes = kControl + kUpdateControl + kPiece + TableBytes(kImageTables);
  for (const FlatGroup& group : plan.groups) {
    if (!group.frozen) bytes += GroupBytes(group);
  }
  bytes += TableBytes(4 * static_cast<int64_t>(plan.groups.size()));
  bytes += ExpertTableBytes(plan);
  // Those that a run of the training program takes.
  const int64_t micro_batches = plan.options.accumulation / plan.options.MicroSteps();
  bytes += DeviceAligned((micro_batches - 1) * kPosition);
  if (plan.options.documents) {
    const int64_t documents =
        ops::PlannedDocuments(plan.options.micro_batch, plan.options.sequence);
    constexpr int64_t kTables = 4;
    bytes += micro_batches * DeviceAligned(kTables * 4 * (documents + 32));
  }
  return bytes;
}

}  // namespace milepost::plan
