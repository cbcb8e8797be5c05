// Context parallelism on a device (device_training_test.cc says which): ranks that divide the
// tokens of their sequences, beside tensor ranks, stages and data ranks, against the same mesh on
// the CPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/device_runs.h"
#include "tests/integration/on_device.h"

namespace milepost::runtime {
namespace {

struct ContextMesh {
  int data = 1;
  int context = 1;
  int tensor = 1;
  int pipeline = 1;
  int stage = 1;
  int group = 0;

  int Ranks() const { return data * context * tensor * pipeline; }
};

std::string NameOfMesh(const ContextMesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", context ", mesh.context, ", tensor ", mesh.tensor,
                      ", pipeline ", mesh.pipeline, ", stage ", mesh.stage, ", group ", mesh.group);
}

// Two sequences at a time, at odd stages in two micro-batches.
TinyOptions Divided(const ContextMesh& mesh, TinyOptions options) {
  options.ranks = mesh.Ranks();
  options.tensor = mesh.tensor;
  options.context = mesh.context;
  options.pipeline = mesh.pipeline;
  if (mesh.pipeline > 1) options.schedule = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
  options.stage = mesh.stage;
  options.group = mesh.group;
  options.steps = 3;  // op by op, and as a graph
  options.micro_batch = 2;
  options.global_batch = 2 * mesh.data * (mesh.pipeline > 1 ? 2 : 1 + mesh.stage % 2);
  return options;
}

OptionsOfRank ContextDevices(const ContextMesh& mesh, uint64_t seed = 1, bool capture = true,
                             bool attention = false) {
  return OnDevice(seed, capture, mesh.Ranks(), attention);
}

// On the device as on the CPU.
void ExpectTheCpus(const TinyJob& job, const ContextMesh& mesh, TinyOptions options,
                   v1::Precision precision = v1::PRECISION_FP32) {
  options.precision = precision;
  SCOPED_TRACE(absl::StrCat(NameOfMesh(mesh), ", ", v1::Precision_Name(precision)));
  const v1::JobSpec spec = job.Spec(Divided(mesh, options));
  ExpectSame(Train(spec, ContextDevices(mesh)), Train(spec, OnCpu),
             precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
}

struct ContextFamily {
  std::string name;
  TinyOptions options;
};

// OLMo 3's norms of all heads at once have no tensor ranks and no stages.
std::vector<ContextFamily> ContextFamilies() {
  return {{"gpt2", {.dropout = 0.1}},
          {"packed gpt2", {.dropout = 0.1, .documents = true}},
          {"llama", {.llama = true, .kv_heads = 4, .tied = true, .qkv_bias = true}},
          {"qwen3", {.llama = true, .kv_heads = 2, .qk_norm = true}},
          {"gemma3", {.llama = true, .tied = true, .gemma3 = true}},
          {"olmo3", {.llama = true, .kv_heads = 4, .olmo3 = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
          {"heads", {.documents = true, .heads = true}}};
}

TEST(DeviceContext, TrainsAsTheSameMeshOnTheCpu) {
  const TinyJob job;
  for (const ContextFamily& family : ContextFamilies()) {
    SCOPED_TRACE(family.name);
    ExpectTheCpus(job, {1, 2, 1, 1, 2}, family.options);
    ExpectTheCpus(job, {1, 2, 1, 1, 0}, family.options, v1::PRECISION_BF16);
  }
}

TEST(DeviceContext, TrainsAsOneRankOnTheCpu) {
  const TinyJob job;
  const ContextMesh mesh{2, 2, 1, 1, 1};
  for (const ContextFamily& family : ContextFamilies()) {
    SCOPED_TRACE(family.name);
    TinyOptions alone = Divided(mesh, family.options);
    alone.ranks = alone.context = 1;
    ExpectSame(Train(job.Spec(Divided(mesh, family.options)), ContextDevices(mesh)),
               Train(job.Spec(alone), OnCpu), kFp32Bar);
  }
}

TEST(DeviceContext, AtEveryStageOfSharding) {
  const TinyJob job;
  for (const ContextMesh& mesh :
       {ContextMesh{1, 2, 1, 1, 0}, ContextMesh{1, 2, 1, 1, 3}, ContextMesh{2, 2, 1, 1, 0},
        ContextMesh{2, 2, 1, 1, 3}, ContextMesh{2, 2, 1, 1, 3, /*group=*/2}}) {
    ExpectTheCpus(job, mesh, {.dropout = 0.1});
  }
}

// A head of queries each, and of keys four, two or one among them.
TEST(DeviceContext, FourRanksShareHeadsOfKeysThatAreFewer) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const int64_t kv_heads : {1, 2, 4}) {
      SCOPED_TRACE(kv_heads);
      ExpectTheCpus(job, {1, 4, 1, 1, 1}, {.llama = true, .kv_heads = kv_heads, .qk_norm = true},
                    precision);
    }
    ExpectTheCpus(job, {1, 4, 1, 1, 2}, {.dropout = 0.1}, precision);
  }
}

// One sequence at a time: what is received lies where it is read.
TEST(DeviceContext, WithFewerSequencesThanRanks) {
  const TinyJob job;
  for (const int64_t kv_heads : {1, 4}) {
    TinyOptions options = Divided({1, 4, 1, 1, 1}, {.llama = true, .kv_heads = kv_heads});
    options.micro_batch = options.global_batch = 1;
    const v1::JobSpec spec = job.Spec(options);
    ExpectSame(Train(spec, OnDevice(1, /*capture=*/true, 4)), Train(spec, OnCpu), kFp32Bar);
  }
}

// Of fewer heads than ranks each has a part of the queries: one head for two ranks, or two for four
// that share one of keys.
TEST(DeviceContext, RanksShareTheQueriesOfFewHeads) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    ExpectTheCpus(job, {1, 2, 1, 1, 1}, {.attention_heads = 1, .sequence = 200, .dropout = 0.1},
                  precision);
    ExpectTheCpus(job, {1, 4, 1, 1, 2},
                  {.attention_heads = 2,
                   .sequence = 200,
                   .llama = true,
                   .kv_heads = 1,
                   .qk_norm = true,
                   .documents = true},
                  precision);
  }
}

TEST(DeviceContext, TensorRanksAndStagesShareTheQueriesOfFewHeads) {
  const TinyJob job;
  ExpectTheCpus(job, {1, 3, 2, 1, 1}, {.attention_heads = 2, .sequence = 240, .dropout = 0.1});
  ExpectTheCpus(job, {1, 2, 1, 2, 1}, {.attention_heads = 1, .sequence = 200, .dropout = 0.1});
}

TEST(DeviceContext, WithTensorRanks) {
  const TinyJob job;
  for (ContextFamily& family : ContextFamilies()) {
    if (family.options.olmo3) continue;
    SCOPED_TRACE(family.name);
    ExpectTheCpus(job, {1, 2, 2, 1, 1}, family.options);  // two heads of keys: one is shared
  }
  ExpectTheCpus(job, {1, 2, 2, 1, 3}, {.dropout = 0.1}, v1::PRECISION_BF16);
}

TEST(DeviceContext, WithStages) {
  const TinyJob job;
  for (ContextFamily& family : ContextFamilies()) {
    if (family.options.olmo3) continue;
    SCOPED_TRACE(family.name);
    ExpectTheCpus(job, {1, 2, 1, 2, 1}, family.options);
  }
  ExpectTheCpus(job, {1, 2, 1, 2, 3}, {.dropout = 0.1}, v1::PRECISION_BF16);
#if !defined(MILEPOST_ON_DEVICE)  // eight ranks of one process have more streams than it has queues
  ExpectTheCpus(job, {2, 2, 1, 2, 2}, {.dropout = 0.1});
  ExpectTheCpus(job, {1, 2, 2, 2, 1}, {.dropout = 0.1});
#endif
}

// By the library's attention, which has tables of whole sequences' documents.
TEST(DeviceContext, ByTheLibrarysAttention) {
  const TinyJob job;
  const ContextMesh mesh{1, 2, 1, 1, 1};
  for (const bool documents : {false, true}) {
    const v1::JobSpec spec = job.Spec(
        Divided(mesh, {.precision = v1::PRECISION_BF16, .width = 64, .documents = documents}));
    ExpectSame(Train(spec, ContextDevices(mesh, 1, /*capture=*/true, /*attention=*/true)),
               Train(spec, OnCpu), kBf16Bar);
  }
}

struct ContextCase {
  std::string name;
  void (*change)(v1::JobSpec*) = [](v1::JobSpec*) {};
  TinyOptions options = {};
  double bar = kFp32Bar;
};

// To the rest of a job context ranks are data ranks.
std::vector<ContextCase> ContextCases() {
  return {{"recomputation", [](v1::JobSpec*) {}, {.recompute = v1::RECOMPUTE_FULL, .dropout = 0.1}},
          {"average", [](v1::JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(0.9); }},
          {"clipping", [](v1::JobSpec* s) { s->mutable_train()->set_clip_norm(0.05); }},
          {"lora", [](v1::JobSpec*) {}, {.llama = true, .lora = 3}},
          {"fp16", [](v1::JobSpec*) {}, {.precision = v1::PRECISION_FP16}, kBf16Bar},
          {"offload", [](v1::JobSpec* s) {
             s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
             s->mutable_train()->mutable_offload()->set_activations(true);
           }}};
}

TEST(DeviceContext, WithWhatDataRanksHave) {
  const TinyJob job;
  const ContextMesh mesh{2, 2, 1, 1, 2};
  for (const ContextCase& one : ContextCases()) {
    SCOPED_TRACE(one.name);
    v1::JobSpec spec = job.Spec(Divided(mesh, one.options));
    one.change(&spec);
    NormalizeJobSpec(&spec);
    ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    ExpectSame(Train(spec, ContextDevices(mesh)), Train(spec, OnCpu), one.bar);
  }
}

// Op by op and as graphs, in several orders.
TEST(DeviceContext, HasTheSameBitsHoweverItRuns) {
  const TinyJob job;
  for (const ContextMesh& mesh :
       {ContextMesh{2, 2, 1, 1, 2}, ContextMesh{1, 4, 1, 1, 1}, ContextMesh{1, 2, 1, 2, 1}}) {
    SCOPED_TRACE(NameOfMesh(mesh));
    const v1::JobSpec spec =
        job.Spec(Divided(mesh, {.llama = true, .kv_heads = 2, .qk_norm = true}));
    const Trained first = Train(spec, ContextDevices(mesh, 1, /*capture=*/false));
    EXPECT_EQ(Train(spec, ContextDevices(mesh, 2, /*capture=*/false)).state.data, first.state.data);
    EXPECT_EQ(Train(spec, ContextDevices(mesh, 3)).state.data, first.state.data);
  }
}

// A checkpoint goes on at any other mesh and device, and on its own to the bit.
TEST(DeviceContext, CheckpointsGoOnElsewhere) {
  const TinyJob job;
  const ContextMesh mesh{2, 2, 1, 1, 1}, other{1, 2, 2, 1, 3};
  for (const TinyOptions& options :
       {TinyOptions{.dropout = 0.1}, TinyOptions{.llama = true, .kv_heads = 2, .tied = true}}) {
    const auto spec = [&](const ContextMesh& on) {
      TinyOptions divided = Divided(on, options);
      divided.global_batch = 8;
      return job.Spec(divided);
    };
    const Trained cpu = Train(spec({}), OnCpu);
    const Trained whole = Train(spec(mesh), ContextDevices(mesh));
    const Trained half = Train(spec(mesh), 2, ContextDevices(mesh));
    EXPECT_TRUE(Train(spec(mesh), 3, ContextDevices(mesh), &half.state).state.data ==
                whole.state.data);
    const auto expect_rest = [&](const Trained& rest) {
      ASSERT_EQ(rest.reports.size(), 1U);
      ExpectClose(rest.reports[0].train_loss, cpu.reports[2].train_loss, kFp32Bar, "loss");
    };
    expect_rest(Train(spec(other), 3, ContextDevices(other), &half.state));
    expect_rest(Train(spec({}), 3, OnCpu, &half.state));
    const Trained begun = Train(spec({}), 2, OnCpu);
    expect_rest(Train(spec(mesh), 3, ContextDevices(mesh), &begun.state));
  }
}

#if !defined(MILEPOST_ON_DEVICE)
TEST(DeviceContext, HasTheMemoryThatIsPlanned) {
  const TinyJob job;
  ExpectPlannedMemory(
      job.Spec(Divided({2, 2, 1, 1, 2}, {.dropout = 0.1, .bert = true, .documents = true})));
}

// What is planned is what is sent.
TEST(DeviceContext, SendsWhatIsPlanned) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const ContextMesh& mesh : {ContextMesh{1, 4, 1, 1, 0}, ContextMesh{1, 4, 1, 1, 3},
                                    ContextMesh{2, 2, 1, 1, 1}, ContextMesh{1, 2, 2, 1, 1}}) {
      const v1::JobSpec spec = job.Spec(
          Divided(mesh, {.precision = precision, .llama = true, .kv_heads = 2, .qk_norm = true}));
      const auto devices = comm::MakeInProcessGroup(4);
      RunRanks(
          spec,
          [&](int rank, TrainingSession& session) {
            ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
            for (int i = 0; i < 3; ++i) {
              const int64_t before = devices[rank]->stats().bytes_sent;
              ASSERT_TRUE(session.Step(false).ok());
              const auto sent = static_cast<double>(devices[rank]->stats().bytes_sent - before);
              // A few bytes of scalars are sent whole, not as a ring would.
              EXPECT_NEAR(sent, session.plan().wire_bytes_per_step, 300) << NameOfMesh(mesh);
            }
          },
          [&](int rank) {
            SessionOptions options;
            options.engine = [&, rank](const StepEngineArguments& arguments) {
              return EngineOnFakeDevice(arguments, *devices[rank],
                                        std::make_unique<FakeDevice>(/*seed=*/1 + rank));
            };
            return options;
          });
    }
  }
}

// Every rank whose peer fails comes back with an error, also where it waits for its pieces.
TEST(DeviceContext, APeerThatFailsEndsAll) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec(Divided({1, 4, 1, 1, 1}, {}));
  for (const int steps : {1, 3}) {  // op by op, and as a graph
    SCOPED_TRACE(steps);
    ExpectAFailureEndsAll(spec, steps, /*failing=*/2);
  }
}
#endif

}  // namespace
}  // namespace milepost::runtime
