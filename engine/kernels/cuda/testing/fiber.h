// Fibers: functions with stacks of their own that run one at a time on the calling thread. The
// sanitizers are told of every switch. Internal to host_grid and host_launch.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_FIBER_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_FIBER_H_

#include <cstddef>
#include <functional>

#if !defined(__x86_64__)
#include <ucontext.h>
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
#if defined(__x86_64__)
  using State = void*;  // its stack pointer, what must be kept being on the stack
#else
  using State = ucontext_t;
#endif

  void Begin();
  static void Enter();
  void SwitchTo(State* from, State* to, void** fake_stack, const void* stack, size_t bytes);

  std::function<void()> body_;
  char* stack_;
  State own_ = {};
  State caller_ = {};
  // Of the sanitizers.
  void* own_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
  void* tsan_own_ = nullptr;
  void* tsan_caller_ = nullptr;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_FIBER_H_
