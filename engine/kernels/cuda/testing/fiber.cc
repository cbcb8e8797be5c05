#include "engine/kernels/cuda/testing/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/sanitizer.h"

#if defined(MILEPOST_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(MILEPOST_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
extern "C" void milepost_switch_stacks(void** from, void* to);
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

// Whom Enter begins with: the fiber that is resumed for the first time.
thread_local Fiber* starting = nullptr;

#if defined(__x86_64__)

// swapcontext asks the kernel for the signal mask, twice. What a call leaves to the callee to keep
// is all that has to be kept. A jump, as a return would be foreseen to go elsewhere.
asm(R"(
.text
.hidden milepost_switch_stacks
.globl milepost_switch_stacks
.type milepost_switch_stacks, @function
milepost_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size milepost_switch_stacks, .-milepost_switch_stacks
)");

void Switch(void** from, void** to) { milepost_switch_stacks(from, *to); }

// As if it had been called from a frame that ends at `top`, and had switched away at once.
void* FirstFrame(char* top, void (*entry)()) {
  constexpr int kKept = 6;
  auto** at = reinterpret_cast<void**>(top) - 2;  // aligned as behind a call
  at[1] = nullptr;
  at[0] = reinterpret_cast<void*>(entry);
  for (int i = 1; i <= kKept; ++i) at[-i] = nullptr;
  return at - kKept;
}

#else

void Switch(ucontext_t* from, ucontext_t* to) { MP_CHECK(swapcontext(from, to) == 0); }

#endif

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(NewStack()) {
  Begin();
#if defined(MILEPOST_TSAN)
  tsan_own_ = __tsan_create_fiber(0);
#endif
}

void Fiber::Begin() {
#if defined(__x86_64__)
  // Stacks that all end at the same place of a page would push each other out of the cache.
  static thread_local int fibers = 0;
  own_ = FirstFrame(stack_ + kStackBytes - fibers++ % 32 * 128, &Fiber::Enter);
#else
  MP_CHECK(getcontext(&own_) == 0);
  own_.uc_stack.ss_sp = stack_ + kGuardBytes;
  own_.uc_stack.ss_size = kStackBytes - kGuardBytes;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::Enter, 0);
#endif
}

Fiber::~Fiber() {
#if defined(MILEPOST_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
#if defined(MILEPOST_TSAN)
  __tsan_destroy_fiber(tsan_own_);
#endif
  SpareStacks& spare = SpareStacks::Get();
  const std::lock_guard<std::mutex> lock(spare.mutex);
  spare.stacks.push_back(stack_);
}

void Fiber::SwitchTo(State* from, State* to, void** fake_stack, const void* stack, size_t bytes) {
#if defined(MILEPOST_ASAN)
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
#if defined(MILEPOST_TSAN)
  __tsan_switch_to_fiber(to == &own_ ? tsan_own_ : tsan_caller_, 0);
#endif
  Switch(from, to);
#if defined(MILEPOST_ASAN)
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
  starting = this;
#if defined(MILEPOST_TSAN)
  tsan_caller_ = __tsan_get_current_fiber();
#endif
  SwitchTo(&caller_, &own_, &caller_fake_stack_, stack_ + kGuardBytes, kStackBytes - kGuardBytes);
}

void Fiber::Yield() {
  SwitchTo(&own_, &caller_, &own_fake_stack_, caller_stack_, caller_stack_bytes_);
}

void Fiber::Enter() {
  Fiber* self = starting;
#if defined(MILEPOST_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
  for (;;) {
    self->body_();
    self->Yield();
  }
}

}  // namespace milepost::kernels::cuda
