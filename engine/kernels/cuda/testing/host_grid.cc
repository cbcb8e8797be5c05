#include "engine/kernels/cuda/testing/host_grid.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/kernels/cuda/testing/fiber.h"

namespace milepost::kernels::cuda {
namespace {

using Place = KernelPlace;

std::string Where(const Place& place) {
  absl::string_view file = place.file_name();
  const size_t folder = file.rfind("engine/");
  if (folder != absl::string_view::npos) file.remove_prefix(folder);
  return absl::StrCat(file, ":", place.line());
}

bool Same(const Place& a, const Place& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         absl::string_view(a.file_name()) == b.file_name();
}

enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kDone };

struct Thread {
  std::unique_ptr<Fiber> fiber;
  std::unique_ptr<HostContext> context;
  State state = State::kReady;
  Place place;
  Accessor accessor;
};

// Two rounds: a lane that is ahead may give its next value while others still read this one.
struct Warp {
  uint64_t values[2][kWarp];
  TileWords tiles[2];
  int arrived = 0;
};

struct SharedStorage {
  std::unique_ptr<char[]> data;
  size_t bytes;
  std::unique_ptr<MemoryRange> range;
};

SharedStorage MakeShared(size_t bytes, size_t granule) {
  SharedStorage storage = {std::unique_ptr<char[]>(new char[bytes + 16]), bytes, nullptr};
  std::memset(storage.data.get(), 0xff, bytes);
  storage.range = std::make_unique<MemoryRange>(storage.data.get(), bytes, granule);
  return storage;
}

constexpr int kDynamicTag = -1;

}  // namespace

// The threads of one block after another; fibers serve all blocks of a launch.
class HostBlock {
 public:
  HostBlock(int threads, const Grid& grid, const HostOrder& order,
            const std::function<void(HostContext&)>& body)
      : grid_(grid), shuffled_(order.seed != 0), generator_(order.seed), warps_(threads / kWarp) {
    static uint64_t launches = 0;
    launch_ = ++launches;
    threads_.resize(threads);
    for (int i = 0; i < threads; ++i) {
      threads_[i].context = std::make_unique<HostContext>(*this, i);
      threads_[i].fiber = std::make_unique<Fiber>([this, i, &body] {
        body(*threads_[i].context);
        threads_[i].state = State::kDone;
        ++done_;
      });
    }
  }

  // False: error() says why.
  bool RunAll() {
    std::vector<int64_t> blocks(grid_.x * grid_.y);
    std::iota(blocks.begin(), blocks.end(), 0);
    if (shuffled_) std::shuffle(blocks.begin(), blocks.end(), generator_);
    for (const int64_t block : blocks) {
      if (!RunOne(block)) return false;
    }
    return true;
  }
  const std::string& error() const { return error_; }

  int64_t block() const { return block_ % grid_.x; }
  int64_t block_y() const { return block_ / grid_.x; }
  const Grid& grid() const { return grid_; }
  const Accessor& accessor(int thread) const { return threads_[thread].accessor; }

  void Wait(int thread, State at, const Place& place) {
    threads_[thread].state = at;
    threads_[thread].place = place;
    at == State::kAtWarp ? ++warps_[thread / kWarp].arrived : ++at_barrier_;
    threads_[thread].fiber->Yield();
  }
  uint64_t Exchange(int thread, uint64_t bits, int from, const Place& place) {
    Warp& warp = warps_[thread / kWarp];
    const uint32_t round = threads_[thread].accessor.warp_epoch % 2;
    warp.values[round][thread % kWarp] = bits;
    Wait(thread, State::kAtWarp, place);
    return warp.values[round][from];
  }
  const TileWords& ExchangeTiles(int thread, const LaneWords& own, const Place& place) {
    Warp& warp = warps_[thread / kWarp];
    TileWords& tiles = warp.tiles[threads_[thread].accessor.warp_epoch % 2];
    tiles[thread % kWarp] = own;
    Wait(thread, State::kAtWarp, place);
    return tiles;
  }
  SharedStorage& Shared(int tag, size_t bytes, size_t granule) {
    const auto found = shared_.find(tag);
    if (found != shared_.end()) return found->second;
    return shared_.emplace(tag, MakeShared(bytes, granule)).first->second;
  }
  [[noreturn]] void Fail(int thread, const std::string& what, const Place& place) {
    error_ = absl::StrCat("block ", block(), ",", block_y(), " thread ", thread, " at ",
                          Where(place), ": ", what);
    threads_[thread].fiber->Yield();  // for good
    std::abort();
  }

 private:
  bool RunOne(int64_t block) {
    block_ = block;
    done_ = at_barrier_ = 0;
    shared_.clear();
    ready_.clear();
    for (size_t i = threads_.size(); i-- > 0;) {  // taken from the back
      threads_[i].state = State::kReady;
      threads_[i].accessor = {.launch = launch_, .block = block, .thread = static_cast<int>(i)};
      ready_.push_back(static_cast<int>(i));
    }
    while (!ready_.empty()) {
      const int thread = Next();
      threads_[thread].fiber->Resume();
      if (!error_.empty() || !Release(thread)) return false;
    }
    return done_ == static_cast<int>(threads_.size()) || Stuck();
  }

  int Next() {
    if (shuffled_) std::swap(ready_[generator_() % ready_.size()], ready_.back());
    const int thread = ready_.back();
    ready_.pop_back();
    return thread;
  }

  // Lets those go on for whom `thread`, which has just stopped, was the last to come.
  bool Release(int thread) {
    const int warp = thread / kWarp;
    if (threads_[thread].state == State::kAtWarp && warps_[warp].arrived == kWarp) {
      warps_[warp].arrived = 0;
      return Free(warp * kWarp, (warp + 1) * kWarp, /*of_block=*/false);
    }
    if (at_barrier_ == static_cast<int>(threads_.size())) {
      at_barrier_ = 0;
      return Free(0, static_cast<int>(threads_.size()), /*of_block=*/true);
    }
    return true;
  }

  bool Free(int first, int last, bool of_block) {
    for (int i = last; i-- > first;) {
      Thread& t = threads_[i];
      if (!Same(t.place, threads_[first].place)) {
        error_ = absl::StrCat("block ", block(), ",", block_y(), ": threads ", first, " and ", i,
                              " wait for each other at ", Where(threads_[first].place), " and ",
                              Where(t.place));
        return false;
      }
      ++(of_block ? t.accessor.block_epoch : t.accessor.warp_epoch);
      t.state = State::kReady;
      ready_.push_back(i);
    }
    return true;
  }

  bool Stuck() {
    const auto waits = [](const Thread& t) { return t.state != State::kDone; };
    const auto waiting = std::find_if(threads_.begin(), threads_.end(), waits);
    const auto other = std::find_if(threads_.begin(), threads_.end(), [&](const Thread& t) {
      return t.state != waiting->state || !Same(t.place, waiting->place);
    });
    error_ =
        absl::StrCat("block ", block(), ",", block_y(), ": thread ", waiting - threads_.begin(),
                     " waits at ", Where(waiting->place), " for threads that do not come");
    if (other != threads_.end()) {
      absl::StrAppend(&error_, ": thread ", other - threads_.begin(),
                      other->state == State::kDone
                          ? std::string(" has ended")
                          : absl::StrCat(" waits at ", Where(other->place)));
    }
    return false;
  }

  Grid grid_;
  bool shuffled_;
  std::mt19937_64 generator_;
  std::vector<Warp> warps_;
  std::vector<Thread> threads_;
  std::vector<int> ready_;
  std::map<int, SharedStorage> shared_;
  std::string error_;
  uint64_t launch_ = 0;
  int64_t block_ = 0;
  int done_ = 0;
  int at_barrier_ = 0;
};

int64_t HostContext::block() const { return owner_.block(); }
int64_t HostContext::block_y() const { return owner_.block_y(); }
int64_t HostContext::blocks() const { return owner_.grid().x; }

void HostContext::Sync(Place place) const { owner_.Wait(thread_, State::kAtBarrier, place); }
void HostContext::SyncWarp(Place place) const { owner_.Wait(thread_, State::kAtWarp, place); }

uint64_t HostContext::ExchangeBits(uint64_t bits, int from, Place place) const {
  if (from < 0 || from >= kWarp) Fail(absl::StrCat("a shuffle from lane ", from), place);
  return owner_.Exchange(thread_, bits, from, place);
}

const TileWords& HostContext::ExchangeTiles(const LaneWords& own, Place place) const {
  return owner_.ExchangeTiles(thread_, own, place);
}

char* HostContext::SharedBytes(int tag, size_t bytes, size_t granule) const {
  SharedStorage& storage = owner_.Shared(tag, bytes, granule);
  if (storage.bytes != bytes) Fail(absl::StrCat("two shared arrays of tag ", tag), {});
  return storage.data.get();
}

char* HostContext::DynamicSharedBytes(size_t granule, int64_t* bytes) const {
  *bytes = owner_.grid().shared_bytes;
  return owner_.Shared(kDynamicTag, static_cast<size_t>(*bytes), granule).data.get();
}

void HostContext::Access(const void* p, size_t bytes, size_t alignment, bool write,
                         Place place) const {
  std::string wrong =
      HostMemory::Get().Access(p, bytes, alignment, write, owner_.accessor(thread_));
  if (!wrong.empty()) Fail(std::move(wrong), place);
}

void HostContext::Fail(std::string what, Place place) const {
  // Nothing on this stack is destroyed any more: the text moves off it.
  static std::string text;
  text = what;
  std::string().swap(what);
  owner_.Fail(thread_, text, place);
}

absl::Status RunBlocks(int threads, const Grid& grid, const HostOrder& order,
                       const std::function<void(HostContext&)>& body) {
  HostBlock block(threads, grid, order, body);
  if (block.RunAll()) return absl::OkStatus();
  return absl::FailedPreconditionError(block.error());
}

}  // namespace milepost::kernels::cuda
