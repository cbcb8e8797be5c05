#include "engine/plan/fit/mesh_search.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/spec/auto_fields.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Twelve layers, so that drafts are of fewer; 16 ranks and 32 sequences.
v1::JobSpec OpenSpec() {
  v1::JobSpec spec = SpecOf({.layers = 12, .width = 256, .heads = 4, .context = 128});
  spec.set_name("test");
  spec.mutable_data()->set_train("/train.npy");
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->mutable_batch()->set_global(32);
  train->mutable_batch()->set_micro(kAuto);
  train->mutable_zero()->set_stage(kAuto);
  train->set_recompute(v1::RECOMPUTE_AUTO);
  spec.mutable_resources()->set_ranks(16);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  spec.mutable_resources()->mutable_mesh()->set_tensor(kAuto);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

// Slow enough that every link counts beside computation.
DeviceProfile Device() {
  DeviceProfile device = *BuiltInProfile("h100");
  device.matmul["BF16"] = {2e13, 4e13};
  device.memory_bandwidth = 3e11;
  device.host_bandwidth = 2e10;
  device.network_bandwidth = 1e9;
  device.ranks_per_host = 4;
  return device;
}

RankPlace MeshPlace(int64_t bytes, const DeviceProfile& device = Device()) {
  return {.memory_bytes = bytes,
          .memory_of = "the test",
          .host_memory = false,
          .profile = device,
          .threads = 1};
}

RankPlace PlaceOf(const v1::JobSpec& spec, int64_t bytes) {
  RankPlace place = MeshPlace(bytes);
  place.host_memory = spec.resources().device() == v1::DEVICE_KIND_CPU;
  return place;
}

std::string InShort(const Setting& s) {
  return absl::StrCat(s.pipeline, Name(s.schedule), s.chunks, "/", s.tensor, "/", s.context, "/",
                      s.expert, "/", s.micro, "/", s.stage, "/", s.group, "/", Name(s.recompute),
                      s.offload ? "/host" : "");
}

// Every candidate, planned as a whole.
std::vector<Setting> Exhausted(const v1::JobSpec& spec, const MeshSpace& space,
                               const RankPlace& place) {
  std::vector<Setting> all;
  for (Setting setting : Candidates(spec, space, place)) {
    EXPECT_EQ(Assess(spec, place, /*exact=*/true, &setting), absl::OkStatus());
    if (Fits(setting, place)) all.push_back(setting);
  }
  return all;
}

TEST(MeshSearch, CandidatesAreValidAndHaveTheBatch) {
  const v1::JobSpec spec = OpenSpec();
  const RankPlace place = MeshPlace(int64_t{1} << 40);
  MeshSpace space = WholeSpace(spec, place);
  EXPECT_FALSE(space.contexts);  // there are more sequences than ranks
  space.contexts = true;
  const std::vector<Setting> all = Candidates(spec, space, place);
  EXPECT_GT(all.size(), 100u);
  std::set<int> tensors, groups, contexts;
  for (const Setting& s : all) {
    SCOPED_TRACE(InShort(s));
    const v1::JobSpec with = WithSetting(spec, s);
    ASSERT_EQ(ValidateJobSpec(with), absl::OkStatus());
    EXPECT_EQ(with.train().batch().global(), 32);
    EXPECT_FALSE(HasAutoFields(with));
    EXPECT_FALSE(s.offload && s.tensor > 1);
    EXPECT_EQ(std::gcd(s.context, s.micro), 1);
    tensors.insert(s.tensor);
    groups.insert(s.group);
    contexts.insert(s.context);
  }
  EXPECT_THAT(tensors, ElementsAre(1, 2, 4));
  EXPECT_THAT(groups, ElementsAre(0, 2, 4, 8));  // of 4 ranks: 2 of a host where tensor is 2
  EXPECT_THAT(contexts, ElementsAre(1, 2, 4));
}

// Nothing is passed over that is better: against every candidate, with memory that lets all fit,
// that the fastest fills, and that lets few fit. Of micro-batches in turn.
void ExpectAsGoodAsEverything(const v1::JobSpec& spec, MeshSpace space) {
  space.side_by_side = {1};
  const std::vector<Setting> all = Exhausted(spec, space, PlaceOf(spec, int64_t{1} << 40));
  std::vector<int64_t> sizes;
  for (const Setting& s : all) sizes.push_back(s.bytes);
  std::sort(sizes.begin(), sizes.end());
  const auto sooner = [](const Setting& a, const Setting& b) { return a.seconds < b.seconds; };
  const Setting fastest = *std::min_element(all.begin(), all.end(), sooner);
  for (const int64_t bytes :
       {sizes.back(), fastest.bytes, sizes[sizes.size() / 3], sizes[sizes.size() / 20]}) {
    SCOPED_TRACE(bytes);
    const RankPlace place = PlaceOf(spec, bytes);
    std::vector<Setting> fit;
    for (const Setting& s : all) {
      if (s.bytes <= bytes) fit.push_back(s);
    }
    std::sort(fit.begin(), fit.end(), sooner);
    MeshSearch search(spec, space, place);
    const auto best = search.Best(5);
    ASSERT_TRUE(best.ok()) << best.status();
    ASSERT_EQ(best->size(), std::min<size_t>(5, fit.size()));
    EXPECT_LE(best->front().setting.seconds, 1.01 * fit[0].seconds);
    std::vector<Setting> found;
    for (const RankedSetting& ranked : *best) found.push_back(ranked.setting);
    std::sort(found.begin(), found.end(), sooner);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(found[i].seconds, 1.01 * fit[i].seconds) << i << " " << InShort(fit[i]);
    }
    for (const RankedSetting& ranked : *best) {
      EXPECT_LE(ranked.setting.bytes, bytes);
      const auto same = std::find_if(all.begin(), all.end(), [&](const Setting& s) {
        return InShort(s) == InShort(ranked.setting);
      });
      ASSERT_NE(same, all.end());
      EXPECT_EQ(same->bytes, ranked.setting.bytes) << InShort(*same);
      // Of a pipeline fewer micro-batches have been planned.
      const double off = same->seconds * (same->pipeline > 1 ? 0.01 : 1e-12);
      EXPECT_NEAR(same->seconds, ranked.setting.seconds, off) << InShort(*same);
      EXPECT_NEAR(same->seconds, ranked.estimate.seconds, off);
    }
    EXPECT_LT(search.drafts(), all.size());
  }
}

TEST(MeshSearch, FindsWhatPlanningEverythingFinds) {
  const v1::JobSpec spec = OpenSpec();
  MeshSpace space = WholeSpace(spec, MeshPlace(1));
  space.recomputes = {Recompute::kNone, Recompute::kFull};
  space.pipelines = {{}};
  ExpectAsGoodAsEverything(spec, space);
}

// Stages, with two and four data ranks; on CPUs, whose ranks have what is sent in their memory.
TEST(MeshSearch, FindsThePipelineThatPlanningEverythingFinds) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  MeshSpace space = WholeSpace(spec, MeshPlace(1));
  space.recomputes = {Recompute::kNone};
  space.stages = {1, 3};
  space.offloads = {false};
  std::erase_if(space.pipelines, [](const PipelineChoice& one) { return one.stages > 4; });
  ASSERT_EQ(space.pipelines.size(), 8u);
  ExpectAsGoodAsEverything(spec, space);
}

// Four sequences for 16 ranks: each is divided, by whatever axis.
TEST(MeshSearch, FindsTheContextRanksThatPlanningEverythingFinds) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_train()->mutable_batch()->set_global(4);
  MeshSpace space = WholeSpace(spec, MeshPlace(1));
  space.contexts = true;
  space.recomputes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  space.offloads = {false};
  std::erase_if(space.pipelines, [](const PipelineChoice& one) {
    return one.stages > 2 || one.schedule == PipelineSchedule::kZeroBubble;
  });
  ASSERT_EQ(space.pipelines.size(), 4u);
  ExpectAsGoodAsEverything(spec, space);
}

// Llama with four experts; 8 ranks and 64 sequences.
v1::JobSpec SpecOfExperts() {
  v1::JobSpec spec = OpenSpec();
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_layers(12);
  llama->set_width(128);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_hidden(256);
  llama->set_context(128);
  llama->set_vocabulary(96);
  llama->mutable_experts()->set_count(4);
  llama->mutable_experts()->set_per_token(1);
  spec.mutable_train()->mutable_batch()->set_global(64);
  spec.mutable_resources()->set_ranks(8);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

// Of one data rank and of stages, where experts are sharded and where they are not.
TEST(MeshSearch, FindsTheExpertRanksThatPlanningEverythingFinds) {
  const v1::JobSpec spec = SpecOfExperts();
  MeshSpace space = WholeSpace(spec, MeshPlace(1));
  space.tensors = {1, 2};
  space.recomputes = {Recompute::kNone, Recompute::kFull};
  space.stages = {1, 3};
  space.groups = space.stage_contexts = false;
  space.offloads = {false};
  space.pipelines = {{}, {.stages = 2}};
  ExpectAsGoodAsEverything(spec, space);
}

// What is listed has two micro-batches side by side where that is faster and fits.
TEST(MeshSearch, ListsMicroBatchesSideBySideWhereTheyAreFaster) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_train()->mutable_batch()->set_micro(1);
  MeshSpace space = WholeSpace(spec, MeshPlace(1));
  EXPECT_THAT(space.side_by_side, ElementsAre(1, 2));
  space.tensors = {4};
  space.pipelines = {{}};
  space.stages = {1};
  space.recomputes = {Recompute::kNone};
  space.offloads = {false};
  space.groups = space.micros = false;
  const auto best = [&](int64_t bytes) {
    const auto found = MeshSearch(spec, space, MeshPlace(bytes)).Best(3);
    EXPECT_TRUE(found.ok()) << found.status();
    return found->at(0).setting;
  };
  constexpr int64_t kPlenty = int64_t{1} << 40;
  const Setting either = best(kPlenty);
  EXPECT_EQ(either.side_by_side, 2);
  // As the spec of it is planned.
  Setting planned = SettingOf(WithSetting(spec, either));
  EXPECT_EQ(planned.side_by_side, 2);
  EXPECT_EQ(Assess(spec, MeshPlace(kPlenty), /*exact=*/true, &planned), absl::OkStatus());
  EXPECT_EQ(planned.bytes, either.bytes);
  EXPECT_DOUBLE_EQ(planned.seconds, either.seconds);
  // It needs more memory.
  EXPECT_EQ(best(either.bytes).side_by_side, 2);
  EXPECT_EQ(best(either.bytes - 1).side_by_side, 1);
  space.side_by_side = {1};
  const Setting in_turn = best(kPlenty);
  EXPECT_EQ(in_turn.side_by_side, 1);
  EXPECT_LT(either.seconds, 0.9 * in_turn.seconds);
}

// The spec's own number stays, where it can.
TEST(MeshAuto, KeepsMicroBatchesSideBySide) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_train()->mutable_batch()->set_side_by_side(2);
  const auto best = MeshSearch(spec, OpenSpace(spec), MeshPlace(int64_t{1} << 40)).Best(3);
  ASSERT_TRUE(best.ok()) << best.status();
  for (const RankedSetting& one : *best) {
    EXPECT_EQ(one.setting.side_by_side, one.setting.accumulation % 2 == 0 ? 2 : 1);
  }
}

// Where all experts would be gathered in each micro-step, rows of tokens are fewer bytes.
TEST(MeshSearch, ExpertsThatAreGatheredMakeExpertRanks) {
  v1::JobSpec spec = SpecOfExperts();
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_hidden(4096);
  const RankPlace place = PlaceOf(spec, int64_t{1} << 40);
  std::set<int> experts;
  for (const Setting& s : Candidates(spec, WholeSpace(spec, place), place)) {
    experts.insert(s.expert);
    EXPECT_FALSE(s.expert > 1 && s.group > 0);  // as specs have it
  }
  EXPECT_THAT(experts, ElementsAre(1, 2, 4));
  MeshSpace space = WholeSpace(spec, place);
  space.stages = {3};
  space.pipelines = {{}};
  space.tensors = {1};
  const auto best = MeshSearch(spec, space, place).Best(1);
  ASSERT_TRUE(best.ok() && !best->empty()) << best.status();
  EXPECT_GT(best->front().setting.expert, 1) << InShort(best->front().setting);
}

// Without `auto` that means everything, the mesh stays.
TEST(MeshSearch, WhatTheSpecLeavesOpenHasItsOwnContextRanks) {
  v1::JobSpec spec = OpenSpec();
  v1::MeshSpec* mesh = spec.mutable_resources()->mutable_mesh();
  mesh->set_tensor(1);
  mesh->set_pipeline(2);
  mesh->set_context(2);
  NormalizeJobSpec(&spec);
  const RankPlace place = PlaceOf(spec, int64_t{1} << 40);
  const std::vector<Setting> all = Candidates(spec, plan::OpenSpace(spec), place);
  EXPECT_FALSE(all.empty());
  for (const Setting& s : all) EXPECT_EQ(s.context, 2) << InShort(s);
}

// Sixteen sequences for 64 ranks: data ranks have too few of them to fill a pipeline.
TEST(MeshSearch, FewSequencesMakeContextRanksOfStages) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_resources()->set_ranks(64);
  spec.mutable_train()->mutable_batch()->set_global(16);
  RankPlace place = PlaceOf(spec, int64_t{1} << 40);
  place.profile.host_bandwidth = 3e9;
  place.profile.collective_seconds = 0;
  const auto best = MeshSearch(spec, WholeSpace(spec, place), place).Best(1);
  ASSERT_TRUE(best.ok() && !best->empty()) << best.status();
  const Setting& chosen = best->front().setting;
  EXPECT_GT(chosen.pipeline, 1) << MeshText(64, chosen);
  EXPECT_GT(chosen.context, 1) << MeshText(64, chosen);
  MeshSpace without = WholeSpace(spec, place);
  without.stage_contexts = false;
  const auto slower = MeshSearch(spec, without, place).Best(1);
  ASSERT_TRUE(slower.ok() && !slower->empty()) << slower.status();
  EXPECT_GT(slower->front().setting.seconds, 1.05 * chosen.seconds);
}

// What a micro-batch and context ranks have in common, fewer context ranks do as well.
TEST(MeshSearch, SamplesGoBeforeContextRanks) {
  v1::JobSpec spec = OpenSpec();
  const RankPlace place = MeshPlace(int64_t{1} << 40);
  MeshSpace space = WholeSpace(spec, place);
  space.contexts = true;
  space.tensors = {1};
  space.pipelines = {{}};
  space.recomputes = {Recompute::kNone};
  space.offloads = {false};
  spec.mutable_train()->mutable_batch()->set_global(96);
  std::set<std::pair<int, int64_t>> found;  // context ranks and micro-batch
  for (const Setting& s : Candidates(spec, space, place)) found.insert({s.context, s.micro});
  const std::set<std::pair<int, int64_t>> expected = {{1, 1}, {1, 2}, {1, 3}, {1, 6},
                                                      {2, 1}, {2, 3}, {4, 1}, {4, 3}};
  EXPECT_EQ(found, expected);
  // Every setting that is left out takes no less than the one that is there in its place.
  for (const auto& [context, micro] : {std::pair(2, 2), std::pair(4, 2), std::pair(4, 4)}) {
    const int common = std::gcd(context, micro);
    Setting out = {.context = context, .micro = micro, .accumulation = 6 * context / micro};
    Setting in = {
        .context = context / common, .micro = micro / common, .accumulation = out.accumulation};
    ASSERT_EQ(Assess(spec, place, /*exact=*/true, &out), absl::OkStatus());
    ASSERT_EQ(Assess(spec, place, /*exact=*/true, &in), absl::OkStatus());
    EXPECT_GT(out.seconds, in.seconds) << context << " " << micro;
    EXPECT_GE(out.bytes, in.bytes) << context << " " << micro;
  }
}

TEST(MeshSearch, NamesContextAndExpertRanks) {
  EXPECT_EQ(MeshText(64, {.tensor = 2, .pipeline = 4, .context = 2}),
            "4 data x 2 context x 4 stages x 2 tensor");
  EXPECT_EQ(MeshText(64, {.tensor = 2, .expert = 4}), "32 data (4 expert) x 2 tensor");
  EXPECT_EQ(MeshText(8, {.context = 2, .expert = 8}), "4 data x 2 context (8 expert) x 1 tensor");
}

TEST(MeshSearch, TheLinksDecide) {
  const v1::JobSpec spec = OpenSpec();
  const auto chosen = [&](const DeviceProfile& device) {
    const RankPlace place = MeshPlace(int64_t{1} << 40, device);
    const auto best = MeshSearch(spec, WholeSpace(spec, place), place).Best(1);
    EXPECT_TRUE(best.ok()) << best.status();
    return best.ok() && !best->empty() ? best->front().setting : Setting();
  };
  DeviceProfile fast = Device();
  fast.network_bandwidth = fast.host_bandwidth = 1e13;
  fast.collective_seconds = 0;
  EXPECT_EQ(chosen(fast).tensor, 1);  // no activations are sent
  EXPECT_EQ(chosen(fast).recompute, Recompute::kNone);
  DeviceProfile slow = Device();
  slow.host_bandwidth = 1e13;
  slow.collective_seconds = 0;
  slow.network_bandwidth = 1e6;
  // With four tensor ranks a host is one data rank: a quarter of the gradients leave it from each.
  EXPECT_EQ(chosen(slow).tensor, 4);
}

// Ranks on hosts of their own: stages send activations of 256 wide, data ranks all gradients.
TEST(MeshSearch, ASlowNetworkMakesStages) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  RankPlace place = PlaceOf(spec, int64_t{1} << 40);
  place.profile.ranks_per_host = 1;
  place.profile.network_bandwidth = 1e8;
  const auto best = MeshSearch(spec, WholeSpace(spec, place), place).Best(1);
  ASSERT_TRUE(best.ok() && !best->empty()) << best.status();
  const Setting& chosen = best->front().setting;
  EXPECT_GT(chosen.pipeline, 1);
  EXPECT_EQ(chosen.tensor, 1);
  EXPECT_EQ(MeshText(16, chosen),
            absl::StrCat(16 / chosen.pipeline, " data x ", chosen.pipeline, " stages x 1 tensor"));
}

TEST(MeshSearch, SaysWhatTheChoiceRestsOn) {
  const v1::JobSpec spec = OpenSpec();
  DeviceProfile device = Device();
  device.host_bandwidth = 1e12;
  device.collective_seconds = 0;
  const RankPlace place = MeshPlace(int64_t{1} << 40, device);
  MeshSearch search(spec, WholeSpace(spec, place), place);
  const auto best = search.Best(1);
  ASSERT_TRUE(best.ok() && !best->empty());
  const auto rests_on = search.RestsOn(best->front());
  ASSERT_TRUE(rests_on.ok()) << rests_on.status();
  EXPECT_EQ(rests_on->size(), 2 * 7u);  // no collective_seconds: nothing to be halved
  for (const Sensitivity& s : *rests_on) {
    SCOPED_TRACE(absl::StrCat(s.rate, " x ", s.factor));
    DeviceProfile changed = device;
    if (s.rate == "network_bandwidth") changed.network_bandwidth *= s.factor;
    if (s.rate == "memory_bandwidth") changed.memory_bandwidth *= s.factor;
    if (s.rate == "matmul") {
      for (auto& [dtype, rate] : changed.matmul) rate.achieved *= s.factor;
    }
    if (changed.network_bandwidth == device.network_bandwidth && s.rate != "matmul" &&
        s.rate != "memory_bandwidth") {
      continue;
    }
    // The same as a search of its own on that device.
    const RankPlace there = MeshPlace(place.memory_bytes, changed);
    const auto own = MeshSearch(spec, WholeSpace(spec, there), there).Best(1);
    ASSERT_TRUE(own.ok() && !own->empty());
    Setting here = best->front().setting;
    ASSERT_EQ(Assess(spec, there, /*exact=*/true, &here), absl::OkStatus());
    const double ratio = here.seconds / own->front().setting.seconds;
    if (s.instead.has_value()) {
      EXPECT_GT(s.ratio, 1.01);
      EXPECT_NEAR(s.ratio, ratio, 0.02);
    } else {
      EXPECT_LT(ratio, 1.03);
    }
  }
}

TEST(MeshAuto, IsSettledWithReasons) {
  const v1::JobSpec spec = OpenSpec();
  const RankPlace place = MeshPlace(int64_t{1} << 40);
  const auto resolved = ResolveAuto(spec, place);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_FALSE(HasAutoFields(resolved->spec));
  EXPECT_EQ(ValidateJobSpec(resolved->spec), absl::OkStatus());
  EXPECT_EQ(resolved->spec.train().batch().global(), 32);
  ASSERT_EQ(resolved->choices.size(), 4u);
  EXPECT_EQ(resolved->choices[0].field(), "resources.mesh.tensor");
  EXPECT_EQ(resolved->choices[0].value(), absl::StrCat(TensorRanks(resolved->spec.resources())));
  EXPECT_THAT(resolved->choices[0].reason(),
              AllOf(HasSubstr("4 "), HasSubstr("; expected "), HasSubstr(" a step, ")));
  const auto again = ResolveAuto(spec, place);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(SpecDigest(again->spec), SpecDigest(resolved->spec));
}

// Fields that are given stay as they are.
TEST(MeshAuto, ChoosesTheTensorRanksAlone) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_train()->mutable_batch()->set_micro(2);
  spec.mutable_train()->mutable_zero()->set_stage(2);
  spec.mutable_train()->mutable_zero()->set_group(2);
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_FULL);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  const auto resolved = ResolveAuto(spec, MeshPlace(int64_t{1} << 40));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  ASSERT_EQ(resolved->choices.size(), 1u);
  EXPECT_EQ(resolved->spec.train().batch().micro(), 2);
  EXPECT_EQ(resolved->spec.train().zero().stage(), 2);
  EXPECT_EQ(resolved->spec.train().zero().group(), 2);
  EXPECT_EQ(resolved->spec.train().recompute(), v1::RECOMPUTE_FULL);
}

TEST(MeshAuto, SaysWhyNothingWillDo) {
  v1::JobSpec spec = OpenSpec();
  EXPECT_THAT(ResolveAuto(spec, MeshPlace(1 << 20)).status().message(),
              AllOf(HasSubstr("does not fit whatever is chosen"),
                    HasSubstr("even with resources.mesh.tensor: 4")));
  EXPECT_THAT(ResolveAuto(spec, MeshPlace(0)).status().message(),
              HasSubstr("resources.mesh.tensor: auto needs to know the memory"));
  spec.mutable_train()->mutable_batch()->set_global(2);  // and at least four data ranks
  EXPECT_THAT(ResolveAuto(spec, MeshPlace(int64_t{1} << 40)).status().message(),
              AllOf(HasSubstr("train.batch.global (2)"), HasSubstr("(1, 2, 4)")));
}

TEST(MeshAuto, IsBoundedLikeEveryRequest) {
  v1::JobSpec spec = OpenSpec();
  spec.mutable_model()->mutable_gpt2()->set_layers(96);
  Planning planning(kLimitsOfRequest);
  RankPlace place = MeshPlace(int64_t{1} << 40);
  place.planning = &planning;
  const auto resolved = ResolveAuto(spec, place);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_LT(planning.spent(), kLimitsOfRequest.work);
  Planning little({.work = 3000});
  place.planning = &little;
  EXPECT_TRUE(absl::IsResourceExhausted(ResolveAuto(spec, place).status()));
}

}  // namespace
}  // namespace milepost::plan
