#include "engine/plan/workspace.h"

#include <algorithm>

#include "common/round_up.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/linear/linear_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::plan {
namespace {

ops::GroupSizes SizesOf(const std::vector<FlatGroup>& groups, const graph::Op& op,
                        const PlanOptions& options) {
  if (op.attributes.group < 0) return {};
  const FlatGroup& group = groups[op.attributes.group];
  ops::GroupSizes sizes = {.padded_elements = group.padded_elements,
                           .shard_elements = group.shard_elements,
                           .slice_elements = group.padded_elements / group.Ranks(options),
                           .bf16_sums = options.grad_reduce == DType::kBf16 && options.world > 1,
                           .product_dtype = group.product_dtype,
                           .matrices = {},
                           .tensors = static_cast<int64_t>(group.parameters.size())};
  if (group.Needs() != optim::StepNeeds::kWholeMatrices) return sizes;
  for (const GroupParameter& p : group.parameters) {
    sizes.matrices.push_back({p.shape[0], p.shape[1]});
  }
  return sizes;
}

int64_t Aligned(int64_t bytes, const PlanOptions& options) {
  return options.device == DeviceKind::kCuda ? DeviceAligned(bytes) : LineAligned(bytes);
}

}  // namespace

int64_t BytesBeforeScratch(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                           const graph::Op& op, const PlanOptions& options) {
  const ops::OpDefinition& definition = ops::DefinitionOf(op.kind);
  const ops::WorkspaceRule rule =
      options.device == DeviceKind::kCuda ? definition.gpu_workspace : definition.cpu_workspace;
  if (rule == nullptr) return 0;
  const ops::GroupSizes group = SizesOf(groups, op, options);
  return Aligned(rule({.graph = graph,
                       .op = op,
                       .group = group,
                       .threads = options.threads,
                       .exact = options.exact,
                       .attention_call_bytes = options.attention_call_bytes,
                       .min_convolution_bytes = options.min_convolution_workspace_bytes,
                       .min_attention_bytes = options.min_attention_workspace_bytes}),
                 options);
}

int64_t WorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                       const graph::Op& op, const PlanOptions& options) {
  const int64_t before = BytesBeforeScratch(graph, groups, op, options);
  if (!ops::DefinitionOf(op.kind).multiplies) return before;
  return before + Aligned(options.device == DeviceKind::kCuda ? kernels::cuda::kProductScratchBytes
                                                              : options.min_matmul_workspace_bytes,
                          options);
}

int64_t MatmulWorkspaceReserve(int threads, DType dtype, int64_t chunk_rows, int64_t width,
                               int64_t vocabulary) {
  constexpr int64_t kBytesPerThread = 2 << 20;
  constexpr int64_t kLongInner = 16384;  // bf16 products this deep are summed in fp32 pieces
  const bool partial = dtype == DType::kBf16 && vocabulary > kLongInner;
  // With the above, what kernels/cpu/matmul_widened.h takes; which CPU will run it is unknown here.
  constexpr int64_t kPieceElements = 512 * 1024 + 1024 * 1024 + 1024 + 512 * 1024;
  const int64_t pieces = dtype == DType::kF32 ? 0 : 4 * kPieceElements;
  return threads * kBytesPerThread + pieces + (partial ? RoundUp(chunk_rows * width * 4, 64) : 0);
}

int64_t LmHeadChunkRows(int64_t rows, int64_t vocabulary, DType dtype, int64_t chunk_bytes) {
  const int64_t fitting =
      std::max<int64_t>(16, chunk_bytes / (vocabulary * ByteSize(dtype)) / 16 * 16);
  const int64_t chunks = (rows + fitting - 1) / fitting;
  return std::min(rows, RoundUp((rows + chunks - 1) / chunks, 16));
}

}  // namespace milepost::plan
