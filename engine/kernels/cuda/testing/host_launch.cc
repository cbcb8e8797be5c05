#include "engine/kernels/cuda/testing/host_launch.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/kernels/cuda/testing/fiber.h"

namespace milepost::kernels::cuda {
namespace {

// As every device that is compiled for has them.
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
constexpr int64_t kMostBlocksY = 65535;
constexpr int64_t kMostSharedBytes = 227 << 10;
constexpr int kMostThreads = 1024;

}  // namespace

// The blocks of one launch after the other, on one thread of the host.
class HostBlocks {
 public:
  static HostBlocks& OfThisThread() {
    static thread_local HostBlocks blocks;
    return blocks;
  }

  absl::Status Run(const char* name, int threads, const Grid& grid, const void* kernel,
                   HostBody body) {
    threads_ = threads;
    kernel_ = kernel;
    body_ = body;
    failure_ = nullptr;
    contexts_.clear();
    for (int i = 0; i < threads; ++i) contexts_.emplace_back(this, &grid, i);
    for (int64_t block = 0; block < grid.x * grid.y; ++block) {
      for (LaunchContext& context : contexts_) {
        context.block_ = block % grid.x;
        context.block_y_ = block / grid.x;
      }
      if (RunBlock()) continue;
      Reset();
      return absl::InternalError(absl::StrCat("kernel ", name, ", block ", block % grid.x, ",",
                                              block / grid.x, " of ", grid.x, " x ", grid.y,
                                              ", thread ", failed_thread_, ": ", failure_));
    }
    return absl::OkStatus();
  }

  // ---- by the kernel's threads ----

  void Wait(int thread, bool of_warp) {
    states_[thread] = of_warp ? State::kAtWarp : State::kAtBarrier;
    fibers_[fiber_of_[thread]]->Yield();
  }
  // Two rounds: a lane that is ahead may give its next value while others still read this one.
  uint64_t Exchange(int thread, uint64_t bits, int from) {
    Warp& warp = warps_[thread / kWarp];
    const int round = rounds_[thread]++ % 2;
    warp.values[round][thread % kWarp] = bits;
    Wait(thread, true);
    return warp.values[round][from];
  }
  const TileWords& ExchangeTiles(int thread, const LaneWords& own) {
    TileWords& tiles = warps_[thread / kWarp].tiles[rounds_[thread]++ % 2];
    tiles[thread % kWarp] = own;
    Wait(thread, true);
    return tiles;
  }
  char* Shared(int tag, size_t bytes) {
    for (const SharedArray& array : shared_) {
      if (array.tag == tag) return array.bytes == bytes ? array.data : nullptr;
    }
    const size_t begin = (shared_bytes_ + 15) / 16 * 16;
    if (begin + bytes > storage_.size() * sizeof(Line)) return nullptr;
    shared_bytes_ = begin + bytes;
    char* data = reinterpret_cast<char*>(storage_.data()) + begin;
    std::memset(data, 0xff, bytes);
    shared_.push_back({tag, bytes, data});
    return data;
  }
  [[noreturn]] void Fail(int thread, const char* what) {
    failure_ = what;
    failed_thread_ = thread;
    for (;;) fibers_[fiber_of_[thread]]->Yield();  // never resumed
  }

 private:
  enum class State : uint8_t { kNew, kReady, kAtBarrier, kAtWarp, kDone };
  struct Warp {
    std::array<uint64_t, kWarp> values[2];
    TileWords tiles[2];
  };
  struct SharedArray {
    int tag;
    size_t bytes;
    char* data;
  };
  struct alignas(16) Line {
    char bytes[16];
  };

  bool RunBlock() {
    states_.assign(threads_, State::kNew);
    fiber_of_.assign(threads_, -1);
    rounds_.assign(threads_, 0);
    warps_.resize(threads_ / kWarp);
    shared_.clear();
    shared_bytes_ = 0;
    for (;;) {
      bool at_barrier = false;
      for (int first = 0; first < threads_; first += kWarp) {
        if (!RunWarp(first)) return false;
        at_barrier |= states_[first] == State::kAtBarrier;
      }
      if (!at_barrier) return Expect(State::kDone);
      if (!Expect(State::kAtBarrier)) return false;
      states_.assign(threads_, State::kReady);
    }
  }

  // Until all of its lanes are done or at a barrier of the block.
  bool RunWarp(int first) {
    for (;;) {
      for (int i = first; i < first + kWarp; ++i) {
        if (states_[i] != State::kNew && states_[i] != State::kReady) continue;
        Resume(i);
        if (failure_ != nullptr) return false;
      }
      if (states_[first] != State::kAtWarp) return true;
      for (int i = first; i < first + kWarp; ++i) {
        if (states_[i] != State::kAtWarp) return Missing(i);
        states_[i] = State::kReady;
      }
    }
  }

  bool Expect(State state) {
    for (int i = 0; i < threads_; ++i) {
      if (states_[i] != state) return Missing(i);
    }
    return true;
  }
  bool Missing(int thread) {
    failure_ = "does not come to a barrier or shuffle at which others wait, or waits for them";
    failed_thread_ = thread;
    return false;
  }

  void Resume(int thread) {
    if (states_[thread] == State::kNew) {
      if (idle_.empty()) AddFiber();
      fiber_of_[thread] = idle_.back();
      idle_.pop_back();
      starting_ = thread;
    }
    const int fiber = fiber_of_[thread];
    states_[thread] = State::kReady;
    fibers_[fiber]->Resume();
    if (ended_ == fiber) idle_.push_back(fiber);
    ended_ = -1;
  }

  void AddFiber() {
    const int index = static_cast<int>(fibers_.size());
    idle_.push_back(index);
    fibers_.push_back(std::make_unique<Fiber>([this, index] { RunThreads(index); }));
  }

  // A thread, and those after it as long as none of them has to wait.
  void RunThreads(int fiber) {
    for (int thread = starting_; thread < threads_; ++thread) {
      if (thread != starting_ && states_[thread] != State::kNew) break;
      fiber_of_[thread] = fiber;
      starting_ = thread;
      body_(kernel_, contexts_[thread]);
      states_[thread] = State::kDone;
      // Having waited, it has been overtaken.
      if (thread != starting_) break;
    }
    ended_ = fiber;
  }

  // Fibers that stopped in the middle of a kernel are of no more use.
  void Reset() {
    fibers_.clear();
    idle_.clear();
    ended_ = -1;
  }

  int threads_ = 0;
  const void* kernel_ = nullptr;
  HostBody body_ = nullptr;
  const char* failure_ = nullptr;
  int failed_thread_ = 0;

  std::vector<LaunchContext> contexts_;  // by thread of the block; so are the next ones
  std::vector<State> states_;
  std::vector<int> fiber_of_;
  std::vector<uint8_t> rounds_;
  std::vector<Warp> warps_;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<int> idle_;
  int starting_ = 0;
  int ended_ = -1;

  std::vector<SharedArray> shared_;
  std::vector<Line> storage_ = std::vector<Line>(kMostSharedBytes / sizeof(Line));
  size_t shared_bytes_ = 0;
};

void LaunchContext::Sync() const { owner_->Wait(thread_, false); }
void LaunchContext::SyncWarp() const { owner_->Wait(thread_, true); }
uint64_t LaunchContext::ExchangeBits(uint64_t bits, int from) const {
  if (from < 0 || from >= kWarp) Fail("a shuffle from a lane that there is not");
  return owner_->Exchange(thread_, bits, from);
}

const TileWords& LaunchContext::ExchangeTiles(const LaneWords& own) const {
  return owner_->ExchangeTiles(thread_, own);
}
char* LaunchContext::SharedBytes(int tag, size_t bytes) const {
  char* data = owner_->Shared(tag, bytes);
  if (data == nullptr) Fail("more shared memory than a block has, or two arrays of one tag");
  return data;
}
void LaunchContext::Fail(const char* what) const { owner_->Fail(thread_, what); }

absl::Status LaunchOnHost(const char* name, int threads, const Grid& grid, const void* kernel,
                          HostBody body) {
  if (grid.x == 0 || grid.y == 0) return absl::OkStatus();
  if (grid.x < 0 || grid.x > kMostBlocks || grid.y < 0 || grid.y > kMostBlocksY ||
      grid.shared_bytes > kMostSharedBytes || threads > kMostThreads) {
    return absl::InternalError(absl::StrCat("kernel ", name, ": no device runs ", grid.x, " x ",
                                            grid.y, " blocks of ", threads, " threads and ",
                                            grid.shared_bytes, " bytes of shared memory"));
  }
  return HostBlocks::OfThisThread().Run(name, threads, grid, kernel, body);
}

}  // namespace milepost::kernels::cuda
