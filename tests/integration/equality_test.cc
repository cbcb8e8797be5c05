// Every family trains the same at every ZeRO stage, hybrid sharding, number of ranks, recomputation
// and precision: 10 steps against stage 0 on one rank with the same global batch. In every cell the
// arena has exactly the planned bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "engine/runtime/session/fill_interval.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kGlobalBatch = 24;  // 1 to 4 ranks divide it

struct Layout {
  int ranks;
  int stage;
  int group;  // of hybrid sharding; 0: all ranks
};

// Of one cell.
struct Cell {
  Layout layout;
  v1::Recompute recompute;
  v1::Precision precision;
};

// A job of two text layers.
v1::JobSpec TextJob(const Cell& cell, TinyOptions options) {
  static const TinyJob job;
  options.ranks = cell.layout.ranks;
  options.stage = cell.layout.stage;
  options.group = cell.layout.group;
  options.recompute = cell.recompute;
  options.precision = cell.precision;
  options.global_batch = kGlobalBatch;
  options.micro_batch = kGlobalBatch / cell.layout.ranks / (1 + cell.layout.stage % 2);
  return job.Spec(options);
}

v1::JobSpec Gpt2Job(const Cell& cell) { return TextJob(cell, {.dropout = 0.1}); }
v1::JobSpec LlamaJob(const Cell& cell) { return TextJob(cell, {.llama = true, .qk_norm = true}); }
v1::JobSpec Gemma3Job(const Cell& cell) { return TextJob(cell, {.llama = true, .gemma3 = true}); }
v1::JobSpec Olmo3Job(const Cell& cell) { return TextJob(cell, {.llama = true, .olmo3 = true}); }
// The loss of experts' balance tells micro-batches apart, so here they are the same in all cells.
v1::JobSpec ExpertsJob(const Cell& cell) {
  v1::JobSpec spec = TextJob(cell, {.llama = true, .experts = 5});
  v1::BatchSpec* batch = spec.mutable_train()->mutable_batch();
  batch->set_micro(2);
  batch->set_accumulation(kGlobalBatch / cell.layout.ranks / 2);
  return spec;
}

v1::JobSpec BertJob(const Cell& cell) {
  return TextJob(cell, {.dropout = 0.1, .bert = true, .documents = true});
}

// Three heads over a trunk of packed documents.
v1::JobSpec HeadsJob(const Cell& cell) {
  return TextJob(cell, {.llama = true, .documents = true, .heads = true});
}

// Adapters of some layers, with dropout; what they adapt is whole where it is not sharded.
v1::JobSpec LoraJob(const Cell& cell) {
  v1::JobSpec spec = TextJob(cell, {.llama = true, .qkv_bias = true, .lora = 4});
  v1::LoraSpec& lora = *spec.mutable_model()->mutable_lora();
  lora.set_dropout(0.1);
  for (const char* target : {"q_proj", "v_proj", "mlp.*"}) lora.add_targets(target);
  lora.add_also_train("lm_head.weight");
  return spec;
}

// With magnitudes, of some layers, whose biases are trained too.
v1::JobSpec DoraJob(const Cell& cell) {
  v1::JobSpec spec = TextJob(cell, {.llama = true, .qkv_bias = true, .lora = 4, .dora = true});
  v1::LoraSpec& lora = *spec.mutable_model()->mutable_lora();
  for (const char* target : {"q_proj", "v_proj", "mlp.*"}) lora.add_targets(target);
  lora.add_also_train("*.bias");
  return spec;
}

// The matrices that are adapted are in 4 bits; where they are sharded, their bytes are.
v1::JobSpec Nf4Job(const Cell& cell) {
  return TextJob(cell, {.llama = true, .qkv_bias = true, .lora = 4, .nf4 = true});
}

// Preferences, whose number differs from sample to sample.
v1::JobSpec DpoJob(const Cell& cell) {
  return TextJob(cell, {.dropout = 0.1, .documents = true, .lora = 4, .dpo = 0.5});
}

// Of a whole model, beside what it began with. At a larger beta the losses end near 0, where a
// relative difference is an absolute one of log-probabilities.
v1::JobSpec DpoWholeJob(const Cell& cell) {
  return TextJob(cell, {.llama = true, .tied = true, .documents = true, .dpo = 0.1});
}

// Batch norms tell micro-batches apart, so here they are half the batch, over all ranks. In bf16 a
// value that rounds the other way moves the loss of so few images by 1e-4, and steps multiply it:
// smaller ones.
v1::JobSpec ResNetJob(const Cell& cell) {
  static const TinyImages job;
  return job.Spec({.ranks = cell.layout.ranks,
                   .stage = cell.layout.stage,
                   .group = cell.layout.group,
                   .recompute = cell.recompute,
                   .precision = cell.precision,
                   .global_batch = kGlobalBatch,
                   .micro_batch = kGlobalBatch / 2 / cell.layout.ranks,
                   .lr = cell.precision == v1::PRECISION_FP32 ? 3e-3 : 5e-4});
}

// In every micro-batch as many images as there are ranks allow: nothing ties images together.
v1::JobSpec VitJob(const Cell& cell, TinyImageOptions options) {
  static const TinyImages job;
  options.ranks = cell.layout.ranks;
  options.stage = cell.layout.stage;
  options.group = cell.layout.group;
  options.recompute = cell.recompute;
  options.precision = cell.precision;
  options.global_batch = kGlobalBatch;
  options.micro_batch = kGlobalBatch / cell.layout.ranks / (1 + cell.layout.stage % 2);
  options.vit = true;
  return job.Spec(options);
}
v1::JobSpec PlainVitJob(const Cell& cell) { return VitJob(cell, {.heads = true, .dropout = 0.1}); }
// Adapters over a base that is frozen, but for the classifier.
v1::JobSpec VitLoraJob(const Cell& cell) {
  v1::JobSpec spec = VitJob(cell, {.lora = 4});
  spec.mutable_model()->mutable_lora()->add_also_train("classifier.*");
  return spec;
}

struct Family {
  std::string name;
  v1::JobSpec (*job)(const Cell& cell);
};

struct Precision {
  std::string name;
  v1::Precision value;
  double tolerance;  // relative, of a step's loss
};

const Precision kPrecisions[] = {
    {"Fp32", v1::PRECISION_FP32, 1e-5},
    {"Bf16", v1::PRECISION_BF16, 2e-3},
    {"Fp16", v1::PRECISION_FP16, 2e-3},
};

constexpr v1::Recompute kRecomputes[] = {v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE,
                                         v1::RECOMPUTE_FULL};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (int ranks : {1, 2, 3, 4}) {
    for (int stage : {0, 1, 2, 3}) layouts.push_back({ranks, stage, 0});
  }
  for (int stage : {1, 2, 3}) {
    for (const Layout& hybrid : {Layout{2, stage, 1}, Layout{3, stage, 1}, Layout{4, stage, 2}}) {
      layouts.push_back(hybrid);
    }
  }
  return layouts;
}

// Rank 0's losses; planned bytes are compared with allocated ones on every rank.
std::vector<double> Train(const v1::JobSpec& spec) {
  std::vector<double> losses;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) losses.push_back(report->train_loss);
    }
  });
  return losses;
}

// Losses of one rank over a base whose values depend on their tensors' names alone, and so stay the
// same beside a parameter more.
std::vector<double> TrainOverNamedBase(const v1::JobSpec& spec) {
  std::vector<double> losses;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    ASSERT_EQ(session.FetchState(), absl::OkStatus());
    for (const StateInterval& target : session.BaseTargets(/*part=*/0)) {
      const v1::TensorInfo& tensor = session.base_tensors()[target.tensor];
      double phase = 0;
      for (const char c : tensor.name()) phase = 1.3 * phase + c;
      const auto read = [&](int64_t begin, int64_t end, float* values) {
        for (int64_t e = begin; e < end; ++e) {
          values[e - begin] = static_cast<float>(0.1 * std::sin(phase + 0.7 * e * (1 + e % 3)));
        }
        return absl::OkStatus();
      };
      ASSERT_EQ(FillInterval(tensor, target, read), absl::OkStatus());
    }
    ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      losses.push_back(report->train_loss);
    }
  });
  return losses;
}

// To the last bit: in the first step's loss, also of preferences, and of a base in 4 bits.
TEST(Magnitudes, BeginAsTheModelItself) {
  for (const Precision& precision : kPrecisions) {
    for (TinyOptions options :
         {TinyOptions{.llama = true, .lora = 4}, TinyOptions{.llama = true, .lora = 4, .nf4 = true},
          TinyOptions{.llama = true, .documents = true, .lora = 4, .dpo = 0.5}}) {
      std::vector<double> losses[2];
      for (const bool dora : {false, true}) {
        options.dora = dora;
        losses[dora ? 1 : 0] =
            TrainOverNamedBase(TextJob({{1, 0, 0}, v1::RECOMPUTE_NONE, precision.value}, options));
      }
      ASSERT_EQ(losses[1].size(), 10u);
      EXPECT_EQ(losses[0][0], losses[1][0]) << precision.name;
      EXPECT_NE(losses[0].back(), losses[1].back()) << precision.name;
    }
  }
}

TEST(Magnitudes, HaveTheSameBitsWhenTheyAreMadeAgain) {
  for (const Precision& precision : kPrecisions) {
    for (const Layout& layout : {Layout{1, 0, 0}, Layout{2, 3, 0}}) {
      const std::vector<double> kept =
          Train(DoraJob({layout, v1::RECOMPUTE_NONE, precision.value}));
      EXPECT_EQ(Train(DoraJob({layout, v1::RECOMPUTE_SELECTIVE, precision.value})), kept);
      EXPECT_EQ(Train(DoraJob({layout, v1::RECOMPUTE_FULL, precision.value})), kept);
    }
  }
}

// What a token is routed to is not decided twice.
TEST(Experts, HaveTheSameBitsWhenTheyAreMadeAgain) {
  for (const Precision& precision : kPrecisions) {
    for (const Layout& layout : {Layout{1, 0, 0}, Layout{2, 3, 0}}) {
      const std::vector<double> kept =
          Train(ExpertsJob({layout, v1::RECOMPUTE_NONE, precision.value}));
      EXPECT_EQ(Train(ExpertsJob({layout, v1::RECOMPUTE_SELECTIVE, precision.value})), kept);
      EXPECT_EQ(Train(ExpertsJob({layout, v1::RECOMPUTE_FULL, precision.value})), kept);
    }
  }
}

struct Row {
  Family family;
  Precision precision;
};

std::vector<Row> Rows() {
  std::vector<Row> rows;
  for (const Family& family :
       {Family{"Gpt2", Gpt2Job}, Family{"Llama", LlamaJob}, Family{"Gemma3", Gemma3Job},
        Family{"Olmo3", Olmo3Job}, Family{"Experts", ExpertsJob}, Family{"Bert", BertJob},
        Family{"Heads", HeadsJob}, Family{"Lora", LoraJob}, Family{"Dora", DoraJob},
        Family{"Nf4", Nf4Job}, Family{"Dpo", DpoJob}, Family{"DpoWhole", DpoWholeJob},
        Family{"ResNet", ResNetJob}, Family{"Vit", PlainVitJob}, Family{"VitLora", VitLoraJob}}) {
    for (const Precision& precision : kPrecisions) {
      const bool halves = precision.value == v1::PRECISION_FP16;
      if (family.name != "ResNet" || !halves) rows.push_back({family, precision});
    }
  }
  return rows;
}

class Equality : public testing::TestWithParam<Row> {};

TEST_P(Equality, OfEveryLayoutWithOneRankAtStage0) {
  const auto& [family, precision] = GetParam();
  const std::vector<double> reference =
      Train(family.job({{1, 0, 0}, v1::RECOMPUTE_NONE, precision.value}));
  ASSERT_EQ(reference.size(), 10u);
  for (const Layout& layout : Layouts()) {
    for (const v1::Recompute recompute : kRecomputes) {
      const std::vector<double> losses = Train(family.job({layout, recompute, precision.value}));
      ASSERT_EQ(losses.size(), reference.size());
      for (size_t step = 0; step < losses.size(); ++step) {
        EXPECT_NEAR(losses[step], reference[step], precision.tolerance * reference[step])
            << "step " << step << ", " << layout.ranks << " ranks, stage " << layout.stage
            << ", groups of " << layout.group << ", recompute " << recompute;
      }
    }
  }
}

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.family.name << " in " << row.precision.name;
}

INSTANTIATE_TEST_SUITE_P(Matrix, Equality, testing::ValuesIn(Rows()), [](const auto& row) {
  return row.param.family.name + row.param.precision.name;
});

}  // namespace
}  // namespace milepost::runtime
