// Averages of parameters over whole training runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <latch>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

constexpr double kDecay = 0.9;

struct EmaCase {
  std::string name;
  TinyOptions options;
  v1::OptimizerSpec::Type type = v1::OptimizerSpec::TYPE_ADAMW;
  bool masters = true;
  bool warmup = true;
};

v1::JobSpec EmaSpecOf(const TinyJob& job, const EmaCase& c) {
  v1::JobSpec spec = job.Spec(c.options);
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  const double lr = optimizer->lr();
  optimizer->Clear();
  optimizer->set_type(c.type);
  optimizer->set_lr(lr);
  if (!c.masters) optimizer->set_master(v1::MASTER_DTYPE_NONE);
  spec.mutable_train()->mutable_ema()->set_decay(kDecay);
  spec.mutable_train()->mutable_ema()->set_warmup(c.warmup);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

const EmaCase kEmaCases[] = {
    {.name = "one rank", .options = {.stage = 0}},
    {.name = "no warm-up", .options = {.ranks = 2, .stage = 0}, .warmup = false},
    {.name = "stage 1", .options = {.ranks = 2, .stage = 1}},
    {.name = "stage 2, bf16", .options = {.ranks = 2, .stage = 2, .precision = v1::PRECISION_BF16}},
    {.name = "stage 3", .options = {.ranks = 3, .stage = 3}},
    {.name = "stage 3, fp16", .options = {.ranks = 2, .stage = 3, .precision = v1::PRECISION_FP16}},
    {.name = "no masters, stage 1",
     .options = {.ranks = 2, .stage = 1, .precision = v1::PRECISION_BF16},
     .masters = false},
    {.name = "no masters, stage 3",
     .options = {.ranks = 2, .stage = 3, .precision = v1::PRECISION_BF16},
     .masters = false},
    {.name = "fp8", .options = {.precision = v1::PRECISION_FP8, .width = 64}},
    {.name = "adapters", .options = {.ranks = 2, .stage = 1, .llama = true, .lora = 4}},
    {.name = "adapters, bf16",
     .options = {.precision = v1::PRECISION_BF16, .llama = true, .lora = 4, .nf4 = true}},
    {.name = "muon", .options = {.ranks = 2}, .type = v1::OptimizerSpec::TYPE_MUON},
    {.name = "lamb", .options = {}, .type = v1::OptimizerSpec::TYPE_LAMB},
    {.name = "8-bit", .options = {.width = 64}, .type = v1::OptimizerSpec::TYPE_ADAMW_8BIT},
};

void Begin(TrainingSession& session) {
  ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
  if (session.base_tensors().empty()) return;
  GiveBase(session);
  ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
}

// After 0 to `steps` steps.
std::vector<Snapshot> StatesOf(const v1::JobSpec& spec, int64_t steps, bool validate = false) {
  std::vector<Snapshot> states(static_cast<size_t>(steps) + 1);
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    Begin(session);
    Save(session, states[0], mutex);
    for (int64_t step = 1; step <= steps; ++step) {
      ASSERT_TRUE(session.Step(false).ok());
      if (validate) {
        ASSERT_TRUE(session.Evaluate().ok());
      }
      Save(session, states[static_cast<size_t>(step)], mutex);
    }
  });
  return states;
}

std::vector<double> Widened(const Snapshot& state, size_t tensor) {
  std::vector<double> values;
  for (size_t e = 0; e < state.data[tensor].size(); ++e) {
    if (state.tensors[tensor].dtype() == "BF16") {
      bf16 value;
      std::memcpy(&value, state.data[tensor].at(static_cast<int64_t>(e)), sizeof(value));
      values.push_back(ToFloat(value));
    } else {
      values.push_back(state.data[tensor][e]);
    }
  }
  return values;
}

// By parameter, of one kind.
std::map<std::string, std::vector<double>> OfKind(const Snapshot& state, const std::string& kind) {
  std::map<std::string, std::vector<double>> found;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    if (state.tensors[i].kind() == kind) found[state.tensors[i].name()] = Widened(state, i);
  }
  return found;
}

// Made again in fp64 from the parameters that every step has left.
TEST(Ema, IsTheAverageOfWhatStepsLeave) {
  const TinyJob job;
  constexpr int64_t kSteps = 6;
  for (const EmaCase& c : kEmaCases) {
    SCOPED_TRACE(c.name);
    const std::vector<Snapshot> states = StatesOf(EmaSpecOf(job, c), kSteps);
    auto want = OfKind(states[0], "master");
    EXPECT_EQ(OfKind(states[0], "ema"), want) << "begins as the parameters";
    std::map<std::string, std::vector<double>> errors;  // that roundings may have made
    for (size_t step = 1; step < states.size(); ++step) {
      const auto n = static_cast<double>(states[step].state.schedule_step());
      const double d = c.warmup ? std::min(kDecay, (1 + n) / (10 + n)) : kDecay;
      const bool skipped = n == static_cast<double>(states[step - 1].state.schedule_step());
      auto parameters = OfKind(states[step], "master");
      const auto averages = OfKind(states[step], "ema");
      ASSERT_EQ(averages.size(), want.size());
      for (auto& [name, average] : want) {
        errors[name].resize(average.size());
        for (size_t e = 0; e < average.size() && !skipped; ++e) {
          const double size = std::abs(average[e]) + std::abs(parameters[name][e]);
          average[e] = d * average[e] + (1 - d) * parameters[name][e];
          errors[name][e] = d * errors[name][e] + 2e-7 * size;
          ASSERT_NEAR(averages.at(name)[e], average[e], errors[name][e])
              << name << ", step " << step;
        }
      }
    }
    ASSERT_GT(states.back().state.schedule_step(), 2);
    EXPECT_NE(OfKind(states.back(), "ema"), OfKind(states.back(), "master"));
  }
}

// The first steps overflow.
TEST(Ema, SkippedStepsDoNotCount) {
  const TinyJob job;
  EmaCase c{.options = {.precision = v1::PRECISION_FP16}};
  v1::JobSpec spec = EmaSpecOf(job, c);
  spec.mutable_train()->mutable_loss_scale()->set_initial(1e12);
  const std::vector<Snapshot> states = StatesOf(spec, 1);
  ASSERT_EQ(states[1].state.skipped_steps(), 1);
  EXPECT_EQ(OfKind(states[1], "ema"), OfKind(states[0], "ema"));
}

// Of adapters and of what else is trained, and of nothing else.
TEST(Ema, WhatIsFrozenHasNone) {
  const TinyJob job;
  const v1::JobSpec adapters = EmaSpecOf(job, {.options = {.llama = true, .lora = 4}});
  for (const auto& [name, values] : OfKind(StatesOf(adapters, 0)[0], "ema")) {
    EXPECT_THAT(name, HasSubstr("lora_"));
  }
  v1::JobSpec frozen = EmaSpecOf(job, {.options = {}});
  v1::ParameterGroupSpec& group = *frozen.mutable_train()->mutable_optimizer()->add_groups();
  group.set_match("wte.*");
  group.set_freeze(true);
  const Snapshot state = StatesOf(frozen, 1)[1];
  EXPECT_EQ(OfKind(state, "ema").size() + 1, OfKind(state, "master").size());
}

TEST(Ema, ValidationsChangeNoBit) {
  const TinyJob job;
  for (const EmaCase& c : kEmaCases) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = EmaSpecOf(job, c);
    ExpectSameState(StatesOf(spec, 4, /*validate=*/true)[4], StatesOf(spec, 4)[4]);
  }
}

EvaluationReport Evaluated(const v1::JobSpec& spec, const Snapshot& state) {
  EvaluationReport report;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    if (!session.base_tensors().empty()) GiveBase(session);
    ASSERT_EQ(Restore(session, state), absl::OkStatus());
    const auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    if (rank == 0) report = *evaluation;
  });
  return report;
}

// A state without averages whose parameters are those of `from`.
Snapshot AveragesAsParameters(const v1::JobSpec& spec, const Snapshot& from) {
  Snapshot state = StatesOf(spec, 0)[0];
  auto averages = OfKind(from, "ema");
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    if (state.tensors[i].kind() != "master") continue;
    const std::vector<double>& values = averages.at(state.tensors[i].name());
    for (size_t e = 0; e < values.size(); ++e) {
      const auto value = static_cast<float>(values[e]);
      // To the nearest; of two that are as near, the one nearer to 0.
      const auto rounded = static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0x7fff) >> 16);
      const bool narrow = state.tensors[i].dtype() == "BF16";
      std::memcpy(state.data[i].at(static_cast<int64_t>(e)),
                  narrow ? static_cast<const void*>(&rounded) : &value, narrow ? 2 : 4);
    }
  }
  return state;
}

TEST(Ema, ValidationsAreOfTheAverages) {
  const TinyJob job;
  for (const EmaCase& c : kEmaCases) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = EmaSpecOf(job, c);
    const Snapshot trained = StatesOf(spec, 4)[4];
    v1::JobSpec without = spec;
    without.mutable_train()->clear_ema();
    const double got = Evaluated(spec, trained).loss;
    EXPECT_EQ(got, Evaluated(without, AveragesAsParameters(without, trained)).loss);
    // Not of the parameters.
    Snapshot parameters = StatesOf(without, 4)[4];
    EXPECT_NE(got, Evaluated(without, parameters).loss);
  }
}

TEST(Ema, TrainingHasTheSameBitsWithoutIt) {
  const TinyJob job;
  const v1::JobSpec spec = EmaSpecOf(job, kEmaCases[2]);
  v1::JobSpec without = spec;
  without.mutable_train()->clear_ema();
  EXPECT_EQ(TrainFresh(spec), TrainFresh(without));
}

TEST(Ema, GoesOnFromACheckpoint) {
  const TinyJob job;
  for (const EmaCase& c : kEmaCases) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = EmaSpecOf(job, c);
    const std::vector<Snapshot> undisturbed = StatesOf(spec, 5);
    Snapshot resumed;
    std::mutex mutex;
    RunRanks(spec, [&](int, TrainingSession& session) {
      if (!session.base_tensors().empty()) GiveBase(session);
      ASSERT_EQ(Restore(session, undisturbed[2]), absl::OkStatus());
      while (session.step() < 5) ASSERT_TRUE(session.Step(false).ok());
      Save(session, resumed, mutex);
    });
    ExpectSameState(resumed, undisturbed[5]);
  }
}

TEST(Ema, LoadsAtOtherNumbersOfRanks) {
  const TinyJob job;
  for (const bool masters : {true, false}) {
    EmaCase c{.options = {.ranks = 2, .stage = 1, .precision = v1::PRECISION_BF16},
              .masters = masters};
    const Snapshot at_two = StatesOf(EmaSpecOf(job, c), 3)[3];
    for (const auto& [ranks, stage] : {std::pair(1, 0), std::pair(3, 3)}) {
      c.options.ranks = ranks;
      c.options.stage = stage;
      Snapshot moved;
      std::mutex mutex;
      RunRanks(EmaSpecOf(job, c), [&](int, TrainingSession& session) {
        ASSERT_EQ(Restore(session, at_two), absl::OkStatus());
        Save(session, moved, mutex);
      });
      ExpectSameState(moved, at_two);
    }
  }
}

// A rank that is left alone within a validation still has its parameters.
TEST(Ema, AFailedValidationLeavesTheStateWhole) {
  const TinyJob job;
  for (const EmaCase& c : kEmaCases) {
    if (c.options.ranks != 2) continue;
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = EmaSpecOf(job, c);
    const Snapshot want = StatesOf(spec, 2)[2];
    Snapshot got;
    std::mutex mutex;
    auto group = comm::MakeInProcessGroup(2);
    std::latch trained(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        auto session = TrainingSession::Create(spec, {}, group[rank].get());
        ASSERT_TRUE(session.ok()) << session.status();
        Begin(**session);
        for (int step = 0; step < 2; ++step) ASSERT_TRUE((*session)->Step(false).ok());
        trained.arrive_and_wait();
        if (rank == 1) {
          group[1]->Abort("rank 1 leaves");
        } else {
          EXPECT_FALSE((*session)->Evaluate().ok());
          EXPECT_TRUE((*session)->state_is_whole());
        }
        Save(**session, got, mutex);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ExpectSameState(got, want);
  }
}

TEST(Ema, IsNotForOptimizersThatAreOffloaded) {
  const TinyJob job;
  v1::JobSpec spec = EmaSpecOf(job, {.options = {}});
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  EXPECT_THAT(ValidateJobSpec(spec).message(),
              HasSubstr("train.ema: its average lies beside an optimizer that is not offloaded"));
}

}  // namespace
}  // namespace milepost::runtime
