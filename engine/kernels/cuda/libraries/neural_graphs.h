// Attention and convolutions on a device, whoever computes them: cuDNN (cudnn_graphs.h, where the
// semantics are) or, in tests, the host (testing/host_graphs.h). Needs no CUDA. One thread at a
// time.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_NEURAL_GRAPHS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_NEURAL_GRAPHS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kernels/cuda/libraries/attention_graph.h"
#include "engine/ops/convolution/convolution_contract.h"

struct CUstream_st;

namespace milepost::kernels::cuda {

// Device memory, 16-byte aligned. `tables`: MakeDocumentTables', where the graph has documents (of
// all the heads of a row). `first_kv_head`: where a part of the heads begins; all else is given for
// whole rows.
struct AttentionArguments {
  const void* qkv = nullptr;
  const int32_t* tables = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
};
struct AttentionBackwardArguments {
  const void* qkv = nullptr;
  const int32_t* tables = nullptr;
  const void* out = nullptr;
  const float* lse = nullptr;
  const void* dout = nullptr;
  void* dqkv = nullptr;
  int64_t first_kv_head = 0;
};
// kForward: x, w -> y. kBackwardData: dy, w -> dx. kBackwardWeights: x, dy -> dw, of the
// activations' type and assigned: cuDNN has no engine with 16-bit inputs that writes fp32.
struct ConvolutionArguments {
  const void* first = nullptr;
  const void* second = nullptr;
  void* result = nullptr;
};

class NeuralGraphs {
 public:
  virtual ~NeuralGraphs() = default;

  // Whether cuDNN has an engine for it; builds nothing.
  virtual absl::Status Check(const AttentionGraph& graph, AttentionPass pass) = 0;
  virtual absl::Status Check(const ConvolutionSpec& spec, ConvolutionPass pass) = 0;

  virtual absl::StatusOr<int64_t> WorkspaceBytes(const AttentionGraph& graph,
                                                 AttentionPass pass) = 0;
  virtual absl::StatusOr<int64_t> WorkspaceBytes(const ConvolutionSpec& spec,
                                                 ConvolutionPass pass) = 0;

  // Enqueued on `stream`; none waits.
  virtual absl::Status Attention(const AttentionGraph& graph, const AttentionArguments& arguments,
                                 void* workspace, CUstream_st* stream) = 0;
  virtual absl::Status AttentionBackward(const AttentionGraph& graph,
                                         const AttentionBackwardArguments& arguments,
                                         void* workspace, CUstream_st* stream) = 0;
  virtual absl::Status Convolution(const ConvolutionSpec& spec, ConvolutionPass pass,
                                   const ConvolutionArguments& arguments, void* workspace,
                                   CUstream_st* stream) = 0;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_NEURAL_GRAPHS_H_
