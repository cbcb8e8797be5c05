#include "engine/plan/fit/scaled_draft.h"

#include "absl/strings/str_cat.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

RankPlace Gpu(const DeviceProfile& profile) {
  return {.memory_bytes = int64_t{1} << 40,
          .memory_of = "the test",
          .host_memory = false,
          .profile = profile,
          .threads = 1};
}

v1::JobSpec ScaledLlama(int64_t layers) {
  v1::JobSpec spec;
  spec.set_name("test");
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(layers);
  llama.set_width(512);
  llama.set_heads(8);
  llama.set_kv_heads(4);
  llama.set_hidden(1536);
  llama.set_context(512);
  llama.set_vocabulary(2048);
  spec.mutable_data()->set_train("/train.npy");
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->mutable_batch()->set_global(64);
  spec.mutable_train()->mutable_batch()->set_micro(2);
  spec.mutable_resources()->set_ranks(16);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return spec;
}

// How far the draft's seconds and bytes are from those of the whole plan, as parts of these.
struct Off {
  double seconds = 0;
  double bytes = 0;
  double exact_bytes = 0;
};

Off OffOf(v1::JobSpec spec, const Setting& setting, const DeviceProfile& profile) {
  NormalizeJobSpec(&spec);
  const v1::JobSpec with = WithSetting(spec, setting);
  EXPECT_EQ(ValidateJobSpec(with), absl::OkStatus());
  const RankPlace place = Gpu(profile);
  const auto draft = DraftScaled(with, place);
  const auto plan = MeasureTraining(with, *OptionsFromSpec(with, 1));
  EXPECT_TRUE(draft.ok() && plan.ok()) << draft.status() << plan.status();
  if (!draft.ok() || !plan.ok()) return {1, 1, 1};
  EXPECT_GT(draft->times, 0);
  const auto part = [](double of, double whole) { return of / whole - 1; };
  const auto bytes = static_cast<double>(draft->bytes);
  const auto needed = [&](int64_t arena) {
    return static_cast<double>(RequiredBytes(*plan, arena, place.host_memory));
  };
  return {part(draft->Seconds(profile), EstimateStep(*plan, profile).seconds),
          part(bytes, needed(LeastBytes(*plan))), part(bytes, needed(plan->arena_bytes))};
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const int tensor : {1, 2}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int group : {0, 4}) {
        for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          settings.push_back({.tensor = tensor,
                              .micro = 2,
                              .accumulation = 2 * tensor,
                              .stage = stage,
                              .group = stage == 0 ? 0 : group,
                              .recompute = r});
        }
      }
    }
  }
  return settings;
}

std::string InWords(const Setting& s) {
  return absl::StrCat("tensor ", s.tensor, " stage ", s.stage, " group ", s.group, " recompute ",
                      Name(s.recompute));
}

// To 1%, within which settings are as good as each other.
TEST(ScaledDraft, IsNearlyTheWholePlan) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(InWords(setting));
    const Off off = OffOf(ScaledLlama(24), setting, *BuiltInProfile("h100"));
    EXPECT_NEAR(off.seconds, 0, 0.01);
    EXPECT_NEAR(off.bytes, 0, 0.005);
    EXPECT_NEAR(off.exact_bytes, 0, 0.05);
  }
}

// A slow network holds up steps, with which the longest chain of ops is another one.
TEST(ScaledDraft, IsNoMoreThanALittleLessWhereTheNetworkIsSlow) {
  const DeviceProfile slow = OnHosts(*BuiltInProfile("h100"), 4, 25);
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(InWords(setting));
    const Off off = OffOf(ScaledLlama(24), setting, slow);
    EXPECT_LT(off.seconds, 0.005);
    EXPECT_GT(off.seconds, -0.05);
  }
}

// Every third layer sees everything, the others 64 positions.
TEST(ScaledDraft, KnowsLayersThatComeAgain) {
  v1::JobSpec spec = ScaledLlama(25);
  spec.mutable_model()->mutable_llama()->mutable_window()->set_positions(64);
  spec.mutable_model()->mutable_llama()->mutable_window()->set_full_every(3);
  const Off off = OffOf(spec, {.micro = 2, .accumulation = 2, .stage = 3}, *BuiltInProfile("h100"));
  EXPECT_NEAR(off.seconds, 0, 0.005);
  EXPECT_NEAR(off.bytes, 0, 0.005);
}

// Of 16 micro-batches and more as many are drafted as there are stages, and three; where parameters
// are gathered, twice as many and one, or all: micro-batches share gathers, in a short step fewer.
TEST(ScaledDraft, OfPipelinesFewerMicroBatchesAreDrafted) {
  v1::JobSpec spec = ScaledLlama(9);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  NormalizeJobSpec(&spec);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kZeroBubble}) {
    for (const auto& [tensor, context] : {std::pair(1, 1), {2, 1}, {1, 2}, {1, 4}, {2, 2}}) {
      for (const int stage : {1, 3}) {
        const DeviceProfile profile = OnHosts(*BuiltInProfile("h100"), 4, 100);
        RankPlace place = Gpu(profile);
        place.host_memory = true;
        const Setting setting = {.tensor = tensor,
                                 .pipeline = 4,
                                 .context = context,
                                 .schedule = schedule,
                                 .micro = 1,
                                 .accumulation = 16 * tensor * context,
                                 .stage = stage};
        SCOPED_TRACE(absl::StrCat(InWords(setting), " context ", context, " ", Name(schedule)));
        const v1::JobSpec with = WithSetting(spec, setting);
        ASSERT_EQ(ValidateJobSpec(with), absl::OkStatus());
        const auto draft = DraftScaled(with, place);
        ASSERT_TRUE(draft.ok()) << draft.status();
        const bool zero_bubble = schedule == PipelineSchedule::kZeroBubble;
        EXPECT_EQ(draft->drafted, stage == 1 ? 7 : zero_bubble ? setting.accumulation : 9);
        Setting whole = setting;
        ASSERT_EQ(Assess(with, place, /*exact=*/false, &whole), absl::OkStatus());
        const auto part = [](double of, double all) { return of / all - 1; };
        EXPECT_NEAR(part(draft->Seconds(profile), whole.seconds), 0, 0.01);
        EXPECT_NEAR(part(double(draft->bytes), double(whole.bytes)), 0, 0.005);
      }
    }
  }
}

TEST(ScaledDraft, OfOtherModelsAllLayersAreDrafted) {
  v1::JobSpec spec = ScaledLlama(24);
  v1::ParameterGroupSpec* group = spec.mutable_train()->mutable_optimizer()->add_groups();
  group->set_match("model.layers.3.*");
  group->set_freeze(true);
  NormalizeJobSpec(&spec);
  const auto draft = DraftScaled(spec, Gpu(*BuiltInProfile("h100")));
  ASSERT_TRUE(draft.ok()) << draft.status();
  EXPECT_EQ(draft->times, 0);
  const auto plan = DraftTraining(spec, *OptionsFromSpec(spec, 1));
  EXPECT_EQ(draft->bytes, RequiredBytes(*plan, LeastBytes(*plan), false));
}

}  // namespace
}  // namespace milepost::plan
