#include "engine/comm/gloo.h"

#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/comm/address.h"
#include "engine/comm/in_process.h"
#include "engine/comm/reduce.h"

namespace milepost::comm {
namespace {

using UnboundBuffer = ::gloo::transport::UnboundBuffer;
using SteadyTime = std::chrono::steady_clock::time_point;

// A reduce-scatter is received in pieces of this size, two at a time from each peer: large enough
// to amortise a message, small enough that the sum finds them in the cache.
constexpr size_t kMaxPieceBytes = 512 << 10;
constexpr size_t kMinPieceBytes = 64 << 10;
constexpr size_t kScratchBytes = 4 << 20;
// Below this an all-reduce sends everything to everyone: one message instead of two in a row.
constexpr size_t kSmallBytes = 16 << 10;

size_t PieceBytes(int world) {
  const size_t piece = kScratchBytes / (2 * std::max(1, world - 1));
  return std::clamp(piece, kMinPieceBytes, kMaxPieceBytes) / 64 * 64;
}

// Longer than any run: what a watch waits for never comes unless the peer goes.
constexpr std::chrono::hours kForever(24 * 365);
constexpr std::chrono::milliseconds kGoodbyeTimeout(200);
constexpr uint64_t kGoodbyeSlot = ~uint64_t{0};

// Tells collectives apart on the wire: a peer that makes another call than this rank waits for
// messages that never come, and the time-out says so.
uint64_t CallTag(uint32_t sequence, char kind, size_t size, int detail) {
  uint64_t hash = (size * 31 + static_cast<uint64_t>(kind)) * 31 + static_cast<uint64_t>(detail);
  hash *= 0x9e3779b97f4a7c15u;
  return static_cast<uint64_t>(sequence) << 32 | (hash >> 48) << 16;
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(int rank, std::shared_ptr<::gloo::transport::Device> device,
                   std::shared_ptr<::gloo::transport::Context> context, absl::Duration timeout)
      : Communicator(rank, context->size),
        device_(std::move(device)),
        context_(std::move(context)),
        timeout_(absl::ToChronoMilliseconds(timeout)),
        piece_bytes_(PieceBytes(world())),
        scratch_(GlooScratchBytes(world())) {
    char* piece = scratch_.data();
    for (int i = 0; i < 2 * (world() - 1); ++i, piece += piece_bytes_) {
      pieces_.push_back(context_->createUnboundBuffer(piece, piece_bytes_));
      active_.push_back(pieces_.back().get());
    }
  }

  // Gloo tells neither a message that is half received or half sent, nor a call that waits for
  // another rank, that a peer is gone. It does tell a receive that has not begun: so one such
  // receive waits for every peer, each with a thread that sleeps until it ends.
  absl::Status WatchPeers() {
    return Guard("connecting", [&] {
      for (int peer : Peers()) {
        auto watch = std::make_unique<Watch>();
        watch->buffer = context_->createUnboundBuffer(&watch->goodbye, 1);
        watch->buffer->recv(peer, kGoodbyeSlot, 0, 1);
        watch->thread =
            std::thread([this, peer, buffer = watch->buffer.get()] { WatchPeer(peer, buffer); });
        watches_.push_back(std::move(watch));
      }
      return absl::OkStatus();
    });
  }

  ~GlooCommunicator() override {
    if (Health().ok()) SayGoodbye();
    for (const auto& watch : watches_) watch->buffer->abortWaitRecv();
    for (const auto& watch : watches_) watch->thread.join();
  }

  void Abort(absl::string_view reason) override { Fail(absl::AbortedError(reason)); }

 protected:
  absl::Status Health() override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  absl::Status DoAllReduce(void* values, size_t count, ElementType type, ReduceOp op,
                           int64_t* sent) override {
    const size_t bytes = count * ElementBytes(type);
    char* data = static_cast<char*>(values);
    const int detail = static_cast<int>(type) * 16 + static_cast<int>(op);
    return Guard("all-reduce", [&] {
      Call call(this, 'r', bytes, detail);
      if (bytes <= kSmallBytes) return ExchangeWhole(call, data, count, type, op, sent);
      MP_RETURN_IF_ERROR(ReduceShards(call, data, count, type, op, sent));
      Call gather(this, 'g', bytes, detail);
      return GatherShards(gather, data, count, ElementBytes(type), sent);
    });
  }

  absl::Status DoReduceScatter(float* buffer, size_t count, int64_t* sent) override {
    return Guard("reduce-scatter", [&] {
      Call call(this, 's', count, 0);
      return ReduceShards(call, reinterpret_cast<char*>(buffer), count, ElementType::kFloat,
                          ReduceOp::kSum, sent);
    });
  }

  absl::Status DoAllGather(char* buffer, size_t bytes, int64_t* sent) override {
    return Guard("all-gather", [&] {
      Call call(this, 'g', bytes, 0);
      return GatherShards(call, buffer, bytes, 1, sent);
    });
  }

  absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) override {
    return Guard("broadcast", [&]() -> absl::Status {
      Call call(this, 'b', bytes, root);
      MP_ASSIGN_OR_RETURN(UnboundBuffer * data, call.NewBuffer(buffer, bytes));
      if (rank() != root) {
        data->recv(root, call.Slot(0), 0, bytes);
        return call.WaitRecv(data, root);
      }
      for (int peer : Peers()) call.Send(data, peer, 0, 0, bytes);
      *sent += bytes * (world() - 1);
      return call.WaitSends(data);
    });
  }

 private:
  struct Watch {
    char goodbye = 0;
    std::unique_ptr<UnboundBuffer> buffer;
    std::thread thread;
  };

  // Returns when the peer says goodbye, goes without, or this rank ends.
  void WatchPeer(int peer, UnboundBuffer* buffer) {
    try {
      buffer->waitRecv(nullptr, kForever);
    } catch (const std::exception& error) {
      {
        // After a time-out Gloo closes all connections; the call that waited reports it.
        std::lock_guard lock(mutex_);
        if (std::chrono::steady_clock::now() >= deadline_) return;
      }
      Fail(absl::UnavailableError(absl::StrCat("rank ", peer, " is gone: ", error.what())));
    }
  }

  // Ends the peers' watches, so that a rank that has finished is not taken for a dead one by ranks
  // that are still in the last collective with others.
  void SayGoodbye() {
    char goodbye = 0;
    try {
      auto buffer = context_->createUnboundBuffer(&goodbye, 1);
      for (int peer : Peers()) buffer->send(peer, kGoodbyeSlot, 0, 1);
      for (int i = 1; i < world(); ++i) buffer->waitSend(nullptr, kGoodbyeTimeout);
    } catch (const std::exception&) {
      // A peer that has gone first needs no goodbye.
    }
  }

  // The first failure stays. Wakes the call in progress; peers notice at once.
  void Fail(const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = status;
      for (UnboundBuffer* buffer : active_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
    CloseConnections();
  }

  // One collective: its deadline, its messages' tag and its buffers, which Abort must reach.
  class Call {
   public:
    Call(GlooCommunicator* owner, char kind, size_t size, int detail)
        : owner_(owner),
          tag_(CallTag(owner->sequence_++, kind, size, detail)),
          deadline_(std::chrono::steady_clock::now() + owner->timeout_) {
      std::lock_guard lock(owner_->mutex_);
      owner->deadline_ = deadline_;
    }
    ~Call() {
      std::lock_guard lock(owner_->mutex_);
      owner_->active_.resize(owner_->active_.size() - buffers_.size());
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    uint64_t Slot(size_t piece) const { return tag_ + piece; }

    absl::StatusOr<UnboundBuffer*> NewBuffer(char* data, size_t bytes) {
      auto buffer = owner_->context_->createUnboundBuffer(data, bytes);
      std::lock_guard lock(owner_->mutex_);
      if (!owner_->failure_.ok()) return owner_->failure_;
      owner_->active_.push_back(buffer.get());
      buffers_.push_back(std::move(buffer));
      return buffers_.back().get();
    }

    void Send(UnboundBuffer* buffer, int peer, size_t piece, size_t offset, size_t bytes) {
      buffer->send(peer, Slot(piece), offset, bytes);
      ++sends_;
    }

    // Every Send so far, all of them from `buffer`: the bytes may be changed afterwards.
    absl::Status WaitSends(UnboundBuffer* buffer) {
      owner_->waiting_for_ = -1;
      for (; sends_ > 0; --sends_) {
        if (!buffer->waitSend(nullptr, Remaining())) return owner_->Health();
      }
      return absl::OkStatus();
    }

    absl::Status WaitRecv(UnboundBuffer* buffer, int peer) {
      owner_->waiting_for_ = peer;
      return buffer->waitRecv(nullptr, Remaining()) ? absl::OkStatus() : owner_->Health();
    }

   private:
    std::chrono::milliseconds Remaining() const {
      return std::max(std::chrono::milliseconds(1),
                      std::chrono::ceil<std::chrono::milliseconds>(
                          deadline_ - std::chrono::steady_clock::now()));
    }

    GlooCommunicator* const owner_;
    const uint64_t tag_;
    const SteadyTime deadline_;
    std::vector<std::unique_ptr<UnboundBuffer>> buffers_;
    int64_t sends_ = 0;
  };

  // Turns Gloo's exceptions into the Status that poisons this communicator.
  template <typename Body>
  absl::Status Guard(const char* what, Body body) {
    std::string problem;
    waiting_for_ = -1;
    try {
      absl::Status status = body();
      if (status.ok()) {
        std::lock_guard lock(mutex_);
        deadline_ = SteadyTime::max();
        return status;
      }
      problem = std::string(status.message());
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::string where =
        absl::StrCat(what, " on rank ", rank(), " of ", world(),
                     waiting_for_ < 0 ? "" : absl::StrCat(", waiting for rank ", waiting_for_));
    if (std::chrono::steady_clock::now() >= Deadline()) {
      Fail(absl::DeadlineExceededError(
          absl::StrCat(where, ": no answer within ", timeout_.count() / 1e3, " s")));
    } else {
      Fail(absl::UnavailableError(absl::StrCat(where, ": ", problem)));
    }
    return Health();
  }

  // Safe from any thread, any number of times.
  void CloseConnections() {
    for (int peer : Peers()) {
      try {
        context_->getPair(peer)->close();
      } catch (const std::exception&) {
        // Already closed or broken: closing was all that we wanted.
      }
    }
  }

  // Of the call in progress: the watches do not report after it.
  SteadyTime Deadline() {
    std::lock_guard lock(mutex_);
    return deadline_;
  }

  // All other ranks, starting after this one, so that not everyone talks to rank 0 first.
  std::vector<int> Peers() const {
    std::vector<int> peers;
    for (int i = 1; i < world(); ++i) peers.push_back((rank() + i) % world());
    return peers;
  }

  // The scratch for a peer's even and odd pieces.
  UnboundBuffer* Piece(int peer, size_t piece) const {
    const int index = (peer - rank() + world()) % world() - 1;
    return pieces_[2 * index + piece % 2].get();
  }

  absl::Status ExchangeWhole(Call& call, char* data, size_t count, ElementType type, ReduceOp op,
                             int64_t* sent) {
    const size_t bytes = count * ElementBytes(type);
    MP_ASSIGN_OR_RETURN(UnboundBuffer * whole, call.NewBuffer(data, bytes));
    for (int peer : Peers()) Piece(peer, 0)->recv(peer, call.Slot(0), 0, bytes);
    for (int peer : Peers()) call.Send(whole, peer, 0, 0, bytes);
    *sent += bytes * (world() - 1);
    for (int peer : Peers()) MP_RETURN_IF_ERROR(call.WaitRecv(Piece(peer, 0), peer));
    MP_RETURN_IF_ERROR(call.WaitSends(whole));
    ReduceInOrder(Sources(data, 0), data, count, type, op);
    return absl::OkStatus();
  }

  // Own data and every peer's `piece`, in rank order.
  std::vector<const char*> Sources(const char* own, size_t piece) const {
    std::vector<const char*> sources(world(), own);
    for (int peer : Peers()) sources[peer] = static_cast<const char*>(Piece(peer, piece)->ptr);
    return sources;
  }

  // This rank's shard becomes the reduction over all ranks. All sends are done when it returns.
  absl::Status ReduceShards(Call& call, char* data, size_t count, ElementType type, ReduceOp op,
                            int64_t* sent) {
    const size_t element = ElementBytes(type);
    MP_ASSIGN_OR_RETURN(UnboundBuffer * whole, call.NewBuffer(data, count * element));
    const size_t begin = ShardBegin(count, rank(), world()) * element;
    const size_t end = ShardBegin(count, rank() + 1, world()) * element;
    const auto post = [&](size_t piece) {
      const size_t at = begin + piece * piece_bytes_;
      if (at >= end) return;
      for (int peer : Peers()) {
        Piece(peer, piece)->recv(peer, call.Slot(piece), 0, std::min(piece_bytes_, end - at));
      }
    };
    post(0);
    post(1);
    for (int peer : Peers()) SendShard(call, whole, peer, count, element, sent);
    for (size_t piece = 0; begin + piece * piece_bytes_ < end; ++piece) {
      char* own = data + begin + piece * piece_bytes_;
      const size_t bytes = std::min(piece_bytes_, static_cast<size_t>(data + end - own));
      for (int peer : Peers()) MP_RETURN_IF_ERROR(call.WaitRecv(Piece(peer, piece), peer));
      ReduceInOrder(Sources(own, piece), own, bytes / element, type, op);
      post(piece + 2);
    }
    return call.WaitSends(whole);
  }

  void SendShard(Call& call, UnboundBuffer* whole, int peer, size_t count, size_t element,
                 int64_t* sent) {
    const size_t end = ShardBegin(count, peer + 1, world()) * element;
    size_t at = ShardBegin(count, peer, world()) * element;
    *sent += end - at;
    for (size_t piece = 0; at < end; ++piece, at += piece_bytes_) {
      call.Send(whole, peer, piece, at, std::min(piece_bytes_, end - at));
    }
  }

  absl::Status GatherShards(Call& call, char* data, size_t count, size_t element, int64_t* sent) {
    std::vector<std::pair<int, UnboundBuffer*>> receives;
    for (int peer : Peers()) {
      const size_t begin = ShardBegin(count, peer, world()) * element;
      const size_t end = ShardBegin(count, peer + 1, world()) * element;
      if (begin == end) continue;
      MP_ASSIGN_OR_RETURN(UnboundBuffer * shard, call.NewBuffer(data + begin, end - begin));
      shard->recv(peer, call.Slot(0), 0, end - begin);
      receives.emplace_back(peer, shard);
    }
    const size_t begin = ShardBegin(count, rank(), world()) * element;
    const size_t end = ShardBegin(count, rank() + 1, world()) * element;
    MP_ASSIGN_OR_RETURN(UnboundBuffer * own, call.NewBuffer(data + begin, end - begin));
    if (begin < end) {
      for (int peer : Peers()) call.Send(own, peer, 0, 0, end - begin);
    }
    *sent += (end - begin) * (world() - 1);
    for (const auto& [peer, shard] : receives) MP_RETURN_IF_ERROR(call.WaitRecv(shard, peer));
    return call.WaitSends(own);
  }

  // Destroyed in reverse: buffers, then pairs, then the event thread.
  const std::shared_ptr<::gloo::transport::Device> device_;
  const std::shared_ptr<::gloo::transport::Context> context_;
  const std::chrono::milliseconds timeout_;
  const size_t piece_bytes_;
  std::vector<char> scratch_;
  std::vector<std::unique_ptr<UnboundBuffer>> pieces_;  // two per peer
  std::vector<std::unique_ptr<Watch>> watches_;         // one per peer

  // Of the calling thread.
  uint32_t sequence_ = 0;
  int waiting_for_ = -1;

  std::mutex mutex_;
  SteadyTime deadline_ = SteadyTime::max();  // of the call in progress
  absl::Status failure_;
  std::vector<UnboundBuffer*> active_;  // what Abort must wake; the current call's are last
};

std::string KeyOf(int rank) { return absl::StrCat("gloo/", rank); }

// Addresses of the sockets on which `rank` awaits each peer, each with its length before it.
std::string PackAddresses(::gloo::transport::Context& context) {
  std::string packed;
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == context.rank) continue;
    const std::vector<char> bytes = context.createPair(peer)->address().bytes();
    absl::StrAppend(&packed, absl::string_view("\0", 1));
    packed.back() = static_cast<char>(bytes.size());
    packed.append(bytes.begin(), bytes.end());
  }
  return packed;
}

// The address in `packed` (of `owner`) that is meant for `reader`.
absl::StatusOr<std::vector<char>> UnpackAddress(absl::string_view packed, int owner, int reader) {
  int index = reader < owner ? reader : reader - 1;
  while (!packed.empty()) {
    const size_t bytes = static_cast<unsigned char>(packed.front());
    packed.remove_prefix(1);
    if (bytes > packed.size()) break;
    if (index-- == 0) return std::vector<char>(packed.begin(), packed.begin() + bytes);
    packed.remove_prefix(bytes);
  }
  return absl::InternalError(absl::StrCat("rank ", owner, " published no address for rank ", reader,
                                          "; do all ranks have the same world size?"));
}

absl::Status ConnectPeers(::gloo::transport::Context& context, KeyValueStore* store,
                          absl::Time deadline) {
  MP_RETURN_IF_ERROR(store->Put(KeyOf(context.rank), PackAddresses(context)));
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == context.rank) continue;
    MP_ASSIGN_OR_RETURN(const std::string packed, store->Get(KeyOf(peer), deadline));
    MP_ASSIGN_OR_RETURN(const std::vector<char> address, UnpackAddress(packed, peer, context.rank));
    try {
      context.getPair(peer)->connect(address);
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("rank ", context.rank, " cannot connect to rank ",
                                                 peer, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<::gloo::transport::Device>> MakeDevice(const GlooOptions& options) {
  ::gloo::transport::tcp::attr attributes;
  // Gloo crashes on names that it cannot resolve.
  MP_ASSIGN_OR_RETURN(attributes.hostname, ResolveAddress(options.host, options.interface));
  try {
    return ::gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("cannot use the address ", attributes.hostname,
                                                   " for collectives: ", error.what()));
  }
}

}  // namespace

size_t GlooScratchBytes(int world) { return 2 * (world - 1) * PieceBytes(world); }

absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(int rank, int world, KeyValueStore* store,
                                                          const GlooOptions& options) {
  MP_CHECK(rank >= 0 && rank < world) << rank << " of " << world;
  if (world > kMaxGlooWorld) {
    return absl::InvalidArgumentError(
        absl::StrCat(world, " ranks; at most ", kMaxGlooWorld, " can be connected over TCP"));
  }
  if (world == 1) return std::move(MakeInProcessGroup(1, options.communicator)[0]);
  std::signal(SIGPIPE, SIG_IGN);
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  MP_ASSIGN_OR_RETURN(auto device, MakeDevice(options));
  try {
    auto context = device->createContext(rank, world);
    // Gloo waits five times a pair's time-out for its connection.
    context->setTimeout(std::max(std::chrono::milliseconds(1),
                                 absl::ToChronoMilliseconds(options.connect_timeout / 5)));
    MP_RETURN_IF_ERROR(ConnectPeers(*context, store, deadline));
    auto communicator = std::make_unique<GlooCommunicator>(
        rank, std::move(device), std::move(context), options.communicator.timeout);
    MP_RETURN_IF_ERROR(communicator->WatchPeers());
    return communicator;
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " of ", world, " cannot open its sockets: ", error.what()));
  }
}

}  // namespace milepost::comm
