// For tests: a tiny job on data of its own, and ranks as threads.
//
//   TinyJob job;                               // a folder of its own, removed with it
//   v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 1});
//   RunRanks(spec, [&](int rank, TrainingSession& session) { ... });
#ifndef MILEPOST_ENGINE_RUNTIME_TESTING_TINY_JOB_H_
#define MILEPOST_ENGINE_RUNTIME_TESTING_TINY_JOB_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/philox.h"
#include "common/spec/validate.h"
#include "engine/comm/in_process.h"
#include "engine/data/npy.h"
#include "engine/runtime/session/training_session.h"
#include "engine/runtime/testing/npy.h"

namespace milepost::runtime {

struct TinyOptions {
  int ranks = 1;
  int tensor = 1;    // of them, those that divide each layer
  int pipeline = 1;  // stages
  int context = 1;   // ranks that divide each sequence
  int expert = 1;    // ranks that share out the experts
  v1::PipelineSchedule schedule = v1::PIPELINE_SCHEDULE_UNSPECIFIED;
  int chunks = 0;  // of an interleaved one; 0: the spec's default
  int stage = 1;
  int group = 0;  // ranks that share out shards; 0: all
  int prefetch = 1;
  v1::Recompute recompute = v1::RECOMPUTE_NONE;
  v1::Precision precision = v1::PRECISION_FP32;
  int64_t global_batch = 12;
  int64_t micro_batch = 2;
  int64_t layers = 2;
  int64_t width = 32;
  int64_t attention_heads = 4;
  int64_t sequence = 0;  // tokens of a sample, instead of kContext; 240 at most
  double dropout = 0;
  int64_t steps = 10;
  uint64_t seed = 7;
  double lr = 3e-3;
  bool llama = false;  // instead of GPT-2; what follows is its
  int64_t kv_heads = 2;
  int64_t hidden = 48;
  bool tied = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  v1::LlamaSpec::Activation activation = v1::LlamaSpec::ACTIVATION_UNSPECIFIED;
  bool gemma3 = false;        // a llama with all that Gemma 3 has beside it
  bool no_pre_norms = false;  // a llama with norms behind attention and MLPs alone
  bool olmo3 = false;       // a llama with the norms of OLMo 2 and 3, and the windows of the latter
  int64_t experts = 0;      // a llama's; 0: one MLP for all
  int64_t per_token = 2;    // of the experts
  double balance = 0.02;    // times the loss of their balance; of their router's logits a tenth
  bool bert = false;        // instead of GPT-2, with masking and segments
  bool distilbert = false;  // a bert without segments
  bool documents = false;   // separated by token 5, attention bounded by them
  bool heads = false;       // two further ones, "kind" and "next", over labels of each token
  int64_t head_dim = 8;     // Llama's
  int64_t lora = 0;         // rank of adapters of all layers; 0: none
  bool nf4 = false;         // what they adapt is in 4 bits
  bool dora = false;        // with magnitudes
  double dpo = 0;           // beta of preferences, with documents; 0: next tokens
};

class TinyJob {
 public:
  static constexpr int64_t kVocabulary = 61;
  static constexpr int64_t kContext = 24;

  TinyJob() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    Write("train.npy", 40 * kContext + 1, 1);
    Write("validation.npy", 7 * kContext + 1, 2);
    Write("pairs.npy", 40 * kContext + 1, 1, /*ends=*/true);
    Write("validation_pairs.npy", 7 * kContext + 1, 2, /*ends=*/true);
    WriteLabels("train", 40 * kContext + 1);
    WriteLabels("validation", 7 * kContext + 1);
  }
  ~TinyJob() { std::filesystem::remove_all(folder_); }
  TinyJob(const TinyJob&) = delete;
  TinyJob& operator=(const TinyJob&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  v1::JobSpec Spec(const TinyOptions& options) const {
    v1::JobSpec spec;
    spec.set_name("tiny");
    if (options.bert) {
      *spec.mutable_model()->mutable_bert() = Bert(options);
      spec.mutable_data()->mutable_masking()->set_probability(0.3);
      spec.mutable_data()->mutable_masking()->set_mask_token(kVocabulary - 1);
      spec.mutable_data()->mutable_masking()->add_special_tokens(3);
      if (!options.distilbert) spec.mutable_data()->set_segment_separator(7);
    } else if (options.llama) {
      *spec.mutable_model()->mutable_llama() = Llama(options);
    } else {
      *spec.mutable_model()->mutable_gpt2() = Gpt2(options);
    }
    if (options.heads) AddHeads(spec);
    if (options.lora > 0) {
      spec.mutable_model()->mutable_lora()->set_rank(options.lora);
      if (options.nf4) {
        spec.mutable_model()->mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
      }
      spec.mutable_model()->mutable_lora()->set_alpha(static_cast<double>(3 * options.lora));
      spec.mutable_model()->mutable_lora()->set_dora(options.dora);
    }
    if (options.lora > 0 || options.dpo > 0) {
      spec.mutable_train()->set_init_from(folder_);  // sessions do not read it
    }
    if (options.documents) spec.mutable_data()->set_document_separator(5);
    spec.mutable_data()->set_train(path("train.npy"));
    spec.mutable_data()->set_validation(
        path(options.sequence > 0 ? "train.npy" : "validation.npy"));  // which is too short
    v1::TrainSpec* train = spec.mutable_train();
    train->set_steps(options.steps);
    train->set_seed(options.seed);
    train->set_precision(options.precision);
    train->set_recompute(options.recompute);
    train->mutable_batch()->set_global(options.global_batch);
    train->mutable_batch()->set_micro(options.micro_batch);
    train->mutable_zero()->set_stage(options.stage);
    train->mutable_zero()->set_prefetch(options.prefetch);
    train->mutable_zero()->set_group(options.group);
    train->mutable_optimizer()->set_lr(options.lr);
    train->mutable_schedule()->set_warmup_steps(std::min<int64_t>(3, options.steps));
    train->mutable_validation()->set_samples(5);
    if (options.dpo > 0) {
      train->mutable_dpo()->set_beta(options.dpo);
      spec.mutable_data()->set_train(path("pairs.npy"));
      spec.mutable_data()->set_validation(path("validation_pairs.npy"));
    }
    spec.mutable_resources()->set_ranks(options.ranks);
    if (options.tensor > 1) spec.mutable_resources()->mutable_mesh()->set_tensor(options.tensor);
    if (options.pipeline > 1) {
      spec.mutable_resources()->mutable_mesh()->set_pipeline(options.pipeline);
      spec.mutable_resources()->mutable_mesh()->set_schedule(options.schedule);
      if (options.chunks > 0) {
        spec.mutable_resources()->mutable_mesh()->set_chunks(options.chunks);
      }
    }
    if (options.context > 1) spec.mutable_resources()->mutable_mesh()->set_context(options.context);
    if (options.expert > 1) spec.mutable_resources()->mutable_mesh()->set_expert(options.expert);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  static int64_t ContextOf(const TinyOptions& options) {
    return options.sequence > 0 ? options.sequence : kContext;
  }

  static v1::Gpt2Spec Gpt2(const TinyOptions& options) {
    v1::Gpt2Spec model;
    model.set_layers(options.layers);
    model.set_width(options.width);
    model.set_heads(options.attention_heads);
    model.set_context(ContextOf(options));
    model.set_vocabulary(kVocabulary);
    model.set_dropout(options.dropout);
    return model;
  }

  static v1::BertSpec Bert(const TinyOptions& options) {
    v1::BertSpec model;
    model.set_layers(options.layers);
    model.set_width(options.width);
    model.set_heads(options.attention_heads);
    model.set_hidden(options.hidden);
    model.set_context(ContextOf(options));
    model.set_vocabulary(kVocabulary);
    model.set_segments(options.distilbert ? 0 : 3);
    model.set_dropout(options.dropout);
    return model;
  }

  // The second of two layers has no window.
  static void MakeGemma3(v1::LlamaSpec* model) {
    model->set_qk_norm(true);
    model->set_norm_offset(true);
    model->set_post_norms(true);
    model->set_scale_embedding(true);
    model->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
    model->mutable_window()->set_positions(7);
    model->mutable_window()->set_full_every(2);
    model->mutable_window()->set_rope_theta(100);
  }

  static void LeaveOutPreNorms(v1::LlamaSpec* model) {
    model->set_pre_norms(false);
    model->set_post_norms(true);
  }

  static void MakeOlmo3(v1::LlamaSpec* model) {
    LeaveOutPreNorms(model);
    model->set_wide_qk_norm(true);
    model->mutable_window()->set_positions(7);
    model->mutable_window()->set_full_every(2);
    model->mutable_window()->set_rope_theta(100);
  }

  static v1::LlamaSpec Llama(const TinyOptions& options) {
    v1::LlamaSpec model;
    model.set_layers(options.layers);
    model.set_width(options.width);
    model.set_heads(options.attention_heads);
    model.set_kv_heads(options.kv_heads);
    model.set_head_dim(options.head_dim);
    model.set_hidden(options.hidden);
    model.set_context(ContextOf(options));
    model.set_vocabulary(kVocabulary);
    model.mutable_rope_scaling()->set_original_context(16);
    model.set_tied(options.tied);
    model.set_qkv_bias(options.qkv_bias);
    model.set_qk_norm(options.qk_norm);
    model.set_activation(options.activation);
    if (options.gemma3) MakeGemma3(&model);
    if (options.no_pre_norms) LeaveOutPreNorms(&model);
    if (options.olmo3) MakeOlmo3(&model);
    if (options.experts > 0) {
      v1::ExpertsSpec* experts = model.mutable_experts();
      experts->set_count(options.experts);
      experts->set_per_token(options.per_token);
      experts->set_normalize(!options.qk_norm);
      experts->set_balance_loss(options.balance);
      experts->set_z_loss(options.balance / 10);
    }
    return model;
  }

  // Ids with some structure, so that a loss falls. `ends`: each sample ends with the token that
  // separates documents.
  void Write(const std::string& name, int64_t tokens, uint64_t seed, bool ends = false) const {
    auto writer = data::NpyWriter::Create(path(name), data::TokenType::kUint8);
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::vector<uint32_t> ids(static_cast<size_t>(tokens));
    uint32_t previous = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint32_t random =
          Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, PhiloxKey(seed, 0))[0];
      previous = random % 4 == 0 ? random / 4 % kVocabulary : (previous * 3 + 1) % kVocabulary;
      ids[i] = previous;
      if (ends && i % kContext == kContext - 1) ids[i] = 5;
    }
    ASSERT_EQ((*writer)->Append(ids), absl::OkStatus());
    ASSERT_EQ((*writer)->Finish(), absl::OkStatus());
  }

 private:
  static constexpr int64_t kKinds = 7;
  static constexpr int64_t kNexts = 130;

  void AddHeads(v1::JobSpec& spec) const {
    spec.mutable_model()->set_head_weight(0.5);
    for (const bool first : {true, false}) {
      v1::TaskHeadSpec& head = *spec.mutable_model()->add_heads();
      head.set_name(first ? "kind" : "next");
      head.set_classes(first ? kKinds : kNexts);
      head.set_weight(first ? 2 : 0.25);
      v1::LabelSource& labels = *spec.mutable_data()->add_labels();
      labels.set_head(head.name());
      labels.set_train(path("train." + head.name() + ".npy"));
      labels.set_validation(path("validation." + head.name() + ".npy"));
    }
  }

  // Some tokens have none.
  void WriteLabels(const std::string& name, int64_t tokens) const {
    std::string kinds, nexts;
    for (int64_t i = 0; i < tokens; ++i) {
      kinds.push_back(static_cast<char>(i % 5 == 2 ? -1 : i * i / 3 % kKinds));
      const auto next = static_cast<int16_t>(i % 11 == 0 ? -1 : (i * i + i / 7) % kNexts);
      nexts.append(reinterpret_cast<const char*>(&next), sizeof(next));
    }
    WriteNpy(path(name + ".kind.npy"), "|i1", absl::StrCat(tokens, ","), kinds);
    WriteNpy(path(name + ".next.npy"), "<i2", absl::StrCat(tokens, ","), nexts);
  }

  std::string folder_;
};

// What the sessions of a run are created with, by rank.
using OptionsOfRank = std::function<SessionOptions(int)>;

// Calls body(rank, session) on a thread per rank; sessions are created, not initialised.
inline void RunRanks(
    const v1::JobSpec& spec, const std::function<void(int, TrainingSession&)>& body,
    const OptionsOfRank& options = [](int) { return SessionOptions{}; }) {
  auto group = comm::MakeInProcessGroup(spec.resources().ranks());
  auto activations = comm::MakeInProcessGroup(spec.resources().ranks());
  auto gradients = comm::MakeInProcessGroup(spec.resources().ranks());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      SessionOptions of_rank = options(static_cast<int>(rank));
      of_rank.transfers = {activations[rank].get(), gradients[rank].get()};
      auto session = TrainingSession::Create(spec, of_rank, group[rank].get());
      ASSERT_TRUE(session.ok()) << session.status();
      body(static_cast<int>(rank), **session);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of three steps: each rank sends what is planned, by all of its communicators. Then calls
// after(rank, session) on its thread.
inline void ExpectSendsWhatIsPlanned(
    const v1::JobSpec& spec, const std::function<void(size_t, TrainingSession&)>& after = {}) {
  std::vector<std::unique_ptr<comm::Communicator>> groups[3];
  for (auto& group : groups) group = comm::MakeInProcessGroup(spec.resources().ranks());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups[0].size(); ++rank) {
    threads.emplace_back([&, rank] {
      SessionOptions options = {.threads = 1};
      options.transfers = {groups[1][rank].get(), groups[2][rank].get()};
      auto session = TrainingSession::Create(spec, options, groups[0][rank].get());
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE((*session)->InitializeParameters().ok());
      const auto all_sent = [&] {
        int64_t bytes = 0;
        for (auto& group : groups) bytes += group[rank]->stats().bytes_sent;
        return bytes;
      };
      for (int i = 0; i < 3; ++i) {
        const int64_t before = all_sent();
        const absl::StatusOr<StepReport> report = (*session)->Step(false);
        ASSERT_TRUE(report.ok()) << report.status();
        const auto sent = static_cast<double>(all_sent() - before);
        const plan::StepPlan& plan = (*session)->plan();
        const bool outer = plan.options.outer_every > 0 && report->of_all_ranks;
        // A few bytes of scalars are sent whole, not as a ring would.
        EXPECT_NEAR(sent, plan.wire_bytes_per_step + (outer ? plan.outer_wire_bytes : 0), 300)
            << "rank " << rank;
      }
      if (after) after(rank, **session);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of two runs' losses or norms, step by step; relative to b's.
inline double LargestRelativeDifference(const std::vector<double>& a,
                                        const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  }
  return largest;
}

// Losses of rank 0 over spec.train.steps from a fresh start.
inline std::vector<double> TrainFresh(const v1::JobSpec& spec) {
  std::vector<double> losses;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) losses.push_back(report->train_loss);
    }
  });
  return losses;
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TESTING_TINY_JOB_H_
