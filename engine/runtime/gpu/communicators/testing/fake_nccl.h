// NCCL on the host, for tests: ranks are threads, each with an NcclApi of its own, and device
// memory is host memory. Collectives run at once, on the calling thread, but say that they are
// under way for a while, and a rank that calls a communicator which is under way, or one that is
// gone, is told so and noted (misuse).
//
//   FakeNcclCluster cluster;
//   FakeNccl nccl(cluster);   // one for each rank
//   nccl.lag = 3;             // AsyncError says kInProgress so often before a call is done
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_FAKE_NCCL_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_FAKE_NCCL_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/runtime/gpu/communicators/nccl_api.h"

namespace milepost::runtime {

// What the ranks share. Thread-safe.
class FakeNcclCluster {
 public:
  using Group = std::vector<std::unique_ptr<comm::Communicator>>;

  // A rank comes to the group `name`; whether all of them have.
  void Join(const std::string& name, int ranks, int rank);
  bool Complete(const std::string& name);
  // Its part of the group, once.
  std::unique_ptr<comm::Communicator> Take(const std::string& name, int rank);

  // A rank of `parent` asks for a part of it. Once all have: the new group's name, size, and the
  // rank's place in it.
  struct Part {
    std::string name;
    int ranks = 0;
    int rank = 0;
  };
  void AskSplit(const std::string& name, int ranks, int rank, int color, int key);
  bool SplitDone(const std::string& name, int rank, Part* part);

  // Messages between ranks of a group.
  void Post(const std::string& group, int from, int to, std::string bytes);
  // False: nothing came for seconds.
  bool Receive(const std::string& group, int from, int to, std::string* bytes);

 private:
  struct Joining {
    int ranks = 0;
    std::set<int> here;
    Group members;
  };
  struct Splitting {
    int ranks = 0;
    std::map<int, std::pair<int, int>> asked;  // by rank: color and key
  };
  using Lane = std::tuple<std::string, int, int>;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Joining> joining_;
  std::map<std::string, Splitting> splitting_;
  std::map<Lane, std::deque<std::string>> lanes_;
};

class FakeNccl : public NcclApi {
 public:
  explicit FakeNccl(FakeNcclCluster& cluster) : cluster_(cluster) {}
  ~FakeNccl() override;

  // ---- what it is to do; set before calls ----
  int version = 22809;
  int lag = 0;
  // By the name that `calls` has: what it gives instead of being done.
  std::map<std::string, NcclResult> results;
  // What AsyncError says of every communicator that is not under way.
  std::atomic<NcclResult> state{NcclResult::kSuccess};
  std::atomic<bool> stuck{false};  // calls that are made from now on stay under way

  // ---- what has happened; read when no call is being made ----
  std::vector<std::string> calls;   // "all-reduce", "split", "abort", ...
  std::vector<std::string> splits;  // "color 2, key 1"
  std::vector<std::string> misuse;
  size_t alive() const { return alive_.size(); }

  NcclResult GetVersion(int* version) override;
  NcclResult GetUniqueId(NcclId* id) override;
  NcclResult InitRank(NcclComm* comm, int ranks, const NcclId& id, int rank) override;
  NcclResult Split(NcclComm parent, int color, int key, NcclComm* child) override;
  NcclResult AsyncError(NcclComm comm, NcclResult* state) override;
  NcclResult Finalize(NcclComm comm) override;
  NcclResult Destroy(NcclComm comm) override;
  NcclResult Abort(NcclComm comm) override;
  NcclResult Register(NcclComm comm, void* buffer, size_t bytes, void** handle) override;
  NcclResult Deregister(NcclComm comm, void* handle) override;
  NcclResult AllReduce(const void* send, void* receive, size_t count, DType type, NcclComm comm,
                       cudaStream_t stream) override;
  NcclResult ReduceScatter(const void* send, void* receive, size_t count, DType type, NcclComm comm,
                           cudaStream_t stream) override;
  NcclResult AllGather(const void* send, void* receive, size_t count, DType type, NcclComm comm,
                       cudaStream_t stream) override;
  NcclResult Send(const void* send, size_t count, DType type, int peer, NcclComm comm,
                  cudaStream_t stream) override;
  NcclResult Receive(void* receive, size_t count, DType type, int peer, NcclComm comm,
                     cudaStream_t stream) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  std::string ErrorString(NcclResult result) override;
  std::string LastError(NcclComm comm) override;

 private:
  struct Message {
    NcclComm comm;
    int peer;
    const void* send;
    void* receive;
    size_t bytes;
  };

  // Notes the call; what is wrong with it, or kSuccess.
  NcclResult Begin(const std::string& name, NcclComm comm);
  NcclResult MakeMessages();
  // The call's result: under way where there is a lag.
  NcclResult Lag(NcclComm comm);
  NcclComm Add(const std::string& name, int ranks, int rank);
  NcclResult Sum(NcclComm comm, void* receive, size_t count, DType type);
  bool Ready(NcclComm comm);
  void Remove(NcclComm comm);

  FakeNcclCluster& cluster_;
  std::set<NcclComm> alive_;
  bool grouped_ = false;
  std::vector<Message> messages_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_FAKE_NCCL_H_
