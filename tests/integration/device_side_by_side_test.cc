// Micro-batches that are trained side by side on a device (device_training_test.cc says which),
// against those that come one after the other there, and against the CPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/device_runs.h"
#include "tests/integration/on_device.h"

namespace milepost::runtime {
namespace {

struct Beside {
  int data = 1;
  int tensor = 1;
  int context = 1;  // of the data ranks
  int expert = 1;   // likewise
  int stage = 1;
  int together = 2;
};

std::string NameOf(const Beside& b) {
  return absl::StrCat("data ", b.data, ", tensor ", b.tensor, ", context ", b.context, ", expert ",
                      b.expert, ", stage ", b.stage, ", ", b.together, " side by side");
}

// Two runs of the program in each step.
v1::JobSpec SpecOf(const TinyJob& job, const Beside& b, TinyOptions options) {
  options.ranks = b.data * b.tensor;
  options.tensor = b.tensor;
  options.context = b.context;
  options.expert = b.expert;
  options.stage = b.stage;
  options.steps = 4;
  options.micro_batch = 1;
  options.global_batch = b.data / b.context * 2 * b.together;
  v1::JobSpec spec = job.Spec(options);
  spec.mutable_train()->mutable_batch()->set_side_by_side(b.together);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

v1::JobSpec InTurn(v1::JobSpec spec) {
  spec.mutable_train()->mutable_batch()->clear_side_by_side();
  return spec;
}

OptionsOfRank Devices(const v1::JobSpec& spec, uint64_t seed = 1, bool capture = true) {
  return OnDevice(seed, capture, spec.resources().ranks());
}

const Beside kBeside[] = {{},
                          {.together = 3},
                          {.data = 2, .stage = 3},
                          {.tensor = 2},
                          {.data = 2, .tensor = 2, .stage = 2},
                          {.data = 2, .context = 2}};

TEST(DeviceSideBySide, TrainsAsOnTheCpu) {
  const TinyJob job;
  const TinyOptions families[] = {
      {.dropout = 0.1, .documents = true},
      {.precision = v1::PRECISION_BF16, .llama = true, .kv_heads = 4, .documents = true}};
  for (const TinyOptions& family : families) {
    for (const Beside& b : kBeside) {
      SCOPED_TRACE(NameOf(b));
      const v1::JobSpec spec = SpecOf(job, b, family);
      ExpectSame(Train(spec, Devices(spec)), Train(spec, OnCpu),
                 family.precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
    }
  }
}

TEST(DeviceSideBySide, HasTheBitsOfMicroBatchesInTurn) {
  const TinyJob job;
  for (const Beside& b :
       {Beside{.tensor = 2}, {.data = 2, .context = 2}, {.data = 2, .expert = 2}}) {
    SCOPED_TRACE(NameOf(b));
    const TinyOptions options{.llama = true, .kv_heads = 4, .experts = b.expert > 1 ? 4 : 0};
    const v1::JobSpec spec = SpecOf(job, b, options);
    const Trained together = Train(spec, Devices(spec));
    const Trained in_turn = Train(InTurn(spec), Devices(spec));
    ExpectSameState(together.state, in_turn.state);
    ExpectSameState(Train(spec, Devices(spec, 77, /*capture=*/false)).state, in_turn.state);
  }
}

#if !defined(MILEPOST_ON_DEVICE)
TEST(DeviceSideBySide, MemoryIsAsPlanned) {
  const TinyJob job;
  for (const Beside& b : kBeside) {
    ExpectPlannedMemory(SpecOf(job, b, {.llama = true, .kv_heads = 4, .documents = true}));
  }
}
#endif

}  // namespace
}  // namespace milepost::runtime
