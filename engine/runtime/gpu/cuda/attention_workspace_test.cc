// Planned scratch of attention is what cuDNN says for a described GPU, where none is.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "engine/kernels/cuda/libraries/cudnn_graphs.h"
#include "engine/ops/attention/attention_cuda.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::runtime {
namespace {

using kernels::cuda::AttentionGraph;
using kernels::cuda::AttentionPass;
using kernels::cuda::CudnnGraphs;

bool LoadDriver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
#ifdef MILEPOST_CUDA_DRIVER_STUB
  return dlopen(MILEPOST_CUDA_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL) != nullptr;
#else
  return false;
#endif
}

AttentionGraph GraphOf(int64_t batch, int64_t sequence, int64_t kv_heads, int64_t head_dim,
                       bool documents) {
  return {.shape = {.batch = batch,
                    .sequence = sequence,
                    .heads = 24,
                    .head_dim = head_dim,
                    .kv_heads = kv_heads},
          .max_documents = documents ? ops::PlannedDocuments(batch, sequence) : 0};
}

void ExpectPlanned(CudnnGraphs& cudnn, const AttentionGraph& graph, int64_t call_bytes,
                   bool exact = true) {
  plan::PlanOptions options;
  options.exact = exact;
  options.attention_call_bytes = call_bytes;
  const ops::LibraryAttention library = ops::gpu::LibraryAttentionOf(graph, options);
  ASSERT_TRUE(library.taken);
  const auto forward = cudnn.ExpectedWorkspaceBytes(graph, AttentionPass::kForward);
  ASSERT_TRUE(forward.ok()) << forward.status();
  EXPECT_LE(*forward, library.forward_bytes);
  const AttentionGraph call = ops::gpu::BackwardCallOf(graph, library, exact);
  const auto backward = cudnn.ExpectedWorkspaceBytes(call, AttentionPass::kBackward);
  ASSERT_TRUE(backward.ok()) << backward.status();
  EXPECT_LE(*backward, library.backward_bytes);
  // What is planned beyond it: the fixed part, and a little for each document and for a row's end.
  EXPECT_LE(library.backward_bytes - *backward, (2 << 20) + 512 * graph.max_documents);
}

TEST(AttentionWorkspace, IsWhatCudnnSaysOfADescribedHopper) {
  if (!LoadDriver()) GTEST_SKIP() << "no libcuda.so.1, and no stub of it in the toolkit";
  const auto cudnn = CudnnGraphs::ForDevice(kernels::cuda::HopperH200());
  ASSERT_TRUE(cudnn.ok()) << cudnn.status();
  for (const bool documents : {false, true}) {
    for (const int64_t sequence : {200, 1024, documents ? 2048 : 4096}) {
      for (const int64_t kv_heads : {24, 6}) {
        for (const int64_t head_dim : {64, 96, 128, 256}) {
          // Undivided where it fits; several calls; one head of keys at a time.
          for (const int64_t call_bytes : {int64_t{8} << 30, int64_t{64} << 20, int64_t{1}}) {
            SCOPED_TRACE(testing::Message()
                         << sequence << " positions, " << kv_heads << " heads, " << head_dim
                         << " wide, documents " << documents << ", calls of " << call_bytes);
            ExpectPlanned(**cudnn, GraphOf(2, sequence, kv_heads, head_dim, documents), call_bytes);
          }
          SCOPED_TRACE("fast");
          ExpectPlanned(**cudnn, GraphOf(2, sequence, kv_heads, head_dim, documents), 0,
                        /*exact=*/false);
        }
      }
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
