// Fibers: functions with stacks of their own that run one at a time on the calling thread. The
// sanitizers are told of every switch. Internal to host_grid.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_FIBER_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_FIBER_H_

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <functional>

// Where no sanitizer looks at the stack, a switch is a jump.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MILEPOST_FIBERS_JUMP
#endif

namespace milepost::kernels::cuda {

// Runs `body` again and again: each Resume of a fiber that has ended starts it anew. A fiber that
// is destroyed in the middle of its body leaves what lies on its stack as it is.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it calls Yield or ends.
  void Resume();
  // Within the body: back to the caller of Resume.
  void Yield();

 private:
  static void Enter(unsigned low, unsigned high);
#if !defined(MILEPOST_FIBERS_JUMP)
  void SwitchTo(ucontext_t* from, ucontext_t* to, void** fake_stack, const void* stack,
                size_t bytes);
#endif

  std::function<void()> body_;
  char* stack_;
  ucontext_t own_;
#if defined(MILEPOST_FIBERS_JUMP)
  bool started_ = false;
  jmp_buf own_jump_;
  jmp_buf caller_jump_;
#else
  ucontext_t caller_;
  void* own_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
  void* tsan_own_ = nullptr;
  void* tsan_caller_ = nullptr;
#endif
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_FIBER_H_
