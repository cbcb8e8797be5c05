#include "engine/ops/context_parallel/context_parallel_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/context_parallel/context_parallel_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

auto HeadsLaunch(cudaStream_t stream, const char* name) {
  return [stream, name](const auto& kernel) { return Launch(kernel, kernel.grid(), stream, name); };
}

}  // namespace

absl::Status TakeHeads(const HeadsExchangeShape& shape, const char* by_tokens,
                       const HeadPieces<char>& to, cudaStream_t stream) {
  return RunTakeHeads(shape, by_tokens, to, HeadsLaunch(stream, "TakeHeads"));
}

absl::Status PutHeads(const HeadsExchangeShape& shape, const HeadPieces<const char>& from,
                      char* by_tokens, cudaStream_t stream) {
  return RunPutHeads(shape, from, by_tokens, HeadsLaunch(stream, "PutHeads"));
}

template <typename T>
absl::Status SumSharedHeads(const HeadsExchangeShape& shape, const HeadPieces<const char>& from,
                            T* by_tokens, cudaStream_t stream) {
  return RunSumSharedHeads<T>(shape, from, by_tokens, HeadsLaunch(stream, "SumSharedHeads"));
}
template absl::Status SumSharedHeads(const HeadsExchangeShape&, const HeadPieces<const char>&,
                                     float*, cudaStream_t);
template absl::Status SumSharedHeads(const HeadsExchangeShape&, const HeadPieces<const char>&,
                                     bf16*, cudaStream_t);
template absl::Status SumSharedHeads(const HeadsExchangeShape&, const HeadPieces<const char>&, f16*,
                                     cudaStream_t);

absl::Status PackPieces(const HeadsExchangeShape& shape, const char* by_heads, int64_t own,
                        char* packed, cudaStream_t stream) {
  return RunRepackPieces<true>(shape, by_heads, own, packed, HeadsLaunch(stream, "PackPieces"));
}

absl::Status UnpackPieces(const HeadsExchangeShape& shape, const char* packed, int64_t own,
                          char* by_heads, cudaStream_t stream) {
  return RunRepackPieces<false>(shape, by_heads, own, packed, HeadsLaunch(stream, "UnpackPieces"));
}

}  // namespace milepost::kernels::cuda
