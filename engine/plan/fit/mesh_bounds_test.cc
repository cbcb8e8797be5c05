#include "engine/plan/fit/mesh_bounds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/plan/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

constexpr int64_t kLayers = 26;  // no number of stages divides them

v1::JobSpec SpecOfStages(v1::DeviceKind device = v1::DEVICE_KIND_CUDA) {
  v1::JobSpec spec;
  spec.set_name("test");
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(kLayers);
  llama.set_width(512);
  llama.set_heads(8);
  llama.set_kv_heads(4);
  llama.set_hidden(1536);
  llama.set_context(1024);
  llama.set_vocabulary(4096);
  spec.mutable_data()->set_train("/train.npy");
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->mutable_batch()->set_global(64);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_resources()->set_ranks(32);
  spec.mutable_resources()->set_device(device);
  NormalizeJobSpec(&spec);
  return spec;
}

RankPlace PlaceWith(const DeviceProfile& profile) {
  return {.memory_bytes = int64_t{1} << 40,
          .memory_of = "the test",
          .host_memory = false,
          .profile = profile,
          .threads = 1};
}

ScaledDraft AlikeOf(Setting setting, Recompute recompute, const RankPlace& place,
                    v1::DeviceKind device) {
  setting.pipeline = setting.context = 1;
  setting.schedule = PipelineSchedule::kOneForwardOneBackward;
  setting.chunks = 1;
  setting.recompute = recompute;
  setting.stage = 1;
  setting.accumulation = std::max<int64_t>(1, 64 * setting.tensor / (32 * setting.micro));
  const auto draft = DraftScaled(WithSetting(SpecOfStages(device), setting), place);
  EXPECT_TRUE(draft.ok()) << draft.status();
  return draft.ok() ? *draft : ScaledDraft();
}

// `close`: what part of the seconds the bound is at least.
void ExpectBoundsHold(const Setting& setting, const DeviceProfile& profile, double close,
                      v1::DeviceKind device = v1::DEVICE_KIND_CUDA) {
  const RankPlace place = PlaceWith(profile);
  const v1::JobSpec spec = WithSetting(SpecOfStages(device), setting);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  const auto draft = DraftScaled(spec, place);
  const auto layer = DraftLayerPasses(spec, place);
  const auto options = OptionsFromSpec(spec, 1);
  ASSERT_TRUE(draft.ok() && layer.ok() && options.ok()) << draft.status() << layer.status();
  const ScaledDraft alike = AlikeOf(setting, setting.recompute, place, device);
  const ScaledDraft keeps_all = AlikeOf(setting, Recompute::kNone, place, device);
  const AlikeSeconds seconds = {alike.MicroStepSeconds(profile), alike.TensorSeconds(profile)};
  const PipelineShape shape = ShapeOf(*options);
  const PipelineTime time = TimeOf(shape);
  const double whole = draft->Seconds(profile);
  EXPECT_LE(LeastSecondsOf(*options, alike, seconds, kLayers, time.step / time.busy, profile),
            whole);
  const double passes =
      LeastSecondsOfPasses(*options, kLayers, layer->Seconds(profile),
                           layer->TransferSeconds(*options, profile), OrdersOf(shape));
  const double least = LeastSecondsOfStages(*options, alike, seconds, kLayers, passes, profile);
  EXPECT_LE(least, whole);
  EXPECT_GT(least, close * whole);
  EXPECT_LE(kBoundPart *
                LeastBytesOfStage(*options, alike, keeps_all, kLayers, MostInFlight(shape).front()),
            static_cast<double>(draft->bytes));
  int64_t work = 0;
  for (const StepCosts& stage : draft->stages.costs) {
    int64_t of_stage = 0;
    for (const OpCosts& op : stage.ops) of_stage += op.work;
    work = std::max(work, of_stage);
  }
  const int64_t most = (kLayers + setting.pipeline - 1) / setting.pipeline;
  const double counted = layer->work * static_cast<double>(most * draft->drafted);
  EXPECT_LE(counted, static_cast<double>(work));
  EXPECT_GT(counted, 0.7 * static_cast<double>(work));
}

// Pipelines with and without context ranks, on links that decide and on links that do not.
TEST(MeshBounds, OfPipelinesAreNoMoreThanWhatDraftsFind) {
  for (const double gbits : {100.0, 3200.0}) {
    const DeviceProfile profile = OnHosts(*BuiltInProfile("h100"), 8, gbits);
    for (const PipelineSchedule schedule :
         {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kZeroBubble}) {
      for (const int stages : {2, 4, 8}) {
        for (const auto& [tensor, context] : {std::pair(1, 1), {2, 1}, {1, 2}, {1, 4}, {2, 2}}) {
          for (const int stage : {1, 3}) {
            for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
              const Setting setting = {.tensor = tensor,
                                       .pipeline = stages,
                                       .context = context,
                                       .schedule = schedule,
                                       .accumulation = 2 * tensor * stages * context,
                                       .stage = stage,
                                       .recompute = recompute};
              SCOPED_TRACE(absl::StrCat(stages, " stages, ", tensor, " tensor, ", context,
                                        " context, stage ", stage, ", ", Name(schedule), ", ",
                                        Name(recompute), ", ", gbits));
              // The slowest stage has more than the mean of the layers, and the head. What few
              // stages send each other does not leave a host.
              ExpectBoundsHold(setting, profile, stage == 1 && gbits > 1000 ? 0.65 : 0);
            }
          }
        }
      }
    }
  }
}

// Where a context rank's few rows are slower than its part of all, and where links cost no core's
// time.
TEST(MeshBounds, HoldOnCpusWhoseSmallProductsAreSlower) {
  for (const double overlap : {0.0, 1.0}) {
    for (const double network : {1e8, 1e10}) {
      DeviceProfile profile = *BuiltInProfile("cpu");
      profile.matmul["F32"].product_half = 200;
      profile.matmul["F32"].attention_half = 500;
      profile.overlap = overlap;
      profile.network_bandwidth = network;
      for (const auto& [stages, on_host] : {std::pair(2, 4), {4, 4}, {8, 16}}) {
        profile.ranks_per_host = on_host;
        for (const int context : {1, 2, 4}) {
          for (const int stage : {1, 3}) {
            const Setting setting = {.pipeline = stages,
                                     .context = context,
                                     .accumulation = 2 * stages * context,
                                     .stage = stage};
            SCOPED_TRACE(absl::StrCat(stages, " stages, ", context, " context, stage ", stage,
                                      ", overlap ", overlap, ", network ", network));
            ExpectBoundsHold(setting, profile, 0, v1::DEVICE_KIND_CPU);
          }
        }
      }
    }
  }
}

// With whole rounds of micro-batches, with one and a half, and with few.
TEST(MeshBounds, OfInterleavedPipelinesAreNoMoreThanWhatDraftsFind) {
  for (const double gbits : {100.0, 3200.0}) {
    const DeviceProfile profile = OnHosts(*BuiltInProfile("h100"), 8, gbits);
    for (const auto& [stages, chunks] : {std::pair(2, 2), {4, 2}, {4, 3}, {8, 2}}) {
      for (const auto& [tensor, context] : {std::pair(1, 1), {2, 1}, {1, 2}}) {
        for (const int64_t micro : {1, 2, 4}) {
          for (const int stage : {1, 3}) {
            const Setting setting = {.tensor = tensor,
                                     .pipeline = stages,
                                     .context = context,
                                     .schedule = PipelineSchedule::kInterleaved,
                                     .chunks = chunks,
                                     .micro = micro,
                                     .accumulation = 2 * tensor * stages * context / micro,
                                     .stage = stage};
            if (setting.accumulation < 1) continue;
            SCOPED_TRACE(absl::StrCat(stages, " stages x ", chunks, ", ", tensor, " tensor, ",
                                      context, " context, stage ", stage, ", micro ", micro, ", ",
                                      gbits));
            ExpectBoundsHold(setting, profile, 0);
          }
        }
      }
    }
  }
}

// Two stages of four ranks each are on a host of eight, three would not be.
TEST(MeshBounds, WhatStaysOnAHostIsNotCountedAsSentOverANetwork) {
  const DeviceProfile profile = OnHosts(*BuiltInProfile("h100"), 8, 1);
  for (const auto& [tensor, context] : {std::pair(4, 1), {2, 2}, {1, 4}}) {
    for (const PipelineSchedule schedule :
         {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kZeroBubble}) {
      SCOPED_TRACE(absl::StrCat(tensor, " tensor, ", context, " context, ", Name(schedule)));
      ExpectBoundsHold({.tensor = tensor,
                        .pipeline = 2,
                        .context = context,
                        .schedule = schedule,
                        .accumulation = 16,
                        .stage = 1},
                       profile, 0);
    }
  }
}

// Fewer than stages, as many, and a few more.
TEST(MeshBounds, HoldWithFewMicroBatches) {
  for (const double gbits : {100.0, 3200.0}) {
    const DeviceProfile profile = OnHosts(*BuiltInProfile("h100"), 8, gbits);
    for (const PipelineSchedule schedule :
         {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kZeroBubble}) {
      for (const int stages : {2, 4, 8}) {
        for (const int64_t micro : {1, 2, 4}) {
          const int64_t accumulation = 2 * stages / micro;
          SCOPED_TRACE(absl::StrCat(stages, " stages, ", accumulation, " micro-batches, ",
                                    Name(schedule), ", ", gbits));
          ExpectBoundsHold({.pipeline = stages,
                            .schedule = schedule,
                            .micro = micro,
                            .accumulation = accumulation,
                            .stage = 1},
                           profile, 0);
        }
      }
    }
  }
}

// Stages of few layers keep what they have gathered.
TEST(MeshBounds, ParametersThatAreKeptAreNotGatheredAgain) {
  const DeviceProfile profile = OnHosts(*BuiltInProfile("h100"), 1, 10);
  for (const int stages : {8, 16}) {
    SCOPED_TRACE(stages);
    ExpectBoundsHold({.pipeline = stages, .accumulation = 2 * stages, .stage = 3}, profile, 0);
  }
}

TEST(MeshBounds, LayersThatDifferHaveNoShortDrafts) {
  v1::JobSpec spec = WithSetting(SpecOfStages(), {.pipeline = 4, .accumulation = 8});
  v1::ParameterGroupSpec* group = spec.mutable_train()->mutable_optimizer()->add_groups();
  group->set_match("model.layers.3.*");
  const auto layer = DraftLayerPasses(spec, PlaceWith(*BuiltInProfile("h100")));
  ASSERT_TRUE(layer.ok()) << layer.status();
  EXPECT_EQ(layer->layers, 0);
}

}  // namespace
}  // namespace milepost::plan
