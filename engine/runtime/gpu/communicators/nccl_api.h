// The calls of NCCL that NcclCommunicator makes, so that it is compiled and tested without NCCL
// (testing/fake_nccl.h). The real ones: engine/runtime/gpu/cuda/nccl.h. Types and meanings are
// NCCL's; the numbers of NcclResult too. Communicators are non-blocking (blocking = 0): a call that
// gives kInProgress is under way, and the communicator takes no other until AsyncError says
// something else; only then is a collective on its stream.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_NCCL_API_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_NCCL_API_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/graph/graph.h"
#include "engine/kernels/cuda/stream.h"

struct ncclComm;

namespace milepost::runtime {

using NcclComm = ncclComm*;
inline constexpr int kNcclNoColor = -1;
using NcclId = std::array<char, 128>;

enum class NcclResult : uint8_t {
  kSuccess,
  kUnhandledCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress,
};

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual NcclResult GetVersion(int* version) = 0;  // 22809: 2.28.9
  virtual NcclResult GetUniqueId(NcclId* id) = 0;
  // *comm is set at once, and usable when AsyncError says so.
  virtual NcclResult InitRank(NcclComm* comm, int ranks, const NcclId& id, int rank) = 0;
  // Ranks of one color, ordered by key; of kNcclNoColor none. *child may be set as late as when the
  // parent is no longer in progress: it must stay where it is until then.
  virtual NcclResult Split(NcclComm parent, int color, int key, NcclComm* child) = 0;
  virtual NcclResult AsyncError(NcclComm comm, NcclResult* state) = 0;
  virtual NcclResult Finalize(NcclComm comm) = 0;
  virtual NcclResult Destroy(NcclComm comm) = 0;
  virtual NcclResult Abort(NcclComm comm) = 0;
  virtual NcclResult Register(NcclComm comm, void* buffer, size_t bytes, void** handle) = 0;
  virtual NcclResult Deregister(NcclComm comm, void* handle) = 0;

  // `count`: elements of what a rank sends to each other rank, as NCCL counts. Sums.
  virtual NcclResult AllReduce(const void* send, void* receive, size_t count, DType type,
                               NcclComm comm, cudaStream_t stream) = 0;
  virtual NcclResult ReduceScatter(const void* send, void* receive, size_t count, DType type,
                                   NcclComm comm, cudaStream_t stream) = 0;
  virtual NcclResult AllGather(const void* send, void* receive, size_t count, DType type,
                               NcclComm comm, cudaStream_t stream) = 0;
  virtual NcclResult Send(const void* send, size_t count, DType type, int peer, NcclComm comm,
                          cudaStream_t stream) = 0;
  virtual NcclResult Receive(void* receive, size_t count, DType type, int peer, NcclComm comm,
                             cudaStream_t stream) = 0;
  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;

  virtual std::string ErrorString(NcclResult result) = 0;
  virtual std::string LastError(NcclComm comm) = 0;  // of any call; may be null
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_NCCL_API_H_
