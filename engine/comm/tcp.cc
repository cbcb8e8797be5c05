#include "engine/comm/tcp.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/poll.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "engine/comm/in_process.h"
#include "engine/comm/reduce.h"
#include "engine/comm/tcp_connect.h"

namespace milepost::comm {
namespace {

// A reduce-scatter is received in pieces of this size into a ring of kRing pieces per peer: small
// enough that the sum finds them in the cache.
constexpr size_t kMaxPieceBytes = 256 << 10;
constexpr size_t kMinPieceBytes = 16 << 10;
constexpr size_t kScratchBytes = 4 << 20;
constexpr size_t kRing = 2;
// One system call's worth: sending and receiving take turns.
constexpr size_t kTurnBytes = 256 << 10;
// Below this an all-reduce sends everything to everyone: one exchange instead of two in a row.
constexpr size_t kSmallBytes = 16 << 10;
constexpr uint64_t kGoodbye = 0x65796264'6f6f6721;

size_t PieceBytes(int world) {
  const size_t piece = kScratchBytes / (kRing * std::max(1, world - 1));
  return std::clamp(piece, kMinPieceBytes, kMaxPieceBytes) / 64 * 64;
}

// What this rank sends to and receives from one peer in one collective: in either direction
// nothing, or the call's tag and then the payload.
struct Flow {
  int peer = 0;
  int index = 0;  // the peer's in the call's set of ranks

  const char* out = nullptr;
  size_t out_bytes = 0;  // the tag included; 0: nothing is sent
  size_t out_done = 0;
  uint64_t out_tag = 0;

  char* in = nullptr;
  size_t in_bytes = 0;  // the tag included; 0: nothing is received
  size_t in_done = 0;
  size_t in_limit = 0;  // receive no further than this for now
  size_t ring = 0;      // `in` is a ring of so many bytes; 0: as long as the payload
  uint64_t in_tag = 0;  // that came
  uint64_t expected_tag = 0;

  bool sending() const { return out_done < out_bytes; }
  bool receiving() const { return in_done < in_bytes; }
  bool can_receive() const { return in_done < std::min(in_bytes, in_limit); }
};
constexpr size_t kTag = sizeof(uint64_t);

class TcpCommunicator : public Communicator {
 public:
  TcpCommunicator(int rank, std::vector<UniqueFd> sockets, absl::Duration timeout)
      : Communicator(rank, sockets.size()),
        sockets_(std::move(sockets)),
        timeout_(timeout),
        piece_bytes_(PieceBytes(world())),
        scratch_(TcpScratchBytes(world())),
        sent_(world()),
        received_(world()),
        left_(world()) {
    flows_.reserve(world());
    polls_.resize(world());
    sources_.resize(world());
  }

  ~TcpCommunicator() override {
    if (!Health().ok()) return;
    // So that ranks still in the last collective with others do not take this one for dead. There
    // is room for it: everything sent before has been received or is being received.
    for (const UniqueFd& fd : sockets_) {
      if (fd.ok()) send(fd.get(), &kGoodbye, sizeof(kGoodbye), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  void SetTimeout(absl::Duration timeout) override { timeout_ = timeout; }
  absl::Duration timeout() const override { return timeout_; }

  void Abort(absl::string_view reason) override { Fail(absl::AbortedError(reason)).IgnoreError(); }

 protected:
  absl::Status Health() override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  absl::Status DoAllReduce(void* values, size_t count, ElementType type, ReduceOp op,
                           const RankSet& set, int64_t* sent) override {
    const size_t bytes = count * ElementBytes(type);
    char* data = static_cast<char*>(values);
    Begin('r', bytes, static_cast<int>(type) * 16 + static_cast<int>(op), set);
    if (bytes <= kSmallBytes) return ReduceWhole(data, count, type, op, sent);
    MP_RETURN_IF_ERROR(ReduceShards(data, count, type, op, nullptr, sent));
    Begin('g', bytes, static_cast<int>(type), set);
    return GatherShards(data, count, ElementBytes(type), sent);
  }

  absl::Status DoReduceScatter(float* buffer, size_t count, const RankSet& set,
                               int64_t* sent) override {
    Begin('s', count * sizeof(float), 0, set);
    return ReduceShards(reinterpret_cast<char*>(buffer), count, ElementType::kFloat, ReduceOp::kSum,
                        nullptr, sent);
  }

  absl::Status DoReduceScatterBf16(char* data, size_t count, float* out, const RankSet& set,
                                   int64_t* sent) override {
    Begin('h', count * ElementBytes(ElementType::kBf16), 0, set);
    return ReduceShards(data, count, ElementType::kBf16, ReduceOp::kSum, out, sent);
  }

  absl::Status DoAllGather(char* buffer, size_t bytes, const RankSet& set, int64_t* sent) override {
    Begin('a', bytes, 0, set);
    return GatherShards(buffer, bytes, 1, sent);
  }

  absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) override {
    Begin('b', bytes, root, {0, world(), 1});
    if (rank() == root) {
      for (int i = 1; i < world(); ++i) Send(AddFlow(i), buffer, bytes, sent);
    } else {
      Receive(AddFlow((root - rank() + world()) % world()), buffer, bytes);
    }
    return RunFlows([] {});
  }

  absl::Status DoExchange(absl::Span<const Transfer> transfers, const RankSet&,
                          int64_t* sent) override {
    Begin('x', 0, 0, {0, world(), 1});
    for (const Transfer& transfer : transfers) {
      Flow& flow = AddFlow((transfer.peer - rank() + world()) % world());
      if (transfer.send_bytes > 0) Send(flow, transfer.send, transfer.send_bytes, sent);
      if (transfer.receive_bytes > 0) Receive(flow, transfer.receive, transfer.receive_bytes);
    }
    return RunFlows([] {});
  }

  absl::Status DoSend(int peer, const char* data, size_t bytes, int64_t* sent) override {
    Begin('p', bytes, 0, {0, world(), 1});
    Send(AddFlow((peer - rank() + world()) % world()), data, bytes, sent);
    return RunFlows([] {});
  }

  absl::Status DoReceive(int peer, char* data, size_t bytes) override {
    Begin('p', bytes, 0, {0, world(), 1});
    Receive(AddFlow((peer - rank() + world()) % world()), data, bytes);
    return RunFlows([] {});
  }

 private:
  // ---- what a collective consists of ----

  // Tags tell calls apart: by how much has gone from a rank to another before, and by what they do.
  void Begin(char kind, size_t size, int detail, const RankSet& set) {
    kind_ = kind;
    bytes_ = size;
    set_ = set;
    own_ = set.IndexOf(rank());
    uint64_t hash = (size * 31 + static_cast<uint64_t>(kind)) * 31 + static_cast<uint64_t>(detail);
    call_ = static_cast<uint32_t>(hash * 0x9e3779b97f4a7c15u >> 32);
    ++calls_;
    deadline_ = SteadyNow() + timeout_;
    flows_.clear();
  }

  // With the i-th rank after this one in the set, 1 <= i < its count: not everyone begins with the
  // first.
  Flow& AddFlow(int i) {
    Flow& flow = flows_.emplace_back();
    flow.index = (own_ + i) % set_.count;
    flow.peer = set_.RankAt(flow.index);
    return flow;
  }

  uint64_t Tag(uint32_t number) const { return static_cast<uint64_t>(number) << 32 | call_; }

  void Send(Flow& flow, const char* data, size_t bytes, int64_t* sent) {
    flow.out = data;
    flow.out_bytes = kTag + bytes;
    flow.out_tag = Tag(++sent_[flow.peer]);
    *sent += bytes;
  }
  void Receive(Flow& flow, char* data, size_t bytes) {
    flow.in = data;
    flow.in_bytes = flow.in_limit = kTag + bytes;
    flow.expected_tag = Tag(++received_[flow.peer]);
  }

  char* Ring(const Flow& flow) {
    const int index = (flow.peer - rank() + world()) % world() - 1;
    return scratch_.data() + index * kRing * piece_bytes_;
  }

  absl::Status ReduceWhole(char* data, size_t count, ElementType type, ReduceOp op, int64_t* sent) {
    const size_t bytes = count * ElementBytes(type);
    sources_[own_] = data;
    for (int i = 1; i < set_.count; ++i) {
      Flow& flow = AddFlow(i);
      Send(flow, data, bytes, sent);
      Receive(flow, Ring(flow), bytes);
      sources_[flow.index] = Ring(flow);
    }
    MP_RETURN_IF_ERROR(RunFlows([] {}));
    ReduceInOrder(Sources(), data, count, type, op);
    return absl::OkStatus();
  }

  absl::Span<const char* const> Sources() const {
    return {sources_.data(), static_cast<size_t>(set_.count)};
  }

  // This rank's shard becomes the reduction over the set; kBf16: `sums` has it.
  absl::Status ReduceShards(char* data, size_t count, ElementType type, ReduceOp op, float* sums,
                            int64_t* sent) {
    const size_t element = ElementBytes(type);
    const auto begin = [&](int index) { return ShardBegin(count, index, set_.count) * element; };
    char* own = data + begin(own_);
    const size_t bytes = begin(own_ + 1) - begin(own_);
    for (int i = 1; i < set_.count; ++i) {
      Flow& flow = AddFlow(i);
      Send(flow, data + begin(flow.index), begin(flow.index + 1) - begin(flow.index), sent);
      Receive(flow, Ring(flow), bytes);
      flow.ring = kRing * piece_bytes_;
      flow.in_limit = kTag + flow.ring;
    }
    size_t reduced = 0;  // bytes of the own shard
    return RunFlows([&] {
      while (reduced < bytes) {
        const size_t piece = std::min(piece_bytes_, bytes - reduced);
        for (const Flow& flow : flows_) {
          if (flow.in_done < kTag + reduced + piece) return;
        }
        const size_t at = reduced % (kRing * piece_bytes_);
        for (Flow& flow : flows_) {
          sources_[flow.index] = Ring(flow) + at;
          flow.in_limit += piece;
        }
        sources_[own_] = own + reduced;
        char* out =
            sums == nullptr ? own + reduced : reinterpret_cast<char*>(sums + reduced / element);
        ReduceInOrder(Sources(), out, piece / element, type, op);
        reduced += piece;
      }
    });
  }

  absl::Status GatherShards(char* data, size_t count, size_t element, int64_t* sent) {
    const auto begin = [&](int index) { return ShardBegin(count, index, set_.count) * element; };
    for (int i = 1; i < set_.count; ++i) {
      Flow& flow = AddFlow(i);
      Send(flow, data + begin(own_), begin(own_ + 1) - begin(own_), sent);
      Receive(flow, data + begin(flow.index), begin(flow.index + 1) - begin(flow.index));
    }
    return RunFlows([] {});
  }

  // ---- moving bytes ----

  // Runs all flows to their end. `progress` is called after every round and may raise limits.
  template <typename Progress>
  absl::Status RunFlows(Progress progress) {
    while (true) {
      bool moved = false, left = false;
      for (Flow& flow : flows_) {
        absl::Status status = absl::OkStatus();
        if (flow.sending()) status = SendSome(flow, &moved);
        if (status.ok() && flow.can_receive()) status = ReceiveSome(flow, &moved);
        if (!status.ok()) return Fail(status);
        left |= flow.sending() || flow.receiving();
      }
      progress();
      if (!left) return Health();
      if (moved) continue;
      const absl::Status status = Wait();
      if (!status.ok()) return Fail(status);
    }
  }

  absl::Status SendSome(Flow& flow, bool* moved) {
    std::array<iovec, 2> parts;
    size_t n = 0;
    if (flow.out_done < kTag) {
      parts[n++] = {reinterpret_cast<char*>(&flow.out_tag) + flow.out_done, kTag - flow.out_done};
    }
    const size_t payload = std::max(flow.out_done, kTag) - kTag;
    const size_t bytes = std::min(kTurnBytes, flow.out_bytes - kTag - payload);
    if (bytes > 0) parts[n++] = {const_cast<char*>(flow.out) + payload, bytes};
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    const ssize_t sent = sendmsg(Fd(flow.peer), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return BrokenUnlessBusy(flow.peer);
    flow.out_done += sent;
    *moved = true;
    return absl::OkStatus();
  }

  absl::Status ReceiveSome(Flow& flow, bool* moved) {
    if (flow.in_done < kTag) {
      MP_RETURN_IF_ERROR(ReceiveInto(flow, reinterpret_cast<char*>(&flow.in_tag) + flow.in_done,
                                     kTag - flow.in_done, moved));
      if (flow.in_done < kTag) return absl::OkStatus();
      if (flow.in_tag == kGoodbye) return Gone(flow.peer, "it has left");
      if (flow.in_tag != flow.expected_tag) {
        return absl::InternalError(
            absl::StrCat("ranks ", rank(), " and ", flow.peer, " made different collective calls"));
      }
      if (!flow.can_receive()) return absl::OkStatus();
    }
    const size_t payload = flow.in_done - kTag;
    const size_t at = flow.ring == 0 ? payload : payload % flow.ring;
    size_t bytes =
        std::min({kTurnBytes, flow.in_bytes - flow.in_done, flow.in_limit - flow.in_done});
    if (flow.ring != 0) bytes = std::min(bytes, flow.ring - at);
    return ReceiveInto(flow, flow.in + at, bytes, moved);
  }

  absl::Status ReceiveInto(Flow& flow, char* data, size_t bytes, bool* moved) {
    const ssize_t received = recv(Fd(flow.peer), data, bytes, MSG_DONTWAIT);
    if (received == 0) return Gone(flow.peer, "it closed the connection");
    if (received < 0) return BrokenUnlessBusy(flow.peer);
    flow.in_done += received;
    *moved = true;
    return absl::OkStatus();
  }

  // Sleeps until a flow can go on; finds peers that died although no flow needs them now.
  absl::Status Wait() {
    for (int peer = 0; peer < world(); ++peer) {
      polls_[peer] = {left_[peer] ? -1 : Fd(peer), POLLRDHUP, 0};
    }
    for (const Flow& flow : flows_) {
      pollfd& entry = polls_[flow.peer];
      // A peer that sends its last bytes and leaves is read to the end, so no POLLRDHUP there.
      if (flow.can_receive()) entry = {Fd(flow.peer), POLLIN, 0};
      if (flow.sending()) entry = {Fd(flow.peer), static_cast<short>(entry.events | POLLOUT), 0};
    }
    const int ready =
        poll(polls_.data(), polls_.size(), PollTimeoutMillis(deadline_ - SteadyNow()));
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
    if (ready <= 0) {
      return SteadyNow() < deadline_ ? absl::OkStatus() : absl::DeadlineExceededError(Overdue());
    }
    for (int peer = 0; peer < world(); ++peer) {
      const pollfd& entry = polls_[peer];
      if (entry.revents == 0 || (entry.events & (POLLIN | POLLOUT)) != 0) continue;
      MP_RETURN_IF_ERROR(CheckClosed(peer));
    }
    return absl::OkStatus();
  }

  // A peer that closed its side while nothing is expected from it: fine after a goodbye, or when
  // there are bytes for a later call to read.
  absl::Status CheckClosed(int peer) {
    uint64_t next = 0;
    const ssize_t bytes = recv(Fd(peer), &next, sizeof(next), MSG_PEEK | MSG_DONTWAIT);
    if (bytes == 0) return Gone(peer, "it closed the connection");
    if (bytes < 0) return BrokenUnlessBusy(peer);
    left_[peer] = true;
    return absl::OkStatus();
  }

  static absl::string_view NameOf(char kind) {
    switch (kind) {
      case 'r':
      case 'g':
        return "an all-reduce";
      case 's':
      case 'h':
        return "a reduce-scatter";
      case 'a':
        return "an all-gather";
      case 'b':
        return "a broadcast";
      case 'p':
        return "a transfer";
      default:
        return "an exchange";
    }
  }

  std::string Overdue() const {
    std::vector<int> peers;
    for (const Flow& flow : flows_) {
      if (flow.sending() || flow.receiving()) peers.push_back(flow.peer);
    }
    std::sort(peers.begin(), peers.end());
    return absl::StrCat("rank ", rank(), " waited ", absl::FormatDuration(timeout_), " in ",
                        NameOf(kind_), " (collective ", calls_, ", of ", bytes_, " bytes) for rank",
                        peers.size() == 1 ? " " : "s ", absl::StrJoin(peers, ", "));
  }

  absl::Status BrokenUnlessBusy(int peer) const {
    if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
    return Gone(peer, std::strerror(errno));
  }
  static absl::Status Gone(int peer, absl::string_view how) {
    return absl::UnavailableError(absl::StrCat("rank ", peer, " is gone: ", how));
  }

  int Fd(int peer) const { return sockets_[peer].get(); }

  // The first failure stays and is returned. Closes the connections: a call in progress in another
  // thread wakes up, and peers notice at once.
  absl::Status Fail(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = status;
    for (const UniqueFd& fd : sockets_) {
      if (fd.ok()) shutdown(fd.get(), SHUT_RDWR);
    }
    return failure_;
  }

  const std::vector<UniqueFd> sockets_;  // by rank; the own one is empty
  absl::Duration timeout_;
  const size_t piece_bytes_;
  std::vector<char> scratch_;

  // Of the calling thread. Nothing is allocated during a call.
  int64_t calls_ = 0;
  uint32_t call_ = 0;  // of the current one: what it does
  absl::Time deadline_;
  std::vector<Flow> flows_;
  std::vector<pollfd> polls_;
  RankSet set_;                            // of the current call
  char kind_ = 'x';                        // of the call
  size_t bytes_ = 0;                       // of the whole buffer
  int own_ = 0;                            // this rank's index in it
  std::vector<const char*> sources_;       // by index in the set
  std::vector<uint32_t> sent_, received_;  // by peer: how much has gone there, and come from there
  std::vector<bool> left_;                 // closed, and nothing more to learn from that

  std::mutex mutex_;
  absl::Status failure_;
};

}  // namespace

size_t TcpScratchBytes(int world) { return kRing * (world - 1) * PieceBytes(world); }

absl::StatusOr<std::unique_ptr<Communicator>> ConnectTcp(int rank, int world, KeyValueStore* store,
                                                         const TcpOptions& options) {
  MP_CHECK(rank >= 0 && rank < world) << rank << " of " << world;
  if (world > kMaxTcpWorld) {
    return absl::InvalidArgumentError(
        absl::StrCat(world, " ranks; at most ", kMaxTcpWorld, " can be connected over TCP"));
  }
  if (world == 1) return std::move(MakeInProcessGroup(1, options.communicator)[0]);
  MP_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, ConnectSockets(rank, world, store, options));
  return std::make_unique<TcpCommunicator>(rank, std::move(sockets), options.communicator.timeout);
}

}  // namespace milepost::comm
