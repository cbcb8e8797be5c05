// Pipelines on a device (device_training_test.cc says which): stages that divide the layers, beside
// tensor and data ranks, against one rank on the CPU.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/testing/npy.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/device_runs.h"
#include "tests/integration/on_device.h"

namespace milepost::runtime {
namespace {

constexpr auto k1F1B = v1::PIPELINE_SCHEDULE_1F1B;
constexpr auto kZeroBubble = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
constexpr auto kInterleaved = v1::PIPELINE_SCHEDULE_INTERLEAVED;  // of 2 chunks

struct DeviceMesh {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int stage = 0;
  v1::PipelineSchedule schedule = k1F1B;
  int64_t layers = 3;
};

std::string NameOf(const DeviceMesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", tensor ", mesh.tensor, ", pipeline ", mesh.pipeline,
                      ", stage ", mesh.stage, ", schedule ", mesh.schedule);
}

TinyOptions On(const DeviceMesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.tensor * mesh.pipeline;
  options.tensor = mesh.tensor;
  options.pipeline = mesh.pipeline;
  options.schedule = mesh.schedule;
  options.stage = mesh.stage;
  options.layers = mesh.layers;
  options.steps = 3;  // op by op, and as a graph
  options.global_batch = 4;
  options.micro_batch = 1;
  return options;
}

OptionsOfRank Devices(const DeviceMesh& mesh, uint64_t seed = 1, bool capture = true,
                      bool attention = false) {
  return OnDevice(seed, capture, mesh.data * mesh.tensor * mesh.pipeline, attention);
}

struct PipelineFamily {
  std::string name;
  TinyOptions options;
};

std::vector<PipelineFamily> PipelineFamilies() {
  return {{"gpt2", {.dropout = 0.1}},
          {"tied llama", {.llama = true, .kv_heads = 4, .tied = true, .qk_norm = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}}};
}

TEST(DevicePipelines, TrainAsOneRankOnTheCpu) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (PipelineFamily& family : PipelineFamilies()) {
      family.options.precision = precision;
      const Trained cpu = Train(job.Spec(On({}, family.options)), OnCpu);
      std::vector<DeviceMesh> meshes = {{1, 1, 2, 0, k1F1B}, {1, 2, 2, 1, kZeroBubble}};
      if (family.name == "gpt2") {
        meshes.insert(meshes.end(),
                      {{1, 1, 3, 1, kZeroBubble}, {2, 1, 2, 2, kZeroBubble}, {2, 1, 2, 3, k1F1B}});
#if !defined(MILEPOST_ON_DEVICE)  // eight ranks of one process have more streams than it has queues
        meshes.push_back({2, 2, 2, 1, k1F1B});
#endif
      }
      for (const DeviceMesh& mesh : meshes) {
        SCOPED_TRACE(
            absl::StrCat(family.name, " on ", NameOf(mesh), ", ", v1::Precision_Name(precision)));
        const Trained device = Train(job.Spec(On(mesh, family.options)), Devices(mesh));
        ExpectSame(device, cpu, precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
      }
    }
  }
}

// Stages with two chunks of layers each hand on in a ring.
TEST(DevicePipelines, InterleavedOnesTrainAsOneRankOnTheCpu) {
  const TinyJob job;
  const auto mesh_of = [](int data, int tensor, int pipeline, int stage) {
    return DeviceMesh{data, tensor, pipeline, stage, kInterleaved, /*layers=*/6};
  };
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (PipelineFamily& family : PipelineFamilies()) {
      if (precision == v1::PRECISION_BF16 && family.name != "tied llama") continue;
      family.options.precision = precision;
      const Trained cpu = Train(job.Spec(On({.layers = 6}, family.options)), OnCpu);
      std::vector<DeviceMesh> meshes = {mesh_of(1, 1, 2, 0), mesh_of(1, 1, 3, 1)};
      if (family.name == "gpt2") meshes.push_back(mesh_of(2, 1, 2, 3));
      if (family.name == "bert") meshes.push_back(mesh_of(1, 2, 2, 1));
      for (const DeviceMesh& mesh : meshes) {
        SCOPED_TRACE(
            absl::StrCat(family.name, " on ", NameOf(mesh), ", ", v1::Precision_Name(precision)));
        const Trained device = Train(job.Spec(On(mesh, family.options)), Devices(mesh));
        ExpectSame(device, cpu, precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
      }
    }
  }
}

// What the families above do not have: further heads, windows, gated activations, images.
TEST(DevicePipelines, OtherFamiliesTrainAsOneRankOnTheCpu) {
  const TinyJob job;
  const DeviceMesh mesh{1, 1, 3, 0, kZeroBubble};
  for (const TinyOptions& options :
       {TinyOptions{.documents = true, .heads = true},
        TinyOptions{.llama = true, .tied = true, .gemma3 = true},
        TinyOptions{
            .llama = true, .qkv_bias = true, .activation = v1::LlamaSpec::ACTIVATION_GEGLU}}) {
    ExpectSame(Train(job.Spec(On(mesh, options)), Devices(mesh)),
               Train(job.Spec(On({}, options)), OnCpu), kFp32Bar);
  }
  const TinyImages images;
  const auto spec = [&](int stages) {
    v1::JobSpec made = images.Spec({.global_batch = 4,
                                    .micro_batch = 2,
                                    .steps = 3,
                                    .heads = true,
                                    .vit = true,
                                    .dropout = 0.1});
    made.mutable_resources()->set_ranks(stages);
    if (stages > 1) made.mutable_resources()->mutable_mesh()->set_pipeline(stages);
    NormalizeJobSpec(&made);
    EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
    return made;
  };
  ExpectSame(Train(spec(2), OnDevice(1, /*capture=*/true, 2)), Train(spec(1), OnCpu), kFp32Bar);
}

TEST(DevicePipelines, BeginWithTheValuesOfOneRank) {
  const TinyJob job;
  for (const PipelineFamily& family : PipelineFamilies()) {
    const Trained cpu = Train(job.Spec(On({}, family.options)), 0, OnCpu);
    const DeviceMesh mesh{2, 1, 3, 1};
    const Trained device = Train(job.Spec(On(mesh, family.options)), 0, Devices(mesh));
    EXPECT_TRUE(device.state.data == cpu.state.data) << family.name;
  }
}

// By either schedule, op by op and as graphs, in several orders.
TEST(DevicePipelines, HaveTheSameBitsHoweverTheyRun) {
  const TinyJob job;
  const TinyOptions options{.dropout = 0.1};
  const DeviceMesh mesh{1, 2, 2, 1, k1F1B}, other{1, 2, 2, 1, kZeroBubble};
  const v1::JobSpec spec = job.Spec(On(mesh, options));
  const Trained first = Train(spec, Devices(mesh, 1, /*capture=*/false));
  EXPECT_EQ(Train(spec, Devices(mesh, 2, /*capture=*/false)).state.data, first.state.data);
  EXPECT_EQ(Train(spec, Devices(mesh, 3)).state.data, first.state.data);
  EXPECT_EQ(Train(job.Spec(On(other, options)), Devices(other, 4)).state.data, first.state.data);
  const DeviceMesh ring{1, 1, 3, 1, kInterleaved, /*layers=*/6};
  const v1::JobSpec interleaved = job.Spec(On(ring, options));
  const Trained one = Train(interleaved, Devices(ring, 1, /*capture=*/false));
  EXPECT_EQ(Train(interleaved, Devices(ring, 2, /*capture=*/false)).state.data, one.state.data);
  EXPECT_EQ(Train(interleaved, Devices(ring, 3)).state.data, one.state.data);
}

// Every step is clipped, by a norm in which tied weights count once.
TEST(DevicePipelines, ClipByTheWholeModelsNorm) {
  const TinyJob job;
  const auto spec = [&](const DeviceMesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true, .tied = true}));
    made.mutable_train()->set_clip_norm(0.05);
    return made;
  };
  const DeviceMesh mesh{2, 1, 3, 1};
  const Trained cpu = Train(spec({}), OnCpu);
  for (const StepReport& report : cpu.reports) EXPECT_GT(report.grad_norm, 0.05);
  ExpectSame(Train(spec(mesh), Devices(mesh)), cpu, kFp32Bar);
}

TEST(DevicePipelines, WithRecomputationAndAverages) {
  const TinyJob job;
  const auto spec = [&](const DeviceMesh& mesh, v1::Recompute recompute) {
    v1::JobSpec made =
        job.Spec(On(mesh, {.recompute = recompute, .dropout = 0.1, .llama = true, .tied = true}));
    made.mutable_train()->mutable_ema()->set_decay(0.9);
    NormalizeJobSpec(&made);
    return made;
  };
  const Trained cpu = Train(spec({}, v1::RECOMPUTE_NONE), OnCpu);
  for (const DeviceMesh& mesh : {DeviceMesh{1, 1, 2, 1, kZeroBubble}, DeviceMesh{2, 1, 2, 3}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectSame(Train(spec(mesh, v1::RECOMPUTE_FULL), Devices(mesh)), cpu, kFp32Bar);
  }
}

// A checkpoint of any mesh and device goes on at any other, and on its own to the bit.
TEST(DevicePipelines, CheckpointsGoOnElsewhere) {
  const TinyJob job;
  for (const PipelineFamily& family : PipelineFamilies()) {
    SCOPED_TRACE(family.name);
    const DeviceMesh mesh{2, 1, 2, 1, kZeroBubble}, other{1, 2, 3, 0};
    const auto spec = [&](const DeviceMesh& on) { return job.Spec(On(on, family.options)); };
    const Trained cpu = Train(spec({}), OnCpu);
    const Trained whole = Train(spec(mesh), Devices(mesh));
    const Trained half = Train(spec(mesh), 2, Devices(mesh));
    EXPECT_TRUE(Train(spec(mesh), 3, Devices(mesh), &half.state).state.data == whole.state.data);
    const auto expect_rest = [&](const Trained& rest) {
      ASSERT_EQ(rest.reports.size(), 1U);
      ExpectClose(rest.reports[0].train_loss, cpu.reports[2].train_loss, kFp32Bar, "loss");
    };
    expect_rest(Train(spec(other), 3, Devices(other), &half.state));
    expect_rest(Train(spec({}), 3, OnCpu, &half.state));
    const Trained begun = Train(spec({}), 2, OnCpu);
    expect_rest(Train(spec(other), 3, Devices(other), &begun.state));
  }
}

// By the library's attention, which has tables of each micro-batch's documents; in some steps a
// micro-batch has more than were planned for.
TEST(DevicePipelines, DocumentsByTheLibraryTrainAsOnTheCpu) {
  const TinyJob job;
  std::string tokens;
  for (int64_t i = 0; i < 40 * TinyJob::kContext + 1; ++i) {
    const bool many = i / TinyJob::kContext % 7 == 1;
    tokens += static_cast<char>(i % (many ? 2 : 9) == 1 ? 5 : i * i % TinyJob::kVocabulary);
  }
  WriteNpy(job.path("packed.npy"), "|u1", absl::StrCat(tokens.size(), ","), tokens);
  const auto spec = [&](const DeviceMesh& mesh) {
    TinyOptions options =
        On(mesh, {.precision = v1::PRECISION_BF16, .width = 64, .documents = true});
    options.steps = 6;
    v1::JobSpec made = job.Spec(options);
    made.mutable_data()->set_train(job.path("packed.npy"));
    return made;
  };
  const DeviceMesh mesh{2, 1, 2, 1};
  ExpectSame(Train(spec(mesh), Devices(mesh, 1, /*capture=*/true, /*attention=*/true)),
             Train(spec({}), OnCpu), kBf16Bar);
}

TEST(DevicePipelines, SayWhereTheTimeGoes) {
  const TinyJob job;
  const DeviceMesh mesh{1, 1, 2, 1};
  RunRanks(
      job.Spec(On(mesh, {})),
      [](int, TrainingSession& session) {
        ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
        while (session.step() < 3) {
          const auto report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          EXPECT_GT(report->forward_seconds, 0);
          EXPECT_GT(report->backward_seconds, 0);
          EXPECT_GT(report->communication_seconds, 0);
        }
      },
      Devices(mesh));
}

#if !defined(MILEPOST_ON_DEVICE)
TEST(DevicePipelines, HaveTheMemoryThatIsPlanned) {
  const TinyJob job;
  TinyOptions options = On({2, 1, 2, 2}, {.dropout = 0.1, .bert = true, .documents = true});
  options.global_batch = 64;
  ExpectPlannedMemory(job.Spec(options));
  TinyOptions ring = On({1, 1, 2, 1, kInterleaved, 4}, {.dropout = 0.1});
  ring.global_batch = 16;
  ExpectPlannedMemory(job.Spec(ring));
}

// What is planned is what is sent, by each of a rank's communicators.
TEST(DevicePipelines, SendWhatIsPlanned) {
  const TinyJob job;
  for (const DeviceMesh& mesh :
       {DeviceMesh{1, 1, 3, 0, k1F1B}, DeviceMesh{2, 1, 2, 1, kZeroBubble},
        DeviceMesh{1, 1, 3, 1, kInterleaved, 6}, DeviceMesh{2, 1, 2, 1, kInterleaved, 6}}) {
    const v1::JobSpec spec = job.Spec(On(mesh, {.llama = true, .tied = true}));
    const int ranks = spec.resources().ranks();
    const auto devices = comm::MakeInProcessGroup(ranks);
    std::vector<StageTransfers> transfers(static_cast<size_t>(ranks));
    RunRanks(
        spec,
        [&](int rank, TrainingSession& session) {
          ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
          const auto sent = [&] {
            return devices[rank]->stats().bytes_sent +
                   transfers[rank].activations->stats().bytes_sent +
                   transfers[rank].gradients->stats().bytes_sent;
          };
          for (int i = 0; i < 3; ++i) {
            const int64_t before = sent();
            ASSERT_TRUE(session.Step(false).ok());
            // A few bytes of scalars are sent whole, not as a ring would.
            EXPECT_NEAR(static_cast<double>(sent() - before), session.plan().wire_bytes_per_step,
                        300)
                << NameOf(mesh) << ", rank " << rank;
          }
        },
        [&](int rank) {
          SessionOptions options;
          options.engine = [&, rank](const StepEngineArguments& arguments) {
            transfers[rank] = arguments.transfers;
            return EngineOnFakeDevice(arguments, *devices[rank],
                                      std::make_unique<FakeDevice>(/*seed=*/1 + rank));
          };
          return options;
        });
  }
}

class CountsAborts : public InProcessDeviceCommunicator {
 public:
  explicit CountsAborts(comm::Communicator& ranks) : InProcessDeviceCommunicator(ranks) {}
  void Abort(absl::string_view reason) override {
    ++count;
    InProcessDeviceCommunicator::Abort(reason);
  }
  static std::atomic<int> count;
};
std::atomic<int> CountsAborts::count{0};

// Peers wait for a rank in any of its three communicators. One that has failed lets go of all of
// them, one that is done of none.
TEST(DevicePipelines, AFailedRankLetsGoOfItsPeers) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec(On({1, 1, 2, 1}, {}));
  for (const bool failing : {false, true}) {
    const auto devices = comm::MakeInProcessGroup(2);
    const bool fails[2] = {false, failing};
    bool begun[2] = {};
    CountsAborts::count = 0;
    RunRanks(
        spec,
        [&](int rank, TrainingSession& session) {
          ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
          ASSERT_TRUE(session.Step(false).ok());
          begun[rank] = fails[rank];
          EXPECT_EQ(session.Step(false).ok(), !failing);
        },
        [&](int rank) {
          SessionOptions options;
          options.engine = [&, rank](const StepEngineArguments& arguments) {
            return EngineOnFakeDevice<CountsAborts>(
                arguments, *devices[rank],
                std::make_unique<FailingDevice>(/*seed=*/1 + rank, begun[rank]));
          };
          return options;
        });
    EXPECT_EQ(CountsAborts::count, failing ? 6 : 0);
  }
}

// Every rank of a pipeline whose peer fails comes back with an error, wherever it waits.
TEST(DevicePipelines, APeerThatFailsEndsAll) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec(On({1, 1, 3, 1}, {}));
  for (const int steps : {1, 3}) {  // op by op, and as a graph
    for (int failing = 0; failing < 3; ++failing) {
      SCOPED_TRACE(absl::StrCat("rank ", failing, " after ", steps));
      ExpectAFailureEndsAll(spec, steps, failing);
    }
  }
}
#endif

}  // namespace
}  // namespace milepost::runtime
