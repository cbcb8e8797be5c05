// Its check of longjmp knows one stack only.
#undef _FORTIFY_SOURCE

#include "engine/kernels/cuda/testing/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "common/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace milepost::kernels::cuda {
namespace {
constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = (256 << 10) + kGuardBytes;  // touched as far as it is used

// Stacks that no fiber has at the moment: mapping them anew for each launch costs more than a
// launch.
struct SpareStacks {
  static SpareStacks& Get() {
    static auto* spare = new SpareStacks;  // outlives all threads
    return *spare;
  }
  std::mutex mutex;
  std::vector<char*> stacks;
};

char* NewStack() {
  SpareStacks& spare = SpareStacks::Get();
  {
    const std::lock_guard<std::mutex> lock(spare.mutex);
    if (!spare.stacks.empty()) {
      char* stack = spare.stacks.back();
      spare.stacks.pop_back();
      return stack;
    }
  }
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MP_CHECK(memory != MAP_FAILED);
  MP_CHECK(mprotect(memory, kGuardBytes, PROT_NONE) == 0);
  return static_cast<char*>(memory);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(NewStack()) {
  MP_CHECK(getcontext(&own_) == 0);
  own_.uc_stack.ss_sp = stack_ + kGuardBytes;
  own_.uc_stack.ss_size = kStackBytes - kGuardBytes;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(uint64_t{self} >> 32));
#if defined(__SANITIZE_THREAD__)
  tsan_own_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_own_);
#endif
  SpareStacks& spare = SpareStacks::Get();
  const std::lock_guard<std::mutex> lock(spare.mutex);
  spare.stacks.push_back(stack_);
}

#if defined(MILEPOST_FIBERS_JUMP)

// swapcontext asks the kernel for the signal mask, twice: only a fiber's first step needs it.
void Fiber::Resume() {
  if (_setjmp(caller_jump_) != 0) return;
  if (started_) _longjmp(own_jump_, 1);
  started_ = true;
  setcontext(&own_);
}

void Fiber::Yield() {
  if (_setjmp(own_jump_) == 0) _longjmp(caller_jump_, 1);
}

#else

void Fiber::SwitchTo(ucontext_t* from, ucontext_t* to, void** fake_stack, const void* stack,
                     size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to == &own_ ? tsan_own_ : tsan_caller_, 0);
#endif
  MP_CHECK(swapcontext(from, to) == 0);
#if defined(__SANITIZE_ADDRESS__)
  // Back again, or, in Yield, back in the fiber: where it came from may have changed.
  const void* old_stack = nullptr;
  size_t old_bytes = 0;
  __sanitizer_finish_switch_fiber(*fake_stack, &old_stack, &old_bytes);
  if (from == &own_) {
    caller_stack_ = old_stack;
    caller_stack_bytes_ = old_bytes;
  }
#endif
}

void Fiber::Resume() {
#if defined(__SANITIZE_THREAD__)
  tsan_caller_ = __tsan_get_current_fiber();
#endif
  SwitchTo(&caller_, &own_, &caller_fake_stack_, stack_ + kGuardBytes, kStackBytes - kGuardBytes);
}

void Fiber::Yield() {
  SwitchTo(&own_, &caller_, &own_fake_stack_, caller_stack_, caller_stack_bytes_);
}

#endif

void Fiber::Enter(unsigned low, unsigned high) {
  Fiber* self = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(uint64_t{high} << 32 | low));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
  for (;;) {
    self->body_();
    self->Yield();
  }
}

}  // namespace milepost::kernels::cuda
