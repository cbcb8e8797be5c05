// What the optimizers promise, whatever the number of ranks and the ZeRO stage.
#include "engine/runtime/testing/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using Types = v1::OptimizerSpec;

struct Layout {
  int ranks;
  int stage;
  int group;  // ranks that share out shards; 0: all
};
constexpr Layout kLayouts[] = {{1, 0, 0}, {2, 0, 0}, {2, 1, 0}, {3, 2, 0},
                               {4, 3, 0}, {4, 1, 2}, {4, 3, 2}};

v1::JobSpec SpecOf(const TinyJob& job, const Layout& layout, Types::Type type,
                   v1::Precision precision = v1::PRECISION_FP32) {
  TinyOptions options{.ranks = layout.ranks,
                      .stage = layout.stage,
                      .group = layout.group,
                      .precision = precision,
                      .dropout = 0.1,
                      .steps = 5};
  options.micro_batch = 1;
  v1::JobSpec spec = job.Spec(options);
  v1::OptimizerSpec& optimizer = *spec.mutable_train()->mutable_optimizer();
  optimizer.Clear();
  optimizer.set_type(type);
  // LAMB's steps are in proportion to the weights, which are small: a wrong ratio must show.
  if (type == Types::TYPE_LAMB) optimizer.set_lr(0.1);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

v1::ParameterGroupSpec& AddGroup(v1::JobSpec& spec, const std::string& match) {
  v1::ParameterGroupSpec& group = *spec.mutable_train()->mutable_optimizer()->add_groups();
  group.set_match(match);
  return group;
}

bool IsFrozen(const std::string& name) {
  return name.find(".attn.") != std::string::npos || name.find("wpe") != std::string::npos ||
         name.find("ln_f.weight") != std::string::npos;
}

v1::JobSpec Freezing(v1::JobSpec spec) {
  AddGroup(spec, "h.*.attn.*").set_freeze(true);
  AddGroup(spec, "wpe.weight").set_freeze(true);
  AddGroup(spec, "ln_f.weight").set_freeze(true);
  NormalizeJobSpec(&spec);
  return spec;
}

struct Trained {
  Snapshot snapshot;
  std::vector<double> losses;
  std::vector<double> norms;
};

Trained TrainWith(const v1::JobSpec& spec, int64_t steps) {
  Trained result;
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < steps) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank != 0) continue;
      result.losses.push_back(report->train_loss);
      result.norms.push_back(report->grad_norm);
    }
    Save(session, result.snapshot, mutex);
  });
  return result;
}

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                const Layout& layout) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i] / b[i], 1, tolerance) << layout.ranks << " ranks, stage " << layout.stage
                                           << ", groups of " << layout.group << ", step " << i;
  }
}

TEST(ParameterGroups, FrozenParametersKeepTheirBits) {
  TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    std::vector<double> reference;
    for (const Layout& layout : kLayouts) {
      const v1::JobSpec spec = Freezing(SpecOf(job, layout, Types::TYPE_ADAMW, precision));
      const Snapshot before = TrainWith(spec, 0).snapshot;
      const Trained after = TrainWith(spec, 5);
      int frozen = 0;
      for (size_t i = 0; i < before.tensors.size(); ++i) {
        const v1::TensorInfo& info = before.tensors[i];
        ASSERT_EQ(info.name(), after.snapshot.tensors[i].name());
        const bool same = before.data[i] == after.snapshot.data[i];
        EXPECT_EQ(same, IsFrozen(info.name())) << info.name() << " (" << info.kind() << ")";
        if (!IsFrozen(info.name())) continue;
        EXPECT_EQ(info.kind(), "master");
        ++frozen;
      }
      EXPECT_EQ(frozen, 2 * 4 + 2);
      if (reference.empty()) reference = after.losses;
      ExpectNear(after.losses, reference, precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3, layout);
    }
  }
}

TEST(ParameterGroups, EveryOptimizerFreezes) {
  TinyJob job;
  for (Types::Type type : {Types::TYPE_SGD, Types::TYPE_LION, Types::TYPE_ADAN, Types::TYPE_LAMB,
                           Types::TYPE_MUON, Types::TYPE_ADAMW_8BIT}) {
    const v1::JobSpec spec = Freezing(SpecOf(job, {3, 3, 0}, type));
    const Snapshot before = TrainWith(spec, 0).snapshot;
    const Snapshot after = TrainWith(spec, 3).snapshot;
    for (size_t i = 0; i < before.tensors.size(); ++i) {
      EXPECT_EQ(before.data[i] == after.data[i], IsFrozen(before.tensors[i].name()))
          << before.tensors[i].name() << " (" << before.tensors[i].kind() << ")";
    }
  }
}

// A frozen gradient is not in the norm: the squares of two complementary halves add up.
TEST(ParameterGroups, TheNormIsThatOfTheOthers) {
  TinyJob job;
  const v1::JobSpec all = SpecOf(job, {2, 1, 0}, Types::TYPE_ADAMW);
  v1::JobSpec lower = all;
  AddGroup(lower, "h.1.*").set_freeze(true);
  AddGroup(lower, "ln_f.*").set_freeze(true);
  v1::JobSpec upper = all;
  AddGroup(upper, "h.0.*").set_freeze(true);
  AddGroup(upper, "wte.weight").set_freeze(true);
  AddGroup(upper, "wpe.weight").set_freeze(true);
  const double a = TrainWith(lower, 1).norms.at(0);
  const double b = TrainWith(upper, 1).norms.at(0);
  const double whole = TrainWith(all, 1).norms.at(0);
  EXPECT_NEAR(std::sqrt(a * a + b * b) / whole, 1, 1e-6);
  EXPECT_GT(a, 0.1 * whole);
  EXPECT_GT(b, 0.1 * whole);
}

// Against the same thing said another way: not one bit is different.
TEST(ParameterGroups, ScalesAndDecaysAreThoseOfTheOptimizer) {
  TinyJob job;
  for (Types::Type type : {Types::TYPE_ADAMW, Types::TYPE_SGD, Types::TYPE_LION, Types::TYPE_ADAN,
                           Types::TYPE_LAMB, Types::TYPE_ADAMW_8BIT}) {
    v1::JobSpec by_group = SpecOf(job, {2, 3, 0}, type);
    v1::OptimizerSpec& optimizer = *by_group.mutable_train()->mutable_optimizer();
    v1::JobSpec plain = by_group;
    plain.mutable_train()->mutable_optimizer()->set_lr(optimizer.lr() / 4);
    plain.mutable_train()->mutable_optimizer()->set_weight_decay(0.5);
    v1::ParameterGroupSpec& vectors = AddGroup(by_group, "*.bias");
    vectors.set_lr_scale(0.25);
    v1::ParameterGroupSpec& norms = AddGroup(by_group, "ln_*.weight");
    norms.set_lr_scale(0.25);
    v1::ParameterGroupSpec& rest = AddGroup(by_group, "*");
    rest.set_lr_scale(0.25);
    rest.set_weight_decay(0.5);
    const Trained a = TrainWith(by_group, 4);
    const Trained b = TrainWith(plain, 4);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.snapshot.data, b.snapshot.data);
  }
}

// The first update knows no gradient before its own, however many steps were skipped before it: no
// change of gradients has come into Adan's average of them.
TEST(Adan, StartsWithTheFirstUpdateNotTheFirstStep) {
  TinyJob job;
  v1::JobSpec spec = SpecOf(job, {2, 1, 0}, Types::TYPE_ADAN, v1::PRECISION_FP16);
  spec.mutable_train()->set_steps(30);
  spec.mutable_train()->mutable_loss_scale()->set_initial(1 << 26);
  Snapshot first, second;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    int64_t skipped = 0, updates = 0;
    while (updates < 2 && session.step() < 30) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (report->skipped) {
        ++skipped;
        continue;
      }
      Save(session, ++updates == 1 ? first : second, mutex);
    }
    EXPECT_GT(skipped, 0);
    EXPECT_EQ(updates, 2);
  });
  const auto changes = [](const Snapshot& snapshot) {
    double sum = 0;
    for (size_t i = 0; i < snapshot.tensors.size(); ++i) {
      if (snapshot.tensors[i].kind() != "v") continue;
      for (size_t e = 0; e < snapshot.data[i].size(); ++e) sum += std::abs(snapshot.data[i][e]);
    }
    return sum;
  };
  EXPECT_EQ(changes(first), 0);
  EXPECT_GT(changes(second), 0);
}

// Weight decay that is given holds for vectors as well.
TEST(ParameterGroups, DecayOfVectors) {
  TinyJob job;
  v1::JobSpec spec = SpecOf(job, {1, 0, 0}, Types::TYPE_SGD);
  const Snapshot plain = TrainWith(spec, 1).snapshot;
  AddGroup(spec, "ln_f.weight").set_weight_decay(0.5);
  const Snapshot decayed = TrainWith(spec, 1).snapshot;
  const double lr = 0.01 / 3;  // the first of three warm-up steps
  for (size_t i = 0; i < plain.tensors.size(); ++i) {
    const v1::TensorInfo& info = plain.tensors[i];
    if (info.name().find("ln_f.weight") == std::string::npos) {
      EXPECT_EQ(plain.data[i], decayed.data[i]) << info.name();
    } else if (info.kind() == "master") {  // 1 at first
      for (size_t e = 0; e < plain.data[i].size(); ++e) {
        EXPECT_NEAR(plain.data[i][e] - decayed.data[i][e], lr * 0.5, 1e-6);
      }
    }
  }
}

// Every kind of state, at every layout, against one rank at stage 0.
class EveryOptimizer : public ::testing::TestWithParam<Types::Type> {};

TEST_P(EveryOptimizer, RanksAndStagesGiveTheSameLosses) {
  TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const std::vector<double> reference =
        TrainWith(SpecOf(job, kLayouts[0], GetParam(), precision), 5).losses;
    EXPECT_LT(reference[4], reference[0]) << "it does not learn";
    for (const Layout& layout : kLayouts) {
      ExpectNear(TrainWith(SpecOf(job, layout, GetParam(), precision), 5).losses, reference,
                 precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3, layout);
    }
  }
}

std::vector<double> GoOn(const v1::JobSpec& spec, const Snapshot& from) {
  std::vector<double> losses;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(Restore(session, from), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) losses.push_back(report->train_loss);
    }
  });
  return losses;
}

// Bits where the layout is the same, 1e-5 where it is another; nothing is converted.
TEST_P(EveryOptimizer, ResumesAtAnyLayout) {
  TinyJob job;
  const Layout from = {4, 3, 0};
  const v1::JobSpec spec = SpecOf(job, from, GetParam());
  std::vector<double> wanted = TrainWith(spec, 5).losses;
  wanted.erase(wanted.begin(), wanted.begin() + 2);
  const Snapshot snapshot = TrainWith(spec, 2).snapshot;
  auto layout = state::StateLayout::FromProto(snapshot.tensors);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
  EXPECT_EQ(GoOn(spec, snapshot), wanted);
  for (const Layout& to : {Layout{3, 1, 0}, Layout{1, 0, 0}, Layout{4, 2, 2}}) {
    ExpectNear(GoOn(SpecOf(job, to, GetParam()), snapshot), wanted, 1e-5, to);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer,
                         ::testing::Values(Types::TYPE_SGD, Types::TYPE_LION, Types::TYPE_ADAN,
                                           Types::TYPE_LAMB, Types::TYPE_MUON,
                                           Types::TYPE_ADAMW_8BIT),
                         [](const auto& info) { return Types::Type_Name(info.param); });

// The codes themselves do not depend on how the parameters were cut.
TEST(AdamW8Bit, TheFirstCodesAreTheSameAtEveryLayout) {
  TinyJob job;
  const Snapshot one = TrainWith(SpecOf(job, kLayouts[0], Types::TYPE_ADAMW_8BIT), 0).snapshot;
  for (const Layout& layout : kLayouts) {
    const Snapshot other = TrainWith(SpecOf(job, layout, Types::TYPE_ADAMW_8BIT), 0).snapshot;
    EXPECT_EQ(other.data, one.data);
  }
  int codes = 0;
  for (const v1::TensorInfo& info : one.tensors) {
    codes += info.dtype() == "U8" ? 1 : 0;
    if (info.kind() == "m.scale") {
      EXPECT_EQ(info.shape_size(), 1);
    }
  }
  EXPECT_EQ(codes, 2 * (2 + 4 * 2));  // m and v of two embeddings and four matrices a layer
}

// A non-finite gradient leaves all of it alone.
TEST_P(EveryOptimizer, SkipsAltogether) {
  TinyJob job;
  std::mutex mutex;
  Snapshot before, after;
  RunRanks(SpecOf(job, {2, 3, 0}, GetParam()), [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    ASSERT_TRUE(session.Step(false).ok());
    for (const StateInterval& i : session.SaveSources()) {
      const v1::TensorInfo& info = session.state_tensors()[i.tensor];
      if (info.kind() != "master" || info.name().find("ln_f.weight") == std::string::npos) continue;
      reinterpret_cast<float*>(i.data)[0] = NAN;
    }
    ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
    Save(session, before, mutex);
    auto report = session.Step(false);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->skipped);
    Save(session, after, mutex);
  });
  EXPECT_EQ(before.data, after.data);
}

}  // namespace
}  // namespace milepost::runtime
