// NCCL itself, as NcclCommunicator calls it. Has run with ranks on one GPU alone
// (docs/internals/cuda.md).
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_NCCL_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_NCCL_H_

#include "engine/runtime/gpu/communicators/nccl_api.h"

namespace milepost::runtime {

// Thread-safe, as NCCL is: one communicator by one thread at a time.
NcclApi& Nccl();

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_NCCL_H_
