#include "coordinator/store/chunk_deleter.h"

#include <spdlog/spdlog.h>

#include <string>

#include "absl/time/clock.h"
#include "coordinator/store/manifest.h"

namespace milepost::coordinator {

namespace {
constexpr absl::Duration kLastDeletions = absl::Seconds(5);
}  // namespace

ChunkDeleter::ChunkDeleter(Database* database) : database_(database) {
  thread_ = std::thread(&ChunkDeleter::Run, this);
}

ChunkDeleter::~ChunkDeleter() {
  Await(absl::Now() + kLastDeletions);
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  thread_.join();
}

void ChunkDeleter::Add(int64_t number) {
  absl::MutexLock lock(&mutex_);
  numbers_.push_back(number);
}

bool ChunkDeleter::Await(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(this, &ChunkDeleter::Idle), deadline);
}

void ChunkDeleter::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &ChunkDeleter::HasNews));
    if (closed_) return;
    const int64_t number = numbers_.front();
    mutex_.Unlock();
    if (absl::Status status = DeleteChunks(database_, number); !status.ok()) {
      spdlog::warn("checkpoints/{}: its space is not free before the next start: {}", number,
                   std::string(status.message()));
    }
    mutex_.Lock();
    numbers_.pop_front();
  }
}

}  // namespace milepost::coordinator
