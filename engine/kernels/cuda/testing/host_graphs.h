// NeuralGraphs on the host, for tests: convolutions and, where asked for, attention by the CPU's
// kernels, done when the call returns. Where the documents lie is taken from their tables, which
// are checked. fp32 attention is refused, as cuDNN refuses it.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_GRAPHS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_GRAPHS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kernels/cuda/libraries/neural_graphs.h"
#include "engine/ops/convolution/convolution_cpu_kernel.h"

namespace milepost::kernels::cuda {

struct HostGraphsOptions {
  bool attention = false;              // else UNIMPLEMENTED: the caller's own kernels are used
  int64_t workspace_bytes = 64 << 10;  // that every call asks for, and checks that it gets
};

class HostGraphs : public NeuralGraphs {
 public:
  explicit HostGraphs(const HostGraphsOptions& options = {}) : options_(options) {}

  absl::Status Check(const AttentionGraph& graph, AttentionPass pass) override;
  absl::Status Check(const ConvolutionSpec& spec, ConvolutionPass pass) override;
  absl::StatusOr<int64_t> WorkspaceBytes(const AttentionGraph& graph, AttentionPass pass) override;
  absl::StatusOr<int64_t> WorkspaceBytes(const ConvolutionSpec& spec,
                                         ConvolutionPass pass) override;
  absl::Status Attention(const AttentionGraph& graph, const AttentionArguments& arguments,
                         void* workspace, CUstream_st* stream) override;
  absl::Status AttentionBackward(const AttentionGraph& graph,
                                 const AttentionBackwardArguments& arguments, void* workspace,
                                 CUstream_st* stream) override;
  absl::Status Convolution(const ConvolutionSpec& spec, ConvolutionPass pass,
                           const ConvolutionArguments& arguments, void* workspace,
                           CUstream_st* stream) override;

  int attention_calls() const { return attention_calls_; }

 private:
  absl::Status CheckWorkspace(const void* workspace) const;
  // 64-byte aligned scratch of the CPU's kernels.
  void* Scratch(size_t bytes);

  const HostGraphsOptions options_;
  ConvolutionCache convolutions_;
  std::vector<char> scratch_;
  int attention_calls_ = 0;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_GRAPHS_H_
