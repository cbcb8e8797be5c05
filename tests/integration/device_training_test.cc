// Whole training runs on a device against the CPU's. The device is a fake one: its streams and
// graphs run in random legal orders, its kernels on the host, and its libraries are doubles. So
// everything but NVIDIA's own code, and what calls it, is what a GPU runs. tests/gpu builds the
// same tests for a GPU.
#include "tests/integration/on_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/runtime/testing/npy.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/device_runs.h"

namespace milepost::runtime {
namespace {

struct Case {
  std::string name;
  TinyOptions options;
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

// Rounding to 8 bits tells two sums apart that differ by the order alone.
constexpr double kFp8Bar = 1e-2;

class Families : public testing::TestWithParam<Case> {};

TEST_P(Families, TrainAsOnTheCpu) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    TinyOptions options = GetParam().options;
    options.steps = 3;
    options.layers = 1;
    options.precision = precision;
    const v1::JobSpec spec = job.Spec(options);
    const Trained cpu = Train(spec, OnCpu);
    const double bar = precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar;
    ExpectSame(Train(spec, OnDevice(1)), cpu, bar);
  }
}

// Averages, and what takes the parameters' place for a validation and gives it back: the bits of a
// run that is never validated.
TEST(DeviceTraining, AveragesAreTheCpus) {
  const TinyJob job;
  struct Averaged {
    v1::Precision precision;
    bool masters = true;
    int ranks = 1;
    int stage = 0;
  };
  for (const Averaged& c :
       {Averaged{.precision = v1::PRECISION_FP32}, Averaged{v1::PRECISION_FP32, true, 2, 1},
        Averaged{v1::PRECISION_BF16, true, 2, 3}, Averaged{v1::PRECISION_BF16, false, 2, 1}}) {
    v1::JobSpec spec = job.Spec(
        {.ranks = c.ranks, .stage = c.stage, .precision = c.precision, .layers = 1, .steps = 3});
    spec.mutable_train()->mutable_ema()->set_decay(0.9);
    if (!c.masters) {
      spec.mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
    }
    v1::ValidationSetSpec& set = *spec.mutable_data()->add_validation_sets();
    set.set_name("same");
    set.set_path(spec.data().validation());
    NormalizeJobSpec(&spec);
    const auto device = [&] { return OnDevice(5, /*capture=*/true, c.ranks); };
    const double bar = c.precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar;
    const Trained once = Train(spec, device());
    ExpectSame(once, Train(spec, OnCpu), bar);
    ASSERT_EQ(once.evaluation.sets.size(), 1u);
    EXPECT_EQ(once.evaluation.sets[0].loss, once.evaluation.loss);
    Snapshot often;
    std::mutex mutex;
    RunRanks(
        spec,
        [&](int, TrainingSession& session) {
          ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
          while (session.step() < 3) {
            ASSERT_TRUE(session.Step(false).ok());
            ASSERT_TRUE(session.Evaluate().ok());
          }
          Save(session, often, mutex);
        },
        device());
    EXPECT_TRUE(often.data == once.state.data);
  }
}

// Islands that train apart: what an outer step makes of them, and of their states.
TEST(DeviceTraining, IslandsTrainAsOnTheCpu) {
  const TinyJob job;
  struct Islands {
    v1::Precision precision;
    int ranks = 2;
    int stage = 0;
    int tensor = 1;
    int pipeline = 1;
  };
  for (const Islands& c : {Islands{v1::PRECISION_FP32}, Islands{v1::PRECISION_BF16, 4, 1},
                           Islands{v1::PRECISION_BF16, 4, 3}, Islands{v1::PRECISION_FP32, 4, 1, 2},
                           Islands{v1::PRECISION_FP32, 4, 1, 1, 2}}) {
    v1::JobSpec spec = job.Spec({.ranks = c.ranks,
                                 .tensor = c.tensor,
                                 .pipeline = c.pipeline,
                                 .stage = c.stage,
                                 .precision = c.precision,
                                 .global_batch = 4,
                                 .micro_batch = 1,
                                 .layers = 2,
                                 .steps = 4});
    spec.mutable_train()->mutable_sync()->set_every(2);
    spec.mutable_train()->mutable_sync()->set_islands(2);
    NormalizeJobSpec(&spec);
    const double bar = c.precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar;
    ExpectSame(Train(spec, OnDevice(3, /*capture=*/true, c.ranks)), Train(spec, OnCpu), bar);
  }
}

// Experts among data ranks of every stage, and among tensor ranks, which divide each.
TEST(DeviceTraining, ExpertsTrainAsOnTheCpu) {
  const TinyJob job;
  struct Ranks {
    v1::Precision precision;
    int ranks;
    int stage;
    int tensor = 1;
    int pipeline = 1;
  };
  for (const Ranks& c : {Ranks{v1::PRECISION_FP32, 2, 1}, Ranks{v1::PRECISION_BF16, 2, 3},
                         Ranks{v1::PRECISION_FP32, 2, 0, 2}, Ranks{v1::PRECISION_FP32, 4, 1, 2, 2},
                         Ranks{v1::PRECISION_BF16, 2, 1, 1, 2}}) {
    SCOPED_TRACE(absl::StrCat(c.ranks, " ranks, stage ", c.stage, ", tensor ", c.tensor));
    const v1::JobSpec spec = job.Spec({.ranks = c.ranks,
                                       .tensor = c.tensor,
                                       .pipeline = c.pipeline,
                                       .stage = c.stage,
                                       .precision = c.precision,
                                       .global_batch = 4,
                                       .micro_batch = 1,
                                       .layers = 2,
                                       .steps = 3,
                                       .llama = true,
                                       .kv_heads = 4,
                                       .experts = 4,
                                       .balance = 0.01});
    const double bar = c.precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar;
    const Trained device = Train(spec, OnDevice(3, /*capture=*/true, c.ranks));
    ExpectSame(device, Train(spec, OnCpu), bar);
    if (c.tensor == 1 || c.pipeline == 1) continue;
    const Trained again = Train(spec, OnDevice(4, /*capture=*/false, c.ranks));
    EXPECT_TRUE(again.state.data == device.state.data);
  }
}

// The scalings of the first step, too, are the CPU's.
TEST(DeviceTraining, Fp8TrainsAsOnTheCpu) {
  const TinyJob job;
  for (const bool llama : {false, true}) {
    for (const int ranks : {1, 2}) {
      const v1::JobSpec spec = job.Spec({.ranks = ranks,
                                         .stage = llama ? 3 : 1,
                                         .precision = v1::PRECISION_FP8,
                                         .layers = 2,
                                         .steps = 4,
                                         .llama = llama});
      const OptionsOfRank device = OnDevice(3, /*capture=*/true, ranks);
      ExpectSame(Train(spec, device), Train(spec, OnCpu), kFp8Bar);
    }
  }
}

// Beside what travels to the host and back, codes too, and updates there: the device's bits.
TEST(DeviceTraining, Fp8WithOffloadingHasTheDevicesBits) {
  const TinyJob job;
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    v1::JobSpec spec = job.Spec({.ranks = ranks,
                                 .stage = 3,
                                 .precision = v1::PRECISION_FP8,
                                 .global_batch = 8 * ranks,
                                 .micro_batch = 4,
                                 .layers = 3,
                                 .width = 64,
                                 .steps = 4});
    const Trained want = Train(spec, OnDevice(1, /*capture=*/true, ranks));
    spec.mutable_train()->mutable_offload()->set_activations(true);
    for (const bool host : {false, true}) {
      if (host) spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
      const Trained got = Train(spec, OnDevice(2, /*capture=*/true, ranks));
      ExpectSame(got, want, 0);
      EXPECT_TRUE(got.state.data == want.state.data);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Families,
    testing::Values(Case{"Gpt2", {.dropout = 0.1}}, Case{"Gpt2Documents", {.documents = true}},
                    Case{"Llama", {.llama = true, .qk_norm = true}},
                    Case{"Olmo3", {.llama = true, .olmo3 = true}},
                    Case{"Experts", {.llama = true, .experts = 4, .balance = 0.01}},
                    Case{"ExpertsRecomputed",
                         {.recompute = v1::RECOMPUTE_FULL,
                          .llama = true,
                          .qk_norm = true,
                          .experts = 5,
                          .per_token = 1}},
                    Case{"LlamaBias", {.llama = true, .tied = true, .qkv_bias = true}},
                    Case{"Bert", {.dropout = 0.1, .bert = true}}, Case{"Heads", {.heads = true}},
                    Case{"Lora", {.lora = 4}},
                    Case{"Olmo3Dpo",
                         {.llama = true, .olmo3 = true, .documents = true, .lora = 4, .dpo = 0.5}},
                    Case{"Dpo", {.llama = true, .documents = true, .lora = 4, .dpo = 0.5}},
                    Case{"DpoWhole", {.llama = true, .tied = true, .documents = true, .dpo = 0.5}},
                    Case{"Nf4",
                         {.recompute = v1::RECOMPUTE_FULL,
                          .llama = true,
                          .qkv_bias = true,
                          .lora = 3,
                          .nf4 = true}},
                    Case{"LlamaLora", {.llama = true, .qkv_bias = true, .lora = 3}},
                    Case{"Dora", {.lora = 4, .dora = true}},
                    Case{"LlamaDora",
                         {.recompute = v1::RECOMPUTE_SELECTIVE,
                          .llama = true,
                          .qkv_bias = true,
                          .lora = 3,
                          .nf4 = true,
                          .dora = true}},
                    Case{"Recompute", {.recompute = v1::RECOMPUTE_FULL, .dropout = 0.1}}),
    [](const auto& info) { return info.param.name; });

// Packed documents by the library's attention, but in those micro-batches that have more than were
// planned for: every third sample has one for every other position. Both kinds are captured.
TEST(DeviceTraining, DocumentsByTheLibraryTrainAsOnTheCpu) {
  const TinyJob job;
  std::string tokens;
  for (int64_t i = 0; i < 40 * TinyJob::kContext + 1; ++i) {
    const bool many = i / TinyJob::kContext % 3 == 1;
    tokens += static_cast<char>(i % (many ? 2 : 9) == 1 ? 5 : i * i % TinyJob::kVocabulary);
  }
  WriteNpy(job.path("packed.npy"), "|u1", absl::StrCat(tokens.size(), ","), tokens);
  v1::JobSpec spec = job.Spec({.precision = v1::PRECISION_BF16,
                               .global_batch = 4,
                               .micro_batch = 1,
                               .layers = 1,
                               .width = 64,
                               .steps = 6,
                               .documents = true});
  spec.mutable_data()->set_train(job.path("packed.npy"));
  const Trained cpu = Train(spec, OnCpu);
  for (const uint64_t seed : {1, 2}) {
    ExpectSame(Train(spec, OnDevice(seed, /*capture=*/true, 1, /*attention=*/true)), cpu, kBf16Bar);
  }
}

#if !defined(MILEPOST_ON_DEVICE)
// Notes what is captured and what is launched.
class NotingDevice : public FakeDevice {
 public:
  NotingDevice(uint64_t seed, std::string* notes) : FakeDevice(seed), notes_(*notes) {}
  absl::Status BeginCapture(StreamId stream) override {
    notes_ += "c";
    return FakeDevice::BeginCapture(stream);
  }
  absl::Status Launch(GraphId graph, StreamId stream) override {
    notes_ += absl::StrCat(graph);
    return FakeDevice::Launch(graph, stream);
  }
  absl::StatusOr<GraphId> EndCapture(StreamId stream) override {
    notes_ += ")";
    return FakeDevice::EndCapture(stream);
  }

 private:
  std::string& notes_;
};

// Where one rank's micro-batch has more documents than were planned for, all of them take the own
// kernels, and none enqueues collectives that another captures or replays; in validation too, where
// parameters are gathered in it.
TEST(DeviceTraining, RanksWithAndWithoutManyDocumentsDoTheSame) {
  const TinyJob job;
  std::string tokens;
  for (int64_t i = 0; i < 40 * TinyJob::kContext + 1; ++i) {
    const bool many = i / TinyJob::kContext % 5 == 1;
    tokens += static_cast<char>(i % (many ? 2 : 9) == 1 ? 5 : i * i % TinyJob::kVocabulary);
  }
  WriteNpy(job.path("packed.npy"), "|u1", absl::StrCat(tokens.size(), ","), tokens);
  v1::JobSpec spec = job.Spec({.ranks = 2,
                               .stage = 3,
                               .precision = v1::PRECISION_BF16,
                               .global_batch = 4,
                               .micro_batch = 1,
                               .layers = 1,
                               .width = 64,
                               .steps = 8,
                               .documents = true});
  spec.mutable_data()->set_train(job.path("packed.npy"));
  spec.mutable_data()->set_validation(job.path("packed.npy"));
  spec.mutable_train()->mutable_validation()->set_samples(24);
  auto group = comm::MakeInProcessGroup(2);
  std::string notes[2];
  const Trained device = Train(spec, [&](int rank) {
    SessionOptions options;
    options.engine = [&, rank](const StepEngineArguments& arguments) {
      CudaEngineParts parts;
      parts.device = std::make_unique<NotingDevice>(1 + rank, &notes[rank]);
      parts.products = std::make_unique<kernels::cuda::HostProducts>();
      parts.graphs = std::make_unique<kernels::cuda::HostGraphs>(
          kernels::cuda::HostGraphsOptions{.attention = true});
      parts.communicator = [&, rank](const plan::StepPlan&, plan::Stream) {
        return std::make_unique<InProcessDeviceCommunicator>(*group[rank]);
      };
      return CudaStepEngine(arguments, std::move(parts));
    };
    return options;
  });
  ExpectSame(device, Train(spec, OnCpu), kBf16Bar);
  EXPECT_EQ(notes[0], notes[1]);
  EXPECT_GE(std::count(notes[0].begin(), notes[0].end(), 'c'), 5);
}
#endif

struct Sharding {
  int ranks;
  int stage;
  int group;
};

void PrintTo(const Sharding& test, std::ostream* out) {
  *out << "stage " << test.stage << ", " << test.ranks << " ranks by " << test.group;
}

class Stages : public testing::TestWithParam<Sharding> {};

TEST_P(Stages, TrainAsOnTheCpu) {
  const TinyJob job;
  const Sharding& sharding = GetParam();
  v1::JobSpec spec = job.Spec({.ranks = sharding.ranks,
                               .stage = sharding.stage,
                               .group = sharding.group,
                               .global_batch = sharding.ranks == 4 ? 16 : 12,
                               .layers = 1,
                               .dropout = 0.1,
                               .steps = 3});
  const OptionsOfRank device = OnDevice(1, /*capture=*/true, sharding.ranks);
  ExpectSame(Train(spec, device), Train(spec, OnCpu), kFp32Bar);
}

INSTANTIATE_TEST_SUITE_P(All, Stages,
                         testing::Values(Sharding{2, 0, 0}, Sharding{2, 1, 0}, Sharding{3, 2, 0},
                                         Sharding{2, 3, 0}, Sharding{4, 3, 2}),
                         [](const auto& info) {
                           return absl::StrCat("Stage", info.param.stage, "On", info.param.ranks,
                                               "By", info.param.group);
                         });

// Overflows are skipped on the device, and the scale goes its way as on the CPU.
// Ranks that divide layers, beside ranks with samples of their own, against one rank on the CPU.
TEST(DeviceTraining, TensorRanksTrainAsOneRankOnTheCpu) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (TinyOptions options :
         {TinyOptions{.dropout = 0.1}, TinyOptions{.llama = true, .kv_heads = 4, .qkv_bias = true},
          TinyOptions{.llama = true, .qk_norm = true},
          TinyOptions{.llama = true, .kv_heads = 1, .qkv_bias = true},
          TinyOptions{.bert = true, .documents = true}}) {
      options.steps = 2;
      options.layers = 1;
      options.precision = precision;
      options.micro_batch = options.global_batch;
      const Trained cpu = Train(job.Spec(options), OnCpu);
      for (const int stage : {0, 1, 3}) {
        TinyOptions divided = options;
        divided.stage = stage;
        divided.ranks = stage == 0 ? 2 : 4;
        divided.tensor = 2;
        divided.micro_batch = options.global_batch / (divided.ranks / 2) / 2;
        SCOPED_TRACE(absl::StrCat("stage ", stage));
        const Trained device =
            Train(job.Spec(divided), OnDevice(1, /*capture=*/true, divided.ranks));
        ExpectSame(device, cpu, precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
      }
    }
  }
}

TEST(DeviceTraining, TensorRanksBeginWithTheValuesOfOneRank) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const TinyOptions options{.precision = precision, .llama = true};
    const Trained cpu = Train(job.Spec(options), 0, OnCpu);
    TinyOptions divided = options;
    divided.ranks = 4;
    divided.tensor = 2;
    divided.stage = 2;
    const Trained device = Train(job.Spec(divided), 0, OnDevice(1, /*capture=*/true, 4));
    EXPECT_TRUE(device.state.data == cpu.state.data);
  }
}

TEST(DeviceTraining, Fp16SkipsOverflows) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec({.precision = v1::PRECISION_FP16, .layers = 1, .steps = 6});
  spec.mutable_train()->mutable_loss_scale()->set_initial(1 << 24);
  spec.mutable_train()->set_clip_norm(0.5);
  const Trained cpu = Train(spec, OnCpu);
  EXPECT_TRUE(cpu.reports.front().skipped);
  EXPECT_FALSE(cpu.reports.back().skipped);
  ExpectSame(Train(spec, OnDevice(6)), cpu, kBf16Bar);
}

class Optimizers : public testing::TestWithParam<v1::OptimizerSpec::Type> {};

TEST_P(Optimizers, TrainAsOnTheCpu) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec({.layers = 1, .steps = 3});
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  optimizer->Clear();
  optimizer->set_type(GetParam());
  optimizer->set_lr(1e-3);
  NormalizeJobSpec(&spec);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  ExpectSame(Train(spec, OnDevice(7)), Train(spec, OnCpu), kFp32Bar);
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers,
                         testing::Values(v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION,
                                         v1::OptimizerSpec::TYPE_ADAN, v1::OptimizerSpec::TYPE_LAMB,
                                         v1::OptimizerSpec::TYPE_MUON,
                                         v1::OptimizerSpec::TYPE_ADAMW_8BIT));

// Optimizer states in host memory, updated by the host beside the device's copies: the same bits as
// on the device, with losses scaled and not, op by op and as graphs.
TEST(DeviceTraining, OffloadedUpdatesHaveTheDevicesBits) {
  const TinyJob job;
  struct Test {
    int ranks;
    int stage;
    v1::Precision precision;
    v1::OptimizerSpec::Type optimizer;
  };
  for (const Test& test : {Test{1, 0, v1::PRECISION_FP32, v1::OptimizerSpec::TYPE_ADAMW},
                           Test{1, 0, v1::PRECISION_FP16, v1::OptimizerSpec::TYPE_ADAMW},
                           Test{2, 1, v1::PRECISION_BF16, v1::OptimizerSpec::TYPE_LION},
                           Test{2, 2, v1::PRECISION_FP32, v1::OptimizerSpec::TYPE_SGD},
                           Test{2, 3, v1::PRECISION_BF16, v1::OptimizerSpec::TYPE_ADAMW_8BIT}}) {
    SCOPED_TRACE(absl::StrCat(test.ranks, " ranks, stage ", test.stage));
    v1::JobSpec spec = job.Spec({.ranks = test.ranks,
                                 .stage = test.stage,
                                 .precision = test.precision,
                                 .global_batch = 4,
                                 .micro_batch = test.stage == 3 ? 2 : 1,
                                 .layers = 1,
                                 .steps = 3});
    v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
    optimizer->Clear();
    optimizer->set_type(test.optimizer);
    optimizer->set_lr(1e-3);
    NormalizeJobSpec(&spec);
    if (test.precision == v1::PRECISION_FP16) {
      spec.mutable_train()->mutable_loss_scale()->set_initial(1 << 24);
    }
    const Trained want = Train(spec, OnDevice(1, /*capture=*/true, test.ranks));
    spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
    for (const bool capture : {false, true}) {
      if (!capture && test.stage != 1) continue;
      const Trained got = Train(spec, OnDevice(2, capture, test.ranks));
      ExpectSame(got, want, 0);
      EXPECT_TRUE(got.state.data == want.state.data);
    }
  }
}

v1::JobSpec OnDisk(v1::JobSpec spec) {
  v1::OffloadSpec* offload = spec.mutable_train()->mutable_offload();
  offload->set_optimizer(v1::OFFLOAD_TARGET_NVME);
  offload->set_path(std::filesystem::path(spec.data().train()).parent_path().string());
  return spec;
}

// The same on disk between updates, with more groups than have places on the host at once.
TEST(DeviceTraining, StatesOnDiskHaveTheDevicesBits) {
  const TinyJob job;
  struct Test {
    int ranks;
    int stage;
    v1::Precision precision;
    int64_t accumulation;
  };
  for (const Test& test : {Test{1, 0, v1::PRECISION_FP32, 2}, Test{1, 0, v1::PRECISION_FP16, 1},
                           Test{2, 1, v1::PRECISION_BF16, 2}, Test{2, 3, v1::PRECISION_BF16, 1}}) {
    SCOPED_TRACE(absl::StrCat(test.ranks, " ranks, stage ", test.stage));
    v1::JobSpec spec = job.Spec({.ranks = test.ranks,
                                 .stage = test.stage,
                                 .precision = test.precision,
                                 .global_batch = test.ranks * test.accumulation,
                                 .micro_batch = 1,
                                 .layers = 3,
                                 .steps = 3});
    if (test.precision == v1::PRECISION_FP16) {
      spec.mutable_train()->mutable_loss_scale()->set_initial(1 << 24);
    }
    const Trained want = Train(spec, OnDevice(1, /*capture=*/true, test.ranks));
    for (const bool capture : {false, true}) {
      if (!capture && test.stage != 1) continue;
      const Trained got = Train(OnDisk(spec), OnDevice(2, capture, test.ranks));
      ExpectSame(got, want, 0);
      EXPECT_TRUE(got.state.data == want.state.data);
    }
  }
}

// Activations that wait in host memory, likewise; with updates there too.
TEST(DeviceTraining, OffloadedActivationsHaveTheDevicesBits) {
  const TinyJob job;
  for (const auto& [ranks, recompute] :
       {std::pair(1, v1::RECOMPUTE_NONE), std::pair(2, v1::RECOMPUTE_FULL)}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    v1::JobSpec spec = job.Spec({.ranks = ranks,
                                 .stage = 3,
                                 .recompute = recompute,
                                 .global_batch = 4 * ranks,
                                 .micro_batch = 4,
                                 .layers = 3,
                                 .width = 64,
                                 .steps = 3});
    const Trained want = Train(spec, OnDevice(1, /*capture=*/true, ranks));
    spec.mutable_train()->mutable_offload()->set_activations(true);
    for (const bool capture : {false, true}) {
      const Trained got = Train(spec, OnDevice(3, capture, ranks));
      ExpectSame(got, want, 0);
      EXPECT_TRUE(got.state.data == want.state.data);
      spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
    }
  }
}

// By one rank and by two, whose statistics are one, or are averaged after each step. Steps are
// small and batch norms have some rows: a tiny model in bf16 is far from itself in fp32 after two
// others.
TEST(DeviceTraining, ImagesTrainAsOnTheCpu) {
  const TinyImages job;
  for (const auto& [ranks, sync] : {std::pair(1, true), std::pair(2, true), std::pair(2, false)}) {
    std::optional<Trained> exact;
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, sync ", sync, ", ", v1::Precision_Name(precision)));
      v1::JobSpec spec = job.Spec({.ranks = ranks,
                                   .precision = precision,
                                   .global_batch = 16 * ranks,
                                   .micro_batch = 8,
                                   .sync = sync,
                                   .steps = 3,
                                   .lr = 1e-4});
      spec.mutable_model()->mutable_resnet()->set_image_size(16);
      const double bar = precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar;
      const Trained cpu = Train(spec, OnCpu);
      ExpectSame(Train(spec, OnDevice(1, /*capture=*/true, ranks)), cpu, bar,
                 exact.has_value() ? &*exact : nullptr);
      if (precision == v1::PRECISION_FP32) exact = cpu;
    }
  }
}

TEST(DeviceTraining, VitsTrainAsOnTheCpu) {
  using Vit = TinyImageOptions;
  const TinyImages job;
  for (Vit options : {Vit{.precision = v1::PRECISION_FP32, .heads = true, .dropout = 0.1},
                      Vit{.precision = v1::PRECISION_BF16, .heads = true, .dropout = 0.1},
                      Vit{.ranks = 2,
                      .stage = 3,
                      .recompute = v1::RECOMPUTE_FULL,
                      .precision = v1::PRECISION_FP16},
                      Vit{.ranks = 2, .stage = 2, .precision = v1::PRECISION_BF16, .lora = 3},
                      Vit{.precision = v1::PRECISION_FP8}}) {
    SCOPED_TRACE(
        absl::StrCat("stage ", options.stage, ", ", v1::Precision_Name(options.precision)));
    const bool fp8 = options.precision == v1::PRECISION_FP8;
    options.micro_batch = fp8 ? 16 : 4;  // of 17 rows each
    options.global_batch = (fp8 ? 1 : 2) * options.ranks * options.micro_batch;
    options.steps = 3;
    options.vit = true;
    const v1::JobSpec spec = job.Spec(options);
    const double bar = options.precision == v1::PRECISION_FP32 ? kFp32Bar
                       : fp8                                   ? kFp8Bar
                                                               : kBf16Bar;
    const OptionsOfRank device = OnDevice(1, /*capture=*/true, options.ranks);
    ExpectSame(Train(spec, device), Train(spec, OnCpu), bar);
  }
}

// Op by op and as graphs, in several orders: the same bits.
TEST(DeviceTraining, OrderAndCaptureChangeNothing) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.layers = 1, .dropout = 0.1, .steps = 5});
  const Trained first = Train(spec, OnDevice(1, /*capture=*/false));
  for (const uint64_t seed : {2, 3}) {
    const Trained again = Train(spec, OnDevice(seed));
    EXPECT_EQ(again.state.data, first.state.data);
  }
}

// Of every step, whether its ops are enqueued or launched as a graph; of ops, from some runs.
TEST(DeviceTraining, SaysWhereTheTimeGoes) {
  const TinyJob job;
  for (const bool capture : {false, true}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks", capture ? ", captured" : ""));
      const v1::JobSpec spec = job.Spec({.ranks = ranks,
                                         .stage = 3,
                                         .global_batch = 2 * ranks,
                                         .micro_batch = 1,
                                         .layers = 1,
                                         .steps = 4});
      RunRanks(
          spec,
          [&](int, TrainingSession& session) {
            ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
            while (session.step() < spec.train().steps()) {
              auto report = session.Step(false);
              ASSERT_TRUE(report.ok()) << report.status();
              EXPECT_GT(report->forward_seconds, 0);
              EXPECT_GT(report->backward_seconds, 0);
              EXPECT_GT(report->update_seconds, 0);
              EXPECT_EQ(report->communication_seconds > 0, ranks > 1);
              EXPECT_GE(report->communication_wait_seconds, 0);
            }
            double update = 0;
            for (const OpKindTime& time : session.op_times()) {
              EXPECT_GT(time.runs, 0) << graph::Name(time.kind);
              if (time.kind == graph::OpKind::kOptimizer) update += time.seconds;
            }
            EXPECT_GT(update, 0);
          },
          OnDevice(8, capture, ranks));
    }
  }
}

// As of train.init_from, which brings some of the state.
TEST(DeviceTraining, WhatIsNotGivenStaysAsItWasInitialised) {
  const TinyJob job;
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP8}) {
    const v1::JobSpec spec = job.Spec({.precision = precision, .layers = 2, .steps = 2});
    const auto run = [&](const OptionsOfRank& options) {
      std::vector<double> losses;
      RunRanks(
          spec,
          [&](int, TrainingSession& session) {
            ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
            ASSERT_EQ(session.FetchState(), absl::OkStatus());
            const StateInterval given = session.RestoreTargets()[0];
            std::fill_n(reinterpret_cast<float*>(given.data), given.end - given.begin, 0.01F);
            ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
            while (session.step() < 2) losses.push_back(session.Step(false)->train_loss);
          },
          options);
      return losses;
    };
    const std::vector<double> cpu = run(OnCpu);
    const std::vector<double> device = run(OnDevice(1));
    ASSERT_EQ(device.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) ExpectClose(device[i], cpu[i], kFp8Bar, "loss");
  }
}

struct Adapted {
  v1::Precision precision;
  int ranks;
  int stage;
};

void PrintTo(const Adapted& test, std::ostream* out) {
  *out << v1::Precision_Name(test.precision) << ", " << test.ranks << " ranks, stage "
       << test.stage;
}

class Adapters : public testing::TestWithParam<Adapted> {};

// The state after `steps` steps, of which the first is saved too. `given`: what is adapted is not
// what it was initialised with.
Snapshot TrainAdapters(const v1::JobSpec& spec, bool given, const Snapshot* from, int64_t steps,
                       const OptionsOfRank& options) {
  Snapshot end;
  std::mutex mutex;
  RunRanks(
      spec,
      [&](int, TrainingSession& session) {
        ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
        if (given) {
          ASSERT_EQ(session.FetchState(), absl::OkStatus());
          GiveBase(session);
          if (from == nullptr) {
            ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
          }
        }
        if (from != nullptr) {
          ASSERT_EQ(Restore(session, *from), absl::OkStatus());
        }
        while (session.step() < steps) {
          const auto report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          if (session.step() > 1) continue;
          Snapshot on_the_way;  // each rank's own: another may be ahead
          std::mutex alone;
          Save(session, on_the_way, alone);
        }
        Save(session, end, mutex);
      },
      options);
  return end;
}

// What is adapted stays on the device: a checkpoint has none of it, nor does a restore send it
// again, unless it is given.
TEST_P(Adapters, GoOnOverWhatTheyAdapt) {
  const auto& [precision, ranks, stage] = GetParam();
  const TinyJob job;
  for (const bool given : {false, true}) {
    SCOPED_TRACE(given ? "given" : "initialised");
    const v1::JobSpec spec = job.Spec({.ranks = ranks,
                                       .stage = stage,
                                       .precision = precision,
                                       .layers = 1,
                                       .steps = 4,
                                       .lora = 4,
                                       .nf4 = given && precision == v1::PRECISION_BF16,
                                       .dora = ranks == 2});
    for (const OptionsOfRank& options : {OptionsOfRank(OnCpu), OnDevice(4, true, ranks)}) {
      const Snapshot whole = TrainAdapters(spec, given, nullptr, 4, options);
      for (const v1::TensorInfo& tensor : whole.tensors) {
        EXPECT_THAT(tensor.name(), testing::HasSubstr(".lora_"));
      }
      const Snapshot half = TrainAdapters(spec, given, nullptr, 2, options);
      EXPECT_NE(half.data, whole.data);
      EXPECT_EQ(TrainAdapters(spec, given, &half, 4, options).data, whole.data);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Adapters,
    testing::Values(Adapted{v1::PRECISION_FP32, 1, 0}, Adapted{v1::PRECISION_FP32, 2, 1},
                    Adapted{v1::PRECISION_FP32, 2, 3}, Adapted{v1::PRECISION_BF16, 1, 0},
                    Adapted{v1::PRECISION_BF16, 2, 1}, Adapted{v1::PRECISION_BF16, 2, 3}));

// A checkpoint of the CPU goes on on a device, and one of a device on the CPU.
TEST(DeviceTraining, CheckpointsMoveBetweenDevices) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.layers = 1, .steps = 6});
  const Trained whole = Train(spec, OnCpu);
  const auto go_on = [&](const Trained& begun, const OptionsOfRank& options) {
    std::vector<double> losses;
    RunRanks(
        spec,
        [&](int, TrainingSession& session) {
          ASSERT_EQ(Restore(session, begun.state), absl::OkStatus());
          while (session.step() < spec.train().steps()) {
            auto report = session.Step(false);
            ASSERT_TRUE(report.ok()) << report.status();
            losses.push_back(report->train_loss);
          }
        },
        options);
    ASSERT_EQ(losses.size(), 3U);
    for (int i = 0; i < 3; ++i) {
      ExpectClose(losses[i], whole.reports[3 + i].train_loss, kFp32Bar, absl::StrCat("loss ", i));
    }
  };
  go_on(Train(spec, 3, OnCpu), OnDevice(4));
  go_on(Train(spec, 3, OnDevice(5)), OnCpu);
}

}  // namespace
}  // namespace milepost::runtime
