#include "engine/runtime/gpu/communicators/testing/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/comm/in_process.h"

// As it is declared by NCCL.
struct ncclComm {
  std::string name;
  int ranks = 0;
  int rank = 0;
  milepost::runtime::NcclComm parent = nullptr;         // that it was split from
  std::unique_ptr<milepost::comm::Communicator> group;  // once all ranks are here
  int under_way = 0;                                    // so many more polls
  int splits = 0;                                       // so far
  std::string splitting;                                // name of the split under way
  milepost::runtime::NcclComm* child = nullptr;         // its result
};

namespace milepost::runtime {
namespace {

constexpr int kForEver = std::numeric_limits<int>::max();

}  // namespace

void FakeNcclCluster::Join(const std::string& name, int ranks, int rank) {
  const std::lock_guard lock(mutex_);
  Joining& joining = joining_[name];
  joining.ranks = ranks;
  joining.here.insert(rank);
  if (static_cast<int>(joining.here.size()) == ranks) {
    joining.members = comm::MakeInProcessGroup(ranks);
  }
}

bool FakeNcclCluster::Complete(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const Joining& joining = joining_[name];
  return static_cast<int>(joining.here.size()) == joining.ranks;
}

std::unique_ptr<comm::Communicator> FakeNcclCluster::Take(const std::string& name, int rank) {
  const std::lock_guard lock(mutex_);
  return std::move(joining_[name].members[rank]);
}

void FakeNcclCluster::AskSplit(const std::string& name, int ranks, int rank, int color, int key) {
  const std::lock_guard lock(mutex_);
  Splitting& splitting = splitting_[name];
  splitting.ranks = ranks;
  splitting.asked[rank] = {color, key};
}

bool FakeNcclCluster::SplitDone(const std::string& name, int rank, Part* part) {
  const std::lock_guard lock(mutex_);
  const Splitting& splitting = splitting_[name];
  if (static_cast<int>(splitting.asked.size()) < splitting.ranks) return false;
  const auto [color, key] = splitting.asked.at(rank);
  if (color == kNcclNoColor) return true;
  *part = {.name = absl::StrCat(name, " color ", color)};
  for (const auto& [other, asked] : splitting.asked) {
    if (asked.first != color) continue;
    ++part->ranks;
    part->rank += asked.second < key ? 1 : 0;
  }
  return true;
}

void FakeNcclCluster::Post(const std::string& group, int from, int to, std::string bytes) {
  const std::lock_guard lock(mutex_);
  lanes_[{group, from, to}].push_back(std::move(bytes));
  changed_.notify_all();
}

bool FakeNcclCluster::Receive(const std::string& group, int from, int to, std::string* bytes) {
  std::unique_lock lock(mutex_);
  std::deque<std::string>& lane = lanes_[{group, from, to}];
  if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !lane.empty(); })) {
    return false;
  }
  *bytes = std::move(lane.front());
  lane.pop_front();
  return true;
}

FakeNccl::~FakeNccl() {
  for (NcclComm comm : alive_) delete comm;
}

NcclResult FakeNccl::Begin(const std::string& name, NcclComm comm) {
  calls.push_back(name);
  if (alive_.count(comm) == 0) {
    misuse.push_back(absl::StrCat(name, " of a communicator that is gone"));
    return NcclResult::kInvalidArgument;
  }
  if ((comm->under_way > 0 || comm->group == nullptr) && !grouped_) {
    misuse.push_back(absl::StrCat(name, " of a communicator that is under way"));
    return NcclResult::kInvalidUsage;
  }
  const auto result = results.find(name);
  return result == results.end() ? NcclResult::kSuccess : result->second;
}

NcclResult FakeNccl::Lag(NcclComm comm) {
  comm->under_way = stuck ? kForEver : lag;
  return comm->under_way > 0 ? NcclResult::kInProgress : NcclResult::kSuccess;
}

NcclComm FakeNccl::Add(const std::string& name, int ranks, int rank) {
  cluster_.Join(name, ranks, rank);
  auto* comm = new ncclComm{.name = name, .ranks = ranks, .rank = rank};
  alive_.insert(comm);
  Lag(comm);
  return comm;
}

// Whether all of its ranks are there.
bool FakeNccl::Ready(NcclComm comm) {
  if (comm->group != nullptr) return true;
  if (!cluster_.Complete(comm->name)) return false;
  comm->group = cluster_.Take(comm->name, comm->rank);
  return true;
}

void FakeNccl::Remove(NcclComm comm) {
  alive_.erase(comm);
  for (NcclComm other : alive_) {
    if (other->parent == comm) misuse.push_back("the world went before a set of it");
  }
  delete comm;
}

NcclResult FakeNccl::GetVersion(int* version_out) {
  *version_out = version;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GetUniqueId(NcclId* id) {
  calls.push_back("unique id");
  if (results.count("unique id") > 0) return results["unique id"];
  static std::atomic<int> ids{0};
  const std::string text = absl::StrCat("group ", ++ids);
  id->fill(0);
  std::copy(text.begin(), text.end(), id->begin());
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::InitRank(NcclComm* comm, int ranks, const NcclId& id, int rank) {
  calls.push_back("init");
  if (results.count("init") > 0) return results["init"];
  *comm = Add(id.data(), ranks, rank);
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::Split(NcclComm parent, int color, int key, NcclComm* child) {
  const NcclResult begun = Begin("split", parent);
  if (begun != NcclResult::kSuccess) return begun;
  splits.push_back(absl::StrCat("color ", color, ", key ", key));
  parent->splitting = absl::StrCat(parent->name, " split ", parent->splits++);
  parent->child = child;
  cluster_.AskSplit(parent->splitting, parent->ranks, parent->rank, color, key);
  Lag(parent);
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::AsyncError(NcclComm comm, NcclResult* out) {
  if (alive_.count(comm) == 0) {
    misuse.push_back("polled a communicator that is gone");
    return NcclResult::kInvalidArgument;
  }
  *out = state;
  if (*out != NcclResult::kSuccess) return NcclResult::kSuccess;
  *out = NcclResult::kInProgress;
  if (comm->under_way > 0) {
    if (comm->under_way != kForEver) --comm->under_way;
    return NcclResult::kSuccess;
  }
  if (!Ready(comm)) return NcclResult::kSuccess;
  if (comm->child != nullptr) {
    FakeNcclCluster::Part part;
    if (!cluster_.SplitDone(comm->splitting, comm->rank, &part)) return NcclResult::kSuccess;
    NcclComm child = part.ranks == 0 ? nullptr : Add(part.name, part.ranks, part.rank);
    if (child != nullptr) child->parent = comm;
    *std::exchange(comm->child, nullptr) = child;
  }
  *out = NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Finalize(NcclComm comm) {
  const NcclResult begun = Begin("finalize", comm);
  return begun == NcclResult::kSuccess ? Lag(comm) : begun;
}

NcclResult FakeNccl::Destroy(NcclComm comm) {
  const NcclResult begun = Begin("destroy", comm);
  if (begun == NcclResult::kSuccess) Remove(comm);
  return begun;
}

NcclResult FakeNccl::Abort(NcclComm comm) {
  calls.push_back("abort");
  if (alive_.count(comm) == 0) {
    misuse.push_back("aborted a communicator that is gone");
    return NcclResult::kInvalidArgument;
  }
  Remove(comm);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Register(NcclComm comm, void*, size_t, void** handle) {
  const NcclResult begun = Begin("register", comm);
  if (begun == NcclResult::kSuccess) *handle = comm;
  return begun;
}

NcclResult FakeNccl::Deregister(NcclComm comm, void* handle) {
  if (handle != comm) misuse.push_back("deregistered what was not registered");
  return Begin("deregister", comm);
}

NcclResult FakeNccl::Sum(NcclComm comm, void* receive, size_t count, DType type) {
  absl::Status status = absl::InvalidArgumentError("no sums of this type");
  if (type == DType::kF32) {
    status = comm->group->AllReduce(absl::MakeSpan(static_cast<float*>(receive), count));
  } else if (type == DType::kF64) {
    status = comm->group->AllReduce(absl::MakeSpan(static_cast<double*>(receive), count));
  } else if (type == DType::kBf16) {
    std::vector<float> scratch(count / comm->ranks);
    status = comm->group->AllReduceElementsBf16(receive, count, scratch.data());
  }
  return status.ok() ? Lag(comm) : NcclResult::kRemoteError;
}

NcclResult FakeNccl::AllReduce(const void* send, void* receive, size_t count, DType type,
                               NcclComm comm, cudaStream_t) {
  const NcclResult begun = Begin("all-reduce", comm);
  if (begun != NcclResult::kSuccess || stuck) return stuck ? Lag(comm) : begun;
  if (send != receive) std::memcpy(receive, send, count * ByteSize(type));
  return Sum(comm, receive, count, type);
}

NcclResult FakeNccl::ReduceScatter(const void* send, void* receive, size_t count, DType type,
                                   NcclComm comm, cudaStream_t) {
  const NcclResult begun = Begin("reduce-scatter", comm);
  if (begun != NcclResult::kSuccess || stuck) return stuck ? Lag(comm) : begun;
  const size_t bytes = count * ByteSize(type);
  std::string all(static_cast<const char*>(send), bytes * comm->ranks);
  const NcclResult summed = Sum(comm, all.data(), count * comm->ranks, type);
  std::memcpy(receive, all.data() + bytes * comm->rank, bytes);
  return summed;
}

NcclResult FakeNccl::AllGather(const void* send, void* receive, size_t count, DType type,
                               NcclComm comm, cudaStream_t) {
  const NcclResult begun = Begin("all-gather", comm);
  if (begun != NcclResult::kSuccess || stuck) return stuck ? Lag(comm) : begun;
  const size_t bytes = count * ByteSize(type);
  std::string all(bytes * comm->ranks, '\0');
  std::memcpy(all.data() + bytes * comm->rank, send, bytes);
  if (!comm->group->AllGather(all.data(), all.size()).ok()) return NcclResult::kRemoteError;
  std::memcpy(receive, all.data(), all.size());
  return Lag(comm);
}

NcclResult FakeNccl::Send(const void* send, size_t count, DType type, int peer, NcclComm comm,
                          cudaStream_t) {
  const NcclResult begun = Begin("send", comm);
  if (begun != NcclResult::kSuccess) return begun;
  messages_.push_back({comm, peer, send, nullptr, count * ByteSize(type)});
  return grouped_ ? NcclResult::kInProgress : MakeMessages();
}

NcclResult FakeNccl::Receive(void* receive, size_t count, DType type, int peer, NcclComm comm,
                             cudaStream_t) {
  const NcclResult begun = Begin("receive", comm);
  if (begun != NcclResult::kSuccess) return begun;
  messages_.push_back({comm, peer, nullptr, receive, count * ByteSize(type)});
  return grouped_ ? NcclResult::kInProgress : MakeMessages();
}

NcclResult FakeNccl::GroupStart() {
  calls.push_back("group start");
  if (std::exchange(grouped_, true)) misuse.push_back("a group within a group");
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GroupEnd() {
  calls.push_back("group end");
  if (!std::exchange(grouped_, false)) misuse.push_back("the end of no group");
  return MakeMessages();
}

NcclResult FakeNccl::MakeMessages() {
  const std::vector<Message> messages = std::exchange(messages_, {});
  for (const Message& m : messages) {
    if (m.send == nullptr) continue;
    std::string bytes(static_cast<const char*>(m.send), m.bytes);
    cluster_.Post(m.comm->name, m.comm->rank, m.peer, std::move(bytes));
  }
  for (const Message& m : messages) {
    if (m.receive == nullptr) continue;
    std::string bytes;
    if (!cluster_.Receive(m.comm->name, m.peer, m.comm->rank, &bytes) || bytes.size() != m.bytes) {
      return NcclResult::kRemoteError;
    }
    std::memcpy(m.receive, bytes.data(), m.bytes);
  }
  return messages.empty() ? NcclResult::kSuccess : Lag(messages[0].comm);
}

std::string FakeNccl::ErrorString(NcclResult result) {
  return absl::StrCat("result ", static_cast<int>(result));
}

std::string FakeNccl::LastError(NcclComm) { return "the last error"; }

}  // namespace milepost::runtime
