// A step allocates nothing: every allocation of the process is counted, of every thread and library
// (OpenMP and the data prefetcher among them). Apart from them stand those that oneDNN makes on its
// own whenever a primitive is executed: nodes of its table of arguments.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "common/sanitizer.h"
#include "engine/runtime/testing/tiny_job.h"

#if defined(MILEPOST_ASAN) || defined(MILEPOST_TSAN) || !defined(__GLIBC__)
#define MILEPOST_COUNTS_ALLOCATIONS 0  // the sanitizers' allocators stand in malloc's place
#else
#define MILEPOST_COUNTS_ALLOCATIONS 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
std::atomic<size_t> largest_of_onednn{0};
thread_local bool in_onednn = false;

[[maybe_unused]] void Count(size_t bytes) {
  if (!counting.load(std::memory_order_relaxed)) return;
  if (in_onednn) {
    size_t largest = largest_of_onednn;
    while (bytes > largest && !largest_of_onednn.compare_exchange_weak(largest, bytes)) {
    }
  } else {
    ++allocations;
  }
}

}  // namespace

#if MILEPOST_COUNTS_ALLOCATIONS
extern "C" {

// oneDNN's, whose types do not matter here.
int dnnl_primitive_execute(const void* primitive, void* stream, int count, const void* arguments) {
  static const auto next = reinterpret_cast<decltype(&dnnl_primitive_execute)>(
      dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  in_onednn = true;
  const int status = next(primitive, stream, count, arguments);
  in_onednn = false;
  return status;
}

int dnnl_get_effective_cpu_isa();

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  Count(size);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count(count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  Count(size);
  return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  Count(size);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count(size);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  Count(size);
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
}
#endif

namespace milepost::runtime {
namespace {

// Of the process, in four steps after three that warm it up.
int64_t AllocationsInSteps(const v1::JobSpec& spec) {
  int64_t counted = -1;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    bool ok = true;
    for (int step = 0; step < 8; ++step) {  // rank 0 counts while the others are in steps too
      if (rank == 0 && step == 3) {
        allocations = 0;
        counting = true;
      }
      if (rank == 0 && step == 7) {
        counting = false;
        counted = allocations;
      }
      ok = session.Step(false).ok() && ok;
    }
    EXPECT_TRUE(ok);
  });
  return counted;
}

class Allocation : public testing::Test {
 protected:
  void SetUp() override {
    if (MILEPOST_COUNTS_ALLOCATIONS == 0) GTEST_SKIP() << "a sanitizer's allocator";
  }
};

TEST_F(Allocation, IsCounted) {
  allocations = 0;
  counting = true;
  void* (*volatile allocate)(size_t) = &malloc;  // or the compiler leaves it out
  std::free(allocate(100));
  counting = false;
  EXPECT_EQ(allocations, 1);
}

// Masked, packed and labelled: targets are counted in every step.
TEST_F(Allocation, NoneWhereTargetsVary) {
  const TinyJob job;
  for (const int ranks : {1, 2}) {
    const TinyOptions options{.ranks = ranks, .bert = true, .documents = true, .heads = true};
    EXPECT_EQ(AllocationsInSteps(job.Spec(options)), 0) << ranks << " ranks";
  }
}

// Nor where ranks exchange heads, with what they share of keys, beside tensor ranks' sums.
TEST_F(Allocation, NoneInAStepOfContextRanks) {
  const TinyJob job;
  const TinyOptions options{
      .ranks = 4, .tensor = 2, .context = 2, .precision = v1::PRECISION_BF16, .llama = true};
  EXPECT_EQ(AllocationsInSteps(job.Spec(options)), 0);
}

// Nor where gradients travel as factors.
TEST_F(Allocation, NoneInAStepThatCompresses) {
  const TinyJob job;
  for (const int ranks : {1, 2}) {
    for (const bool warm : {true, false}) {
      v1::JobSpec spec = job.Spec({.ranks = ranks, .stage = 0});
      spec.mutable_train()->mutable_powersgd()->set_start_step(1);
      spec.mutable_train()->mutable_powersgd()->set_warm_start(warm);
      NormalizeJobSpec(&spec);
      EXPECT_EQ(AllocationsInSteps(spec), 0) << ranks << " ranks";
    }
  }
}

// Without AVX-512 oneDNN's fp32 products copy their factors into memory of its own.
bool Fp32ProductsCopy() {
#if MILEPOST_COUNTS_ALLOCATIONS
  constexpr int kAvx512 = 0x27;  // dnnl_cpu_isa_avx512_core
  return (dnnl_get_effective_cpu_isa() & kAvx512) != kAvx512;
#else
  return true;
#endif
}

TEST_F(Allocation, NoneInAStep) {
  const TinyJob job;
  for (const int ranks : {1, 3}) {
    for (const TinyOptions& model : {TinyOptions{.dropout = 0.1}, TinyOptions{.llama = true},
                                     TinyOptions{.llama = true, .experts = 5}}) {
      for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
        TinyOptions options = model;
        options.ranks = ranks;
        options.stage = 3;
        options.precision = precision;
        options.recompute = v1::RECOMPUTE_SELECTIVE;
        largest_of_onednn = 0;
        EXPECT_EQ(AllocationsInSteps(job.Spec(options)), 0)
            << ranks << " ranks, " << (model.llama ? "Llama, " : "GPT-2, ") << model.experts
            << " experts, precision " << precision;
        if (precision == v1::PRECISION_FP32 && Fp32ProductsCopy()) continue;
        EXPECT_LT(largest_of_onednn, 1024u) << "scratch memory is planned, not oneDNN's own";
      }
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
