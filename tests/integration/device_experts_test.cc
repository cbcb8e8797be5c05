// Expert parallelism on a device (device_training_test.cc says which): ranks that share out the
// experts of each layer, beside tensor ranks, context ranks and stages, against the same mesh on
// the CPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/device_runs.h"
#include "tests/integration/on_device.h"

namespace milepost::runtime {
namespace {

struct ExpertMesh {
  int data = 1;  // ranks that have the same experts
  int expert = 1;
  int stage = 1;
  int context = 1;  // of data and expert ranks
  int tensor = 1;
  int pipeline = 1;

  int Ranks() const { return data * expert * tensor * pipeline; }
};

std::string NameOfMesh(const ExpertMesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", expert ", mesh.expert, ", stage ", mesh.stage,
                      ", context ", mesh.context, ", tensor ", mesh.tensor, ", pipeline ",
                      mesh.pipeline);
}

// Two sequences at a time, in two micro-batches.
TinyOptions SharedOut(const ExpertMesh& mesh, TinyOptions options) {
  options.ranks = mesh.Ranks();
  options.expert = mesh.expert;
  options.context = mesh.context;
  options.tensor = mesh.tensor;
  options.pipeline = mesh.pipeline;
  if (mesh.pipeline > 1) options.schedule = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
  options.stage = mesh.stage;
  options.steps = 3;
  options.micro_batch = 2;
  options.global_batch = 4 * mesh.data * mesh.expert / mesh.context;
  return options;
}

OptionsOfRank ExpertDevices(const ExpertMesh& mesh, uint64_t seed = 1) {
  return OnDevice(seed, /*capture=*/true, mesh.Ranks());
}

void ExpectTheCpus(const TinyJob& job, const ExpertMesh& mesh, TinyOptions options,
                   v1::Precision precision = v1::PRECISION_FP32) {
  options.precision = precision;
  SCOPED_TRACE(absl::StrCat(NameOfMesh(mesh), ", ", v1::Precision_Name(precision)));
  const v1::JobSpec spec = job.Spec(SharedOut(mesh, options));
  ExpectSame(Train(spec, ExpertDevices(mesh)), Train(spec, OnCpu),
             precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
}

struct ExpertFamily {
  std::string name;
  TinyOptions options;
};

std::vector<ExpertFamily> ExpertFamilies() {
  return {{"mixtral", {.llama = true, .kv_heads = 4, .experts = 4}},
          {"packed mixtral", {.llama = true, .tied = true, .experts = 8, .documents = true}},
          {"qwen3 moe", {.llama = true, .qk_norm = true, .experts = 8, .per_token = 3}},
          {"one for each token", {.llama = true, .experts = 4, .per_token = 1}},
          {"all for each token", {.llama = true, .experts = 4, .per_token = 4}}};
}

TEST(DeviceExperts, TrainAsTheSameMeshOnTheCpu) {
  const TinyJob job;
  for (const ExpertFamily& family : ExpertFamilies()) {
    SCOPED_TRACE(family.name);
    ExpectTheCpus(job, {1, 2, 1}, family.options);
    ExpectTheCpus(job, {1, 2, 3}, family.options, v1::PRECISION_BF16);
  }
  ExpectTheCpus(job, {1, 4, 2}, ExpertFamilies().front().options);
}

// Experts are balanced over a micro-batch, which one rank has too.
TEST(DeviceExperts, TrainAsOneRankOnTheCpu) {
  const TinyJob job;
  const ExpertMesh mesh{2, 2, 1};
  for (const ExpertFamily& family : ExpertFamilies()) {
    if (family.options.per_token == 4) continue;
    SCOPED_TRACE(family.name);
    TinyOptions alone = SharedOut(mesh, family.options);
    alone.ranks = alone.expert = 1;
    ExpectSame(Train(job.Spec(SharedOut(mesh, family.options)), ExpertDevices(mesh)),
               Train(job.Spec(alone), OnCpu), kFp32Bar);
  }
}

TEST(DeviceExperts, AtEveryStageOfSharding) {
  const TinyJob job;
  for (const int stage : {0, 1, 2, 3}) {
    ExpectTheCpus(job, {1, 2, stage}, {.llama = true, .experts = 4, .balance = 0.01});
    ExpectTheCpus(job, {2, 2, stage}, {.llama = true, .experts = 4});
  }
}

// What lies where is asked once more, or kept.
TEST(DeviceExperts, Recomputed) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    ExpectTheCpus(job, {1, 2, 3},
                  {.recompute = recompute, .llama = true, .experts = 8, .per_token = 3});
  }
}

TEST(DeviceExperts, WithOtherRanks) {
  const TinyJob job;
  const TinyOptions options = {.llama = true, .kv_heads = 4, .experts = 4, .balance = 0};
  ExpectTheCpus(job, {1, 2, 1, 2}, options);
  ExpectTheCpus(job, {1, 2, 2, 1, 2}, options);
  ExpectTheCpus(job, {1, 2, 1, 1, 1, 2}, options);
  ExpectTheCpus(job, {1, 2, 3, 1, 1, 2}, options, v1::PRECISION_BF16);
  TinyOptions again = options;
  again.recompute = v1::RECOMPUTE_FULL;
  ExpectTheCpus(job, {1, 2, 1, 1, 1, 2}, again);
#if !defined(MILEPOST_ON_DEVICE)  // eight ranks of one process have more streams than it has queues
  ExpectTheCpus(job, {2, 2, 1, 2, 2}, options);
  ExpectTheCpus(job, {1, 2, 1, 1, 2, 2}, options);
#endif
}

struct ExpertCase {
  std::string name;
  void (*change)(v1::JobSpec*) = [](v1::JobSpec*) {};
  TinyOptions options = {};
  double bar = kFp32Bar;
};

// To the rest of a job expert ranks are data ranks.
std::vector<ExpertCase> ExpertCases() {
  return {{"average", [](v1::JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(0.9); }},
          {"clipping", [](v1::JobSpec* s) { s->mutable_train()->set_clip_norm(0.05); }},
          {"fp16", [](v1::JobSpec*) {}, {.precision = v1::PRECISION_FP16}, kBf16Bar},
          {"8-bit states",
           [](v1::JobSpec* s) {
             s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_ADAMW_8BIT);
           }},
          {"rounded sums",
           [](v1::JobSpec* s) { s->mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16); },
           {.precision = v1::PRECISION_BF16},
           kBf16Bar},
          {"frozen",
           [](v1::JobSpec* s) {
             v1::ParameterGroupSpec& group = *s->mutable_train()->mutable_optimizer()->add_groups();
             group.set_match("*experts*");
             group.set_freeze(true);
           }},
          {"offload", [](v1::JobSpec* s) {
             s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
             s->mutable_train()->mutable_offload()->set_activations(true);
           }}};
}

TEST(DeviceExperts, WithWhatDataRanksHave) {
  const TinyJob job;
  const ExpertMesh mesh{2, 2, 2};
  for (const ExpertCase& one : ExpertCases()) {
    SCOPED_TRACE(one.name);
    TinyOptions options = one.options;
    options.llama = true;
    options.experts = 4;
    v1::JobSpec spec = job.Spec(SharedOut(mesh, options));
    one.change(&spec);
    NormalizeJobSpec(&spec);
    ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    ExpectSame(Train(spec, ExpertDevices(mesh)), Train(spec, OnCpu), one.bar);
  }
}

// A checkpoint goes on without expert ranks and on the CPU, and on its own mesh to the bit.
TEST(DeviceExperts, CheckpointsGoOnElsewhere) {
  const TinyJob job;
  const ExpertMesh mesh{2, 2, 1};
  const auto spec = [&](const ExpertMesh& on) {
    TinyOptions shared = SharedOut(on, {.llama = true, .experts = 4});
    shared.global_batch = 16;
    return job.Spec(shared);
  };
  const Trained cpu = Train(spec({}), OnCpu);
  const Trained whole = Train(spec(mesh), ExpertDevices(mesh));
  const Trained half = Train(spec(mesh), 2, ExpertDevices(mesh));
  EXPECT_TRUE(Train(spec(mesh), 3, ExpertDevices(mesh), &half.state).state.data ==
              whole.state.data);
  const auto expect_rest = [&](const Trained& rest) {
    ASSERT_EQ(rest.reports.size(), 1U);
    ExpectClose(rest.reports[0].train_loss, cpu.reports[2].train_loss, kFp32Bar, "loss");
  };
  const ExpertMesh other{1, 4, 3};
  expect_rest(Train(spec(other), 3, ExpertDevices(other), &half.state));
  expect_rest(Train(spec({}), 3, OnCpu, &half.state));
}

// In whatever order its streams run.
TEST(DeviceExperts, ARunHasTheSameBitsAgain) {
  const TinyJob job;
  const ExpertMesh mesh{2, 2, 2};
  const v1::JobSpec spec = job.Spec(SharedOut(mesh, {.llama = true, .experts = 8}));
  const Trained first = Train(spec, ExpertDevices(mesh, 1));
  const Trained second = Train(spec, ExpertDevices(mesh, 77));
  ASSERT_EQ(first.reports.size(), second.reports.size());
  for (size_t i = 0; i < first.reports.size(); ++i) {
    EXPECT_EQ(first.reports[i].train_loss, second.reports[i].train_loss);
    EXPECT_EQ(first.reports[i].grad_norm, second.reports[i].grad_norm);
  }
  EXPECT_TRUE(first.state.data == second.state.data);
}

#if !defined(MILEPOST_ON_DEVICE)
TEST(DeviceExperts, MemoryIsAsPlanned) {
  const TinyJob job;
  for (const ExpertMesh& mesh : {ExpertMesh{1, 2, 1}, ExpertMesh{2, 2, 3}}) {
    ExpectPlannedMemory(job.Spec(SharedOut(mesh, {.llama = true, .experts = 8})));
  }
}

// Every rank whose peer fails comes back with an error, also where its host waits for numbers.
TEST(DeviceExperts, APeerThatFailsEndsAll) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec(SharedOut({1, 4, 1}, {.llama = true, .experts = 4}));
  ExpectAFailureEndsAll(spec, /*steps=*/1, /*failing=*/2);
}
#endif

}  // namespace
}  // namespace milepost::runtime
