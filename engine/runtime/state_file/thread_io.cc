#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/runtime/state_file/block_io.h"

namespace milepost::runtime {
namespace {

class Threads : public BlockIo {
 public:
  Threads(int fd, int threads) : fd_(fd) {
    for (int i = 0; i < std::max(1, threads); ++i) {
      threads_.emplace_back([this] { Loop(); });
      pthread_setname_np(threads_.back().native_handle(), "mp-file");
    }
  }
  ~Threads() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Submit(const BlockRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    wanted_.notify_one();
    return absl::OkStatus();
  }

  absl::StatusOr<BlockResult> Next() override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !results_.empty(); });
    const BlockResult result = results_.front();
    results_.pop_front();
    return result;
  }

 private:
  int64_t Move(const BlockRequest& request) const {
    const auto bytes = static_cast<size_t>(request.bytes);
    ssize_t moved = 0;
    do {
      moved = request.write ? pwrite(fd_, request.data, bytes, request.offset)
                            : pread(fd_, request.data, bytes, request.offset);
    } while (moved < 0 && errno == EINTR);
    return moved < 0 ? -int64_t{errno} : moved;
  }

  // Until it is stopped and nothing is left.
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wanted_.wait(lock, [this] { return stop_ || !requests_.empty(); });
      if (requests_.empty()) return;
      const BlockRequest request = requests_.front();
      requests_.pop_front();
      lock.unlock();
      const BlockResult result = {.tag = request.tag, .bytes = Move(request)};
      lock.lock();
      results_.push_back(result);
      done_.notify_one();
    }
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::condition_variable done_;
  std::deque<BlockRequest> requests_;  // as many as the caller lets be under way
  std::deque<BlockResult> results_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockIo> ThreadIo(int fd, int threads) {
  return std::make_unique<Threads>(fd, threads);
}

}  // namespace milepost::runtime
