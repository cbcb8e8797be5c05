// What the updates of flat shards on a GPU share.
#ifndef MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CHUNKS_CUDA_H_
#define MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CHUNKS_CUDA_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/runtime/cuda_backend/cuda_op.h"
#include "engine/runtime/group_ops.h"

namespace milepost::ops::gpu {

// The shard's segments, cut into chunks: chunk.segment is one's place among them.
struct Chunks {
  std::vector<runtime::Segment> segments;
  std::vector<kernels::cuda::FlatChunk> chunks;
};
inline Chunks ChunksOf(const runtime::OpBinding& b) {
  Chunks out = {.segments = runtime::SegmentsOf(runtime::GroupOf(b), runtime::ShardBegin(b),
                                                runtime::GroupOf(b).shard_elements)};
  std::vector<kernels::cuda::FlatRange> ranges;
  for (const runtime::Segment& s : out.segments) ranges.push_back({s.begin, s.end});
  out.chunks = kernels::cuda::MakeChunks(ranges);
  return out;
}

// Everything but where the parameters, their gradients and states lie. Update: FlatUpdate or
// QuantizedUpdate.
template <typename Update>
absl::StatusOr<Update> StartUpdate(const runtime::CudaBinding& b, const Chunks& chunks) {
  Update update;
  MP_ASSIGN_OR_RETURN(update.chunks, b.services.tables->Upload(chunks.chunks));
  update.chunk_count = static_cast<int64_t>(chunks.chunks.size());
  const int64_t offset = runtime::ControlLayoutOf(b.plan, b.rank).factors[b.attributes().group];
  update.factors =
      reinterpret_cast<const kernels::cuda::SegmentFactors*>(b.memory.control + offset);
  update.step = &b.control()->factors;
  update.control = b.memory.update;
  return update;
}

}  // namespace milepost::ops::gpu

#endif  // MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CHUNKS_CUDA_H_
