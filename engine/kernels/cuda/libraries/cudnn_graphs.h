// Attention and convolutions through cuDNN's graphs.
//
//   MP_ASSIGN_OR_RETURN(auto graphs, CudnnGraphs::Create());             // of the current device
//   MP_ASSIGN_OR_RETURN(int64_t bytes, graphs->WorkspaceBytes(attention, AttentionPass::kForward));
//   ...                                                                  // the plan holds `bytes`
//   MP_RETURN_IF_ERROR(graphs->Attention(attention, {qkv, nullptr, out, lse}, workspace, stream));
//
// A graph is built on the first call for its shape (for attention up to a second or two) and kept:
// ask for WorkspaceBytes while planning, so that no step builds one. Nothing else is allocated;
// workspaces are the caller's, 256-byte aligned device memory, and calls may be captured.
//
// Layouts are the ops' (engine/graph/graph.h), weights of convolutions included. cuDNN computes
// fp32 sums of 16-bit products. lse is the natural logarithm; WITH documents it is [N,H] instead of
// [B,H,T]: take cuDNN for both passes of an attention, where Check passes both, or for neither.
// Convolutions use the engines alone whose results are the same from run to run.
//
// Batch norms are not here: cuDNN's fuse statistics and normalisation, and ours keep fp64 sums
// between them that ranks may reduce.
//
// Errors: INVALID_ARGUMENT for shapes that mean nothing, UNIMPLEMENTED where cuDNN has no engine
// for a shape on this device (the caller has kernels of its own), INTERNAL where a call fails. Not
// thread-safe: one per device and executor.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_CUDNN_GRAPHS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_CUDNN_GRAPHS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kernels/cuda/libraries/device_description.h"
#include "engine/kernels/cuda/libraries/neural_graphs.h"

namespace milepost::kernels::cuda {

class CudnnGraphs : public NeuralGraphs {
 public:
  static absl::StatusOr<std::unique_ptr<CudnnGraphs>> Create();
  // Of a device that need not be there: graphs can be checked, not run. cuDNN still wants to load a
  // CUDA driver library (libcuda.so.1) for attention; the toolkit's stub will do.
  static absl::StatusOr<std::unique_ptr<CudnnGraphs>> ForDevice(const DeviceDescription& device);
  ~CudnnGraphs() override;
  CudnnGraphs(const CudnnGraphs&) = delete;
  CudnnGraphs& operator=(const CudnnGraphs&) = delete;

  // Whether cuDNN has an engine for it; builds nothing.
  absl::Status Check(const AttentionGraph& graph, AttentionPass pass) override;
  absl::Status Check(const ConvolutionSpec& spec, ConvolutionPass pass) override;

  absl::StatusOr<int64_t> WorkspaceBytes(const AttentionGraph& graph, AttentionPass pass) override;
  absl::StatusOr<int64_t> WorkspaceBytes(const ConvolutionSpec& spec,
                                         ConvolutionPass pass) override;
  // What its engine says before it is built: of a described device too.
  absl::StatusOr<int64_t> ExpectedWorkspaceBytes(const AttentionGraph& graph, AttentionPass pass);

  // Enqueued on `stream`; none waits.
  absl::Status Attention(const AttentionGraph& graph, const AttentionArguments& arguments,
                         void* workspace, CUstream_st* stream) override;
  absl::Status AttentionBackward(const AttentionGraph& graph,
                                 const AttentionBackwardArguments& arguments, void* workspace,
                                 CUstream_st* stream) override;
  absl::Status Convolution(const ConvolutionSpec& spec, ConvolutionPass pass,
                           const ConvolutionArguments& arguments, void* workspace,
                           CUstream_st* stream) override;

 private:
  struct Impl;
  explicit CudnnGraphs(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_CUDNN_GRAPHS_H_
