// The one allocation of a rank: zeroed, page-aligned (2 MiB where it is that large), backed by
// memory before it is handed out, so that a step never takes a page fault and never meets the
// kernel's OOM killer.
//
//   MP_ASSIGN_OR_RETURN(Arena arena, Arena::Allocate(plan.arena_bytes));
//   float* m = reinterpret_cast<float*>(arena.data() + buffer.offset);
//
// Movable, not copyable; freed on destruction. Not synchronised: the owner shares data() as it
// likes.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_ARENA_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_ARENA_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::runtime {

class Arena {
 public:
  // RESOURCE_EXHAUSTED, with the figures, when `bytes` exceeds AvailableMemoryBytes()
  // (common/host_memory.h) or the kernel
  // refuses; FAILED_PRECONDITION when it exceeds MemoryLimitBytes(): trying again cannot help.
  // Blocks while the kernel zeroes the pages (about 0.1 s per GiB). `advice`: what takes less,
  // which errors end with.
  static absl::StatusOr<Arena> Allocate(int64_t bytes, absl::string_view advice = kTrainingAdvice);
  static constexpr char kTrainingAdvice[] =
      "use a smaller micro batch or sequence length, or more ranks at ZeRO stage 1";

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // as asked for

 private:
  static absl::StatusOr<Arena> Map(int64_t bytes);
  Arena(char* data, int64_t bytes, int64_t mapped) : data_(data), bytes_(bytes), mapped_(mapped) {}
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_ = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_ARENA_H_
