#include "engine/runtime/gpu/cuda/nccl.h"

#include <nccl.h>

#include <cstring>

#include "common/check.h"

namespace milepost::runtime {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(kNcclNoColor == NCCL_SPLIT_NOCOLOR);

NcclResult Result(ncclResult_t result) { return static_cast<NcclResult>(result); }

ncclDataType_t TypeOf(DType type) {
  switch (type) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kU8:
      return ncclUint8;
    default:
      MP_CHECK(false) << "no collectives of " << Name(type);
      return ncclFloat32;
  }
}

ncclConfig_t Config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

class RealNccl : public NcclApi {
 public:
  NcclResult GetVersion(int* version) override { return Result(ncclGetVersion(version)); }
  NcclResult GetUniqueId(NcclId* id) override {
    ncclUniqueId unique;
    const ncclResult_t result = ncclGetUniqueId(&unique);
    std::memcpy(id->data(), unique.internal, id->size());
    return Result(result);
  }
  NcclResult InitRank(NcclComm* comm, int ranks, const NcclId& id, int rank) override {
    ncclUniqueId unique;
    std::memcpy(unique.internal, id.data(), id.size());
    ncclConfig_t config = Config();
    return Result(ncclCommInitRankConfig(comm, ranks, unique, rank, &config));
  }
  NcclResult Split(NcclComm parent, int color, int key, NcclComm* child) override {
    ncclConfig_t config = Config();
    return Result(ncclCommSplit(parent, color, key, child, &config));
  }
  NcclResult AsyncError(NcclComm comm, NcclResult* state) override {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm, &found);
    *state = Result(found);
    return Result(result);
  }
  NcclResult Finalize(NcclComm comm) override { return Result(ncclCommFinalize(comm)); }
  NcclResult Destroy(NcclComm comm) override { return Result(ncclCommDestroy(comm)); }
  NcclResult Abort(NcclComm comm) override { return Result(ncclCommAbort(comm)); }
  NcclResult Register(NcclComm comm, void* buffer, size_t bytes, void** handle) override {
    return Result(ncclCommRegister(comm, buffer, bytes, handle));
  }
  NcclResult Deregister(NcclComm comm, void* handle) override {
    return Result(ncclCommDeregister(comm, handle));
  }
  NcclResult AllReduce(const void* send, void* receive, size_t count, DType type, NcclComm comm,
                       cudaStream_t stream) override {
    return Result(ncclAllReduce(send, receive, count, TypeOf(type), ncclSum, comm, stream));
  }
  NcclResult ReduceScatter(const void* send, void* receive, size_t count, DType type, NcclComm comm,
                           cudaStream_t stream) override {
    return Result(ncclReduceScatter(send, receive, count, TypeOf(type), ncclSum, comm, stream));
  }
  NcclResult AllGather(const void* send, void* receive, size_t count, DType type, NcclComm comm,
                       cudaStream_t stream) override {
    return Result(ncclAllGather(send, receive, count, TypeOf(type), comm, stream));
  }
  NcclResult Send(const void* send, size_t count, DType type, int peer, NcclComm comm,
                  cudaStream_t stream) override {
    return Result(ncclSend(send, count, TypeOf(type), peer, comm, stream));
  }
  NcclResult Receive(void* receive, size_t count, DType type, int peer, NcclComm comm,
                     cudaStream_t stream) override {
    return Result(ncclRecv(receive, count, TypeOf(type), peer, comm, stream));
  }
  NcclResult GroupStart() override { return Result(ncclGroupStart()); }
  NcclResult GroupEnd() override { return Result(ncclGroupEnd()); }
  std::string ErrorString(NcclResult result) override {
    return ncclGetErrorString(static_cast<ncclResult_t>(result));
  }
  std::string LastError(NcclComm comm) override {
    const char* text = ncclGetLastError(comm);
    return text == nullptr ? "" : text;
  }
};

}  // namespace

NcclApi& Nccl() {
  static RealNccl nccl;
  return nccl;
}

}  // namespace milepost::runtime
