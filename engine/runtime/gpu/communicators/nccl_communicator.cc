#include "engine/runtime/gpu/communicators/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/collectives.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/runtime/executor/shard_ranks.h"

namespace milepost::runtime {
namespace {

using Kind = Collective::Kind;

constexpr absl::Duration kShortestPoll = absl::Microseconds(5);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(1);

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status SameVersions(const std::vector<int32_t>& versions) {
  std::map<int32_t, std::vector<int>> ranks;
  for (size_t rank = 0; rank < versions.size(); ++rank) {
    ranks[versions[rank]].push_back(static_cast<int>(rank));
  }
  if (ranks.size() == 1) return absl::OkStatus();
  std::vector<std::string> parts;
  for (const auto& [version, with] : ranks) {
    parts.push_back(absl::StrCat(VersionText(version), " on rank", with.size() > 1 ? "s " : " ",
                                 absl::StrJoin(with, ", ")));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks have different versions of NCCL: ", absl::StrJoin(parts, "; "),
                   "; install the same one on all hosts"));
}

// What rank 0 tells the others.
struct IdMessage {
  char made = 0;
  NcclId id = {};
};

// Tensor ranks that have the same heads of keys, in whichever stages; 1: none do.
int SharersOf(const plan::StepPlan& plan) {
  int sharers = 1;
  for (const std::vector<plan::FlatGroup>* groups : {&plan.groups, &plan.elsewhere}) {
    for (const plan::FlatGroup& group : *groups) sharers = std::max(sharers, group.sharers);
  }
  return sharers;
}

// A stage does not know what the others call: all that stages may.
std::vector<comm::RankSet> RankSetsOfStages(const plan::StepPlan& plan, int rank) {
  const plan::PlanOptions& options = plan.options;
  const int data_rank = options.DataRank(rank), tensor_rank = options.TensorRank(rank);
  const auto among = [&](const comm::RankSet& data_ranks) {
    return AmongAllRanks(options, data_ranks, rank);
  };
  std::vector<comm::RankSet> sets;
  const auto add = [&](const comm::RankSet& set) {
    if (set.count == 1 || set.count == options.AllRanks()) return;
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
  };
  const int shards = options.Shards();
  add(IslandRanks(options, rank));
  add(AmongIslands(options, rank));
  add(shards == 1 ? DataRanks(options, rank) : among(ShardRanks(options, data_rank)));
  add(among({data_rank % shards, options.Replicas(), shards}));
  add(among(ContextRanks(options, data_rank)));
  add(among(ExpertRanks(options, data_rank)));
  if (const int expert = options.expert; expert > 1) {
    add(among({data_rank % expert, options.world / expert, expert}));
  }
  add({rank - tensor_rank, options.tensor, 1});
  const int sharers = SharersOf(plan);
  add({rank - tensor_rank % sharers, sharers, 1});
  const comm::RankSet outer = OuterStages(options, rank);
  if (outer.count == options.AllRanks()) return sets;
  const bool in_it = options.stage == 0 || options.IsLastStage();
  sets.push_back(in_it ? outer : comm::RankSet{});
  return sets;
}

}  // namespace

absl::StatusOr<std::vector<comm::RankSet>> RankSetsOf(const plan::StepPlan& plan, int rank,
                                                      plan::Stream stream) {
  std::vector<comm::RankSet> sets;
  if (stream != plan::Stream::kCommunication) return sets;  // transfers are among all ranks
  if (plan.options.pipeline > 1) return RankSetsOfStages(plan, rank);
  for (const plan::Program* program : plan.Programs()) {
    for (const plan::PlannedOp& op : program->ops) {
      MP_ASSIGN_OR_RETURN(const auto call, CollectiveOf(plan, *program, op, rank));
      if (!call.has_value() || call->among.count == plan.options.AllRanks()) continue;
      if (std::find(sets.begin(), sets.end(), call->among) != sets.end()) continue;
      sets.push_back(call->among);
    }
  }
  return sets;
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    const NcclOptions& options, NcclApi& nccl, comm::Communicator& ranks) {
  auto communicator = std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(options, nccl, ranks.rank(), ranks.world()));
  MP_RETURN_IF_ERROR(communicator->CheckVersions(ranks));
  MP_RETURN_IF_ERROR(communicator->Connect(ranks));
  return communicator;
}

absl::Status NcclCommunicator::CheckVersions(comm::Communicator& ranks) {
  int version = 0;
  const NcclResult result = nccl_.GetVersion(&version);
  std::vector<int32_t> versions(world_);
  versions[rank_] = result == NcclResult::kSuccess ? version : 0;
  MP_RETURN_IF_ERROR(ranks.AllGather(versions.data(), versions.size() * sizeof(int32_t)));
  return SameVersions(versions);
}

absl::Status NcclCommunicator::Connect(comm::Communicator& ranks) {
  IdMessage message;
  if (rank_ == 0) message.made = nccl_.GetUniqueId(&message.id) == NcclResult::kSuccess ? 1 : 0;
  MP_RETURN_IF_ERROR(ranks.Broadcast(&message, sizeof(message), /*root=*/0));
  if (message.made == 0) {
    return absl::UnavailableError(absl::StrCat("NCCL made no unique id on rank 0: ",
                                               rank_ == 0 ? nccl_.LastError(nullptr) : ""));
  }
  const absl::Time deadline = absl::Now() + options_.init_timeout;
  links_.push_back(std::make_unique<Link>(Link{.set = {0, world_, 1}}));
  NcclComm* comm = &links_[0]->comm;
  MP_RETURN_IF_ERROR(Do(comm, "connecting the ranks", deadline,
                        [&] { return nccl_.InitRank(comm, world_, message.id, rank_); }));
  for (const comm::RankSet& set : options_.sets) MP_RETURN_IF_ERROR(SplitOff(set, deadline));
  return absl::OkStatus();
}

// The parent is in progress until the child is there; then the child connects. Every rank of the
// parent takes part, also one that is not in the set.
absl::Status NcclCommunicator::SplitOff(const comm::RankSet& set, absl::Time deadline) {
  const bool in_it = set.count > 0;
  const int color = in_it ? set.first : kNcclNoColor;
  auto link = std::make_unique<Link>(Link{.set = set});
  NcclComm* parent = &links_[0]->comm;
  NcclComm* child = &link->comm;
  {
    const std::lock_guard lock(mutex_);
    links_.push_back(std::move(link));
  }
  const char* what = "connecting a set of ranks";
  MP_RETURN_IF_ERROR(Do(parent, what, deadline,
                        [&] { return nccl_.Split(*parent, color, set.IndexOf(rank_), child); }));
  if (in_it) return Settle(child, what, deadline);
  const std::lock_guard lock(mutex_);
  links_.pop_back();
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Do(NcclComm* comm, const char* what, absl::Time deadline,
                                  NcclCall call) {
  {
    const std::lock_guard lock(mutex_);
    MP_RETURN_IF_ERROR(failure_);
    const NcclResult result = call();
    if (result == NcclResult::kSuccess) return absl::OkStatus();
    if (result != NcclResult::kInProgress) return FailLocked(StatusOf(result, *comm, what));
  }
  return Settle(comm, what, deadline);
}

absl::Status NcclCommunicator::Settle(NcclComm* comm, const char* what, absl::Time deadline) {
  absl::Duration look = kShortestPoll;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      MP_RETURN_IF_ERROR(failure_);  // aborted: *comm is gone
      const NcclResult state = StateOf(*comm);
      if (state == NcclResult::kSuccess) return absl::OkStatus();
      if (state != NcclResult::kInProgress) return FailLocked(StatusOf(state, *comm, what));
      if (options_.cancelled && options_.cancelled()) {
        return FailLocked(absl::AbortedError(absl::StrCat("cancelled while ", what)));
      }
      if (absl::Now() > deadline) {
        return FailLocked(absl::DeadlineExceededError(absl::StrCat(
            "NCCL: ", what, ": not done in time; some rank is silent, or hosts do not ",
            "reach each other (NCCL_SOCKET_IFNAME says over which interface)")));
      }
    }
    absl::SleepFor(look);
    look = std::min(look * 1.5, kLongestPoll);
  }
}

NcclResult NcclCommunicator::StateOf(NcclComm comm) {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult result = nccl_.AsyncError(comm, &state);
  return result == NcclResult::kSuccess ? state : result;
}

absl::Status NcclCommunicator::StatusOf(NcclResult result, NcclComm comm, absl::string_view what) {
  const std::string text =
      absl::StrCat("NCCL: ", what, ": ", nccl_.ErrorString(result), ": ", nccl_.LastError(comm));
  switch (result) {
    case NcclResult::kRemoteError:
      return absl::UnavailableError(absl::StrCat("a peer is gone: ", text));
    case NcclResult::kInvalidUsage:
      return absl::FailedPreconditionError(
          absl::StrCat(text, "; every rank needs a GPU of its own"));
    default:
      return absl::InternalError(absl::StrCat(text, "; NCCL_DEBUG=INFO says more"));
  }
}

// The first failure stays. What is under way anywhere must not wait for this rank.
absl::Status NcclCommunicator::FailLocked(const absl::Status& status) {
  if (failure_.ok()) failure_ = status;
  AbortLocked();
  return failure_;
}

// Sets before the world that they were split from, as NCCL wants it.
void NcclCommunicator::AbortLocked() {
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    NcclComm comm = std::exchange((*link)->comm, nullptr);
    if (comm != nullptr) nccl_.Abort(comm);
  }
}

void NcclCommunicator::Abort(absl::string_view reason) {
  const std::lock_guard lock(mutex_);
  FailLocked(absl::AbortedError(reason)).IgnoreError();
}

absl::Status NcclCommunicator::Health() {
  const std::lock_guard lock(mutex_);
  MP_RETURN_IF_ERROR(failure_);
  for (const auto& link : links_) {
    const NcclResult state = StateOf(link->comm);
    if (state == NcclResult::kSuccess || state == NcclResult::kInProgress) continue;
    return FailLocked(StatusOf(state, link->comm, "a call under way"));
  }
  return absl::OkStatus();
}

NcclCommunicator::~NcclCommunicator() {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok() || !CloseInOrder()) AbortLocked();
}

bool NcclCommunicator::CloseInOrder() {
  const absl::Time deadline = absl::Now() + options_.close_timeout;
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    NcclComm& comm = (*link)->comm;
    if (comm == nullptr) return false;
    if ((*link)->registration != nullptr) nccl_.Deregister(comm, (*link)->registration);
    NcclResult state = nccl_.Finalize(comm);
    while (state == NcclResult::kInProgress && absl::Now() < deadline) {
      absl::SleepFor(kLongestPoll);
      state = StateOf(comm);
    }
    if (state != NcclResult::kSuccess) return false;
    nccl_.Destroy(std::exchange(comm, nullptr));
  }
  return true;
}

std::string NcclCommunicator::Register(char* memory, int64_t bytes) {
  for (const auto& link : links_) {
    NcclResult result = NcclResult::kInternalError;
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return std::string(failure_.message());
      result = nccl_.Register(link->comm, memory, static_cast<size_t>(bytes), &link->registration);
      if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
        link->registration = nullptr;
        return absl::StrCat("NCCL copies through buffers of its own, since it cannot register ",
                            bytes, " bytes of GPU memory: ", nccl_.ErrorString(result));
      }
    }
    const absl::Status settled =
        Settle(&link->comm, "registering memory", absl::Now() + options_.enqueue_timeout);
    if (!settled.ok()) return std::string(settled.message());
  }
  return "";
}

absl::StatusOr<NcclCommunicator::Link*> NcclCommunicator::LinkOf(const comm::RankSet& set) {
  for (const auto& link : links_) {
    if (link->set == set) return link.get();
  }
  return absl::InternalError(absl::StrCat("no communicator for ", set.count, " ranks from ",
                                          set.first, " on, every ", set.stride));
}

absl::Status NcclCommunicator::Enqueue(const Collective& call, char* arena, void* scratch,
                                       cudaStream_t stream) {
  MP_ASSIGN_OR_RETURN(Link * link, LinkOf(call.among));
  const bool shared_out = (call.kind != Kind::kAllReduce || call.rounded) && !call.IsTransfer();
  if (shared_out && call.elements % call.among.count != 0) {
    return absl::InternalError(
        absl::StrCat(call.elements, " elements among ", call.among.count, " ranks"));
  }
  const Bound bound = {.call = call,
                       .link = *link,
                       .data = arena + call.offset,
                       .own = call.among.IndexOf(rank_),
                       .stream = stream,
                       .deadline = absl::Now() + options_.enqueue_timeout};
  const absl::Status status =
      call.rounded ? EnqueueRounded(bound, static_cast<char*>(scratch)) : EnqueuePlain(bound);
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  return FailLocked(status);
}

absl::Status NcclCommunicator::EnqueuePlain(const Bound& b) {
  const Collective& call = b.call;
  NcclComm& comm = b.link.comm;
  const auto shard = static_cast<size_t>(call.shard_elements());
  char* mine = b.data + call.shard_elements() * b.own * ByteSize(call.dtype);
  switch (call.kind) {
    case Kind::kAllReduce:
      return Do(&comm, "all-reduce", b.deadline, [&] {
        return nccl_.AllReduce(b.data, b.data, static_cast<size_t>(call.elements), call.dtype, comm,
                               b.stream);
      });
    case Kind::kReduceScatter:
      return Do(&comm, "reduce-scatter", b.deadline, [&] {
        return nccl_.ReduceScatter(b.data, mine, shard, call.dtype, comm, b.stream);
      });
    case Kind::kAllGather:
      return Do(&comm, "all-gather", b.deadline,
                [&] { return nccl_.AllGather(mine, b.data, shard, call.dtype, comm, b.stream); });
    case Kind::kSend:
      return Do(&comm, "send", b.deadline, [&] {
        return nccl_.Send(b.data, static_cast<size_t>(call.elements), call.dtype, call.peer, comm,
                          b.stream);
      });
    case Kind::kReceive:
      return Do(&comm, "receive", b.deadline, [&] {
        return nccl_.Receive(b.data, static_cast<size_t>(call.elements), call.dtype, call.peer,
                             comm, b.stream);
      });
    case Kind::kExchange:
      return Exchange(
          &comm, call.among,
          TransfersOf(call, rank_, b.data + call.sent.offset, b.data + call.received.offset),
          b.stream, b.deadline);
    case Kind::kExchangeRows:
      return absl::InternalError("rows are exchanged by EnqueueRows");
  }
  return absl::InternalError("a kind of call that there is not");
}

// Pieces are received where they lie in the values, which are rounded by then: the first half of
// what rank r's piece took in fp32. The own piece's place stays free for the sum.
absl::Status NcclCommunicator::EnqueueRounded(const Bound& b, char* scratch) {
  const Collective& call = b.call;
  const int64_t shard = call.shard_elements();
  auto* values = reinterpret_cast<float*>(b.data);
  auto* rounded = reinterpret_cast<bf16*>(scratch);
  bf16* mine = rounded + shard * b.own;
  MP_RETURN_IF_ERROR(kernels::cuda::Cast(values, call.elements, rounded, b.stream));
  std::vector<comm::Communicator::Transfer> transfers;
  for (int peer = 0; peer < call.among.count; ++peer) {
    if (peer == b.own) continue;
    const auto bytes = static_cast<size_t>(2 * shard);
    transfers.push_back({call.among.RankAt(peer), scratch + 2 * shard * peer, bytes,
                         b.data + 4 * shard * peer, bytes});
  }
  NcclComm& comm = b.link.comm;
  MP_RETURN_IF_ERROR(Exchange(&comm, call.among, transfers, b.stream, b.deadline));
  const kernels::cuda::RoundedPieces pieces = {.received = reinterpret_cast<const bf16*>(b.data),
                                               .stride = 2 * shard,
                                               .mine = mine,
                                               .own = b.own,
                                               .ranks = call.among.count};
  if (call.kind == Kind::kReduceScatter) {
    return kernels::cuda::SumInRankOrder(pieces, shard, values + shard * b.own, b.stream);
  }
  MP_RETURN_IF_ERROR(kernels::cuda::SumInRankOrder(pieces, shard, mine, b.stream));
  MP_RETURN_IF_ERROR(Do(&comm, "all-gather of rounded sums", b.deadline, [&] {
    return nccl_.AllGather(mine, rounded, static_cast<size_t>(shard), DType::kBf16, comm, b.stream);
  }));
  return kernels::cuda::Cast(rounded, call.elements, values, b.stream);
}

// As one call. Both sides know where there is nothing to send.
absl::Status NcclCommunicator::Exchange(NcclComm* comm, const comm::RankSet& among,
                                        absl::Span<const comm::Communicator::Transfer> transfers,
                                        cudaStream_t stream, absl::Time deadline) {
  return Do(comm, "exchange", deadline, [&] {
    NcclResult failed = nccl_.GroupStart();
    const auto keep = [&](NcclResult result) {
      const bool fine = result == NcclResult::kSuccess || result == NcclResult::kInProgress;
      if (!fine && failed == NcclResult::kSuccess) failed = result;
    };
    for (const comm::Communicator::Transfer& t : transfers) {
      const int peer = among.IndexOf(t.peer);
      if (t.send_bytes > 0) {
        keep(nccl_.Send(t.send, t.send_bytes, DType::kU8, peer, *comm, stream));
      }
      if (t.receive_bytes > 0) {
        keep(nccl_.Receive(t.receive, t.receive_bytes, DType::kU8, peer, *comm, stream));
      }
    }
    const NcclResult ended = nccl_.GroupEnd();
    return failed == NcclResult::kSuccess ? ended : failed;
  });
}

// What stays is a message to itself.
absl::Status NcclCommunicator::EnqueueRows(const RowTransfers& moves, cudaStream_t stream) {
  MP_ASSIGN_OR_RETURN(Link * link, LinkOf(moves.among));
  std::vector<comm::Communicator::Transfer> transfers = moves.transfers;
  const auto own = static_cast<size_t>(moves.stays.bytes);
  transfers.push_back({rank_, moves.stays.from, own, moves.stays.to, own});
  const absl::Status status =
      Exchange(&link->comm, moves.among, transfers, stream, absl::Now() + options_.enqueue_timeout);
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  return FailLocked(status);
}

}  // namespace milepost::runtime
