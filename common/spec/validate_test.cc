#include "common/spec/validate.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "common/spec/parse.h"
#include "common/spec/spec_fixture.h"
#include "milepost/v1/error_details.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using v1::JobSpec;

JobSpec Small() {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

JobSpec Normalized(const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  JobSpec spec = Small();
  change(&spec);
  NormalizeJobSpec(&spec);
  return spec;
}

TEST(NormalizeTest, FillsInEveryDefault) {
  const JobSpec spec = Normalized();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_EQ(spec.data().sequence_length(), 32);
  EXPECT_EQ(spec.train().precision(), v1::PRECISION_BF16);
  EXPECT_EQ(spec.train().batch().accumulation(), 2);
  EXPECT_EQ(spec.train().zero().stage(), 1);
  EXPECT_EQ(spec.train().optimizer().lr(), 6e-4);
  EXPECT_EQ(spec.train().optimizer().beta1(), 0.9);
  EXPECT_EQ(spec.train().optimizer().beta2(), 0.95);
  EXPECT_EQ(spec.train().optimizer().epsilon(), 1e-8);
  EXPECT_EQ(spec.train().optimizer().weight_decay(), 0.1);
  EXPECT_EQ(spec.train().schedule().type(), v1::ScheduleSpec::TYPE_COSINE);
  EXPECT_EQ(spec.train().schedule().final_lr_ratio(), 0.1);
  EXPECT_EQ(spec.train().clip_norm(), 1.0);
  EXPECT_EQ(spec.train().on_nonfinite(), v1::ON_NONFINITE_SKIP);
  EXPECT_EQ(spec.train().max_skipped_steps(), 20);
  EXPECT_EQ(spec.train().validation().samples(), 64);
  EXPECT_EQ(spec.resources().device(), v1::DEVICE_KIND_CPU);
  EXPECT_EQ(spec.checkpoint().keep_last(), 3);
  EXPECT_EQ(spec.restart().max_failures(), 3);
  EXPECT_EQ(spec.restart().backoff_seconds(), 1.0);
}

// Fields with presence and enums that are still absent; of a choice, one is enough.
void CollectAbsent(const google::protobuf::Message& message, std::vector<std::string>* absent) {
  const auto* reflection = message.GetReflection();
  const auto* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const auto* field = type->field(i);
    using Field = google::protobuf::FieldDescriptor;
    const bool is_enum = field->cpp_type() == Field::CPPTYPE_ENUM;
    const auto* choice = field->real_containing_oneof();
    if (choice != nullptr && reflection->HasOneof(message, choice) &&
        !reflection->HasField(message, field)) {
      continue;
    }
    if (field->is_repeated()) {
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        CollectAbsent(reflection->GetRepeatedMessage(message, field, k), absent);
      }
    } else if ((field->has_presence() || is_enum) && !reflection->HasField(message, field)) {
      absent->push_back(field->full_name());
    } else if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
      CollectAbsent(reflection->GetMessage(message, field), absent);
    }
  }
}

TEST(NormalizeTest, LeavesNoFieldUnsetAndIsIdempotent) {
  JobSpec spec = Normalized([](JobSpec* s) {
    s->mutable_data()->add_mixture();
    s->mutable_model()->add_heads();  // a model of one head leaves that one's weight as it is
    s->mutable_train()->set_precision(v1::PRECISION_FP16);  // the others have no loss scale
  });
  EXPECT_EQ(spec.train().loss_scale().initial(), 65536);
  EXPECT_EQ(spec.train().loss_scale().growth(), 2);
  EXPECT_EQ(spec.train().loss_scale().backoff(), 0.5);
  EXPECT_EQ(spec.train().loss_scale().growth_interval(), 2000);
  EXPECT_EQ(spec.train().loss_scale().floor(), 1);
  std::vector<std::string> absent;
  CollectAbsent(spec, &absent);
  // Of other models, optimizers, precisions, data.
  EXPECT_THAT(
      absent,
      ElementsAre("milepost.v1.ModelSpec.lora", "milepost.v1.DataSpec.images",
                  "milepost.v1.DataSpec.masking", "milepost.v1.DataSpec.document_separator",
                  "milepost.v1.DataSpec.segment_separator", "milepost.v1.DataSpec.padding",
                  "milepost.v1.DataSpec.loss_mask", "milepost.v1.BatchSpec.side_by_side",
                  "milepost.v1.OptimizerSpec.momentum", "milepost.v1.OptimizerSpec.nesterov",
                  "milepost.v1.OptimizerSpec.adamw_lr",
                  "milepost.v1.OptimizerSpec.orthogonalization", "milepost.v1.OptimizerSpec.beta3",
                  "milepost.v1.TrainSpec.recompute_budget", "milepost.v1.TrainSpec.dpo",
                  "milepost.v1.TrainSpec.ema", "milepost.v1.TrainSpec.powersgd",
                  "milepost.v1.TrainSpec.sync", "milepost.v1.ResourceSpec.memory",
                  "milepost.v1.ResourceSpec.min_ranks", "milepost.v1.ResourceSpec.max_ranks",
                  "milepost.v1.ResourceSpec.mesh", "milepost.v1.JobSpec.script"));
  const JobSpec once = spec;
  NormalizeJobSpec(&spec);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, once));
}

JobSpec WithLlama(const std::function<void(v1::LlamaSpec*)>& change = [](v1::LlamaSpec*) {}) {
  return Normalized([&](JobSpec* s) {
    v1::LlamaSpec* llama = s->mutable_model()->mutable_llama();
    llama->set_layers(2);
    llama->set_width(64);
    llama->set_heads(4);
    llama->set_hidden(96);
    llama->set_context(48);
    llama->set_vocabulary(256);
    llama->mutable_rope_scaling();
    change(llama);
  });
}

TEST(NormalizeTest, GivesEachOptimizerItsOwnDefaults) {
  const auto optimizer = [](v1::OptimizerSpec::Type type) {
    return Normalized([&](JobSpec* s) {
             s->mutable_train()->mutable_optimizer()->Clear();
             s->mutable_train()->mutable_optimizer()->set_type(type);
           })
        .train()
        .optimizer();
  };
  const v1::OptimizerSpec sgd = optimizer(v1::OptimizerSpec::TYPE_SGD);
  EXPECT_EQ(sgd.lr(), 0.01);
  EXPECT_EQ(sgd.momentum(), 0.9);
  EXPECT_EQ(sgd.weight_decay(), 0);
  EXPECT_FALSE(sgd.has_beta1() || sgd.has_beta2() || sgd.has_epsilon());
  const v1::OptimizerSpec lion = optimizer(v1::OptimizerSpec::TYPE_LION);
  EXPECT_EQ(lion.lr(), 1e-4);
  EXPECT_EQ(lion.beta2(), 0.99);
  EXPECT_FALSE(lion.has_epsilon() || lion.has_momentum());
  const v1::OptimizerSpec lamb = optimizer(v1::OptimizerSpec::TYPE_LAMB);
  EXPECT_EQ(lamb.lr(), 2e-3);
  EXPECT_EQ(lamb.beta2(), 0.999);
  EXPECT_EQ(lamb.epsilon(), 1e-6);
  EXPECT_EQ(lamb.weight_decay(), 0.01);
  const v1::OptimizerSpec muon = optimizer(v1::OptimizerSpec::TYPE_MUON);
  EXPECT_EQ(muon.momentum(), 0.95);
  EXPECT_TRUE(muon.nesterov());
  EXPECT_EQ(muon.adamw_lr(), muon.lr());
  EXPECT_EQ(muon.beta2(), 0.95);
  EXPECT_EQ(muon.orthogonalization(), v1::ORTHOGONALIZATION_BF16);
  EXPECT_FALSE(optimizer(v1::OptimizerSpec::TYPE_ADAMW_8BIT).has_momentum());
  const v1::OptimizerSpec adan = optimizer(v1::OptimizerSpec::TYPE_ADAN);
  EXPECT_EQ(adan.beta1(), 0.98);
  EXPECT_EQ(adan.beta3(), 0.99);
  EXPECT_FALSE(adan.has_momentum() || muon.has_beta3());
}

TEST(NormalizeTest, AnActivationThatIsNoneIsRefused) {
  JobSpec spec = WithLlama();
  spec.mutable_model()->mutable_llama()->set_activation(static_cast<v1::LlamaSpec::Activation>(9));
  EXPECT_EQ(ValidateJobSpec(spec).message(),
            "model.llama.activation: expected swiglu or geglu, got the number 9");
}

TEST(NormalizeTest, FillsInLlamasDefaults) {
  const JobSpec spec = WithLlama();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  std::vector<std::string> absent;
  CollectAbsent(spec, &absent);
  // Of other models, optimizers, precisions, data.
  EXPECT_THAT(
      absent,
      ElementsAre("milepost.v1.RopeScalingSpec.type", "milepost.v1.LlamaSpec.activation",
                  "milepost.v1.LlamaSpec.window", "milepost.v1.LlamaSpec.norm_offset",
                  "milepost.v1.LlamaSpec.post_norms", "milepost.v1.LlamaSpec.scale_embedding",
                  "milepost.v1.LlamaSpec.pre_norms", "milepost.v1.LlamaSpec.wide_qk_norm",
                  "milepost.v1.LlamaSpec.experts", "milepost.v1.ModelSpec.head_weight",
                  "milepost.v1.ModelSpec.lora", "milepost.v1.DataSpec.images",
                  "milepost.v1.DataSpec.masking", "milepost.v1.DataSpec.document_separator",
                  "milepost.v1.DataSpec.segment_separator", "milepost.v1.DataSpec.padding",
                  "milepost.v1.DataSpec.loss_mask", "milepost.v1.BatchSpec.side_by_side",
                  "milepost.v1.OptimizerSpec.momentum", "milepost.v1.OptimizerSpec.nesterov",
                  "milepost.v1.OptimizerSpec.adamw_lr",
                  "milepost.v1.OptimizerSpec.orthogonalization", "milepost.v1.OptimizerSpec.beta3",
                  "milepost.v1.TrainSpec.recompute_budget", "milepost.v1.TrainSpec.loss_scale",
                  "milepost.v1.TrainSpec.dpo", "milepost.v1.TrainSpec.ema",
                  "milepost.v1.TrainSpec.powersgd", "milepost.v1.TrainSpec.sync",
                  "milepost.v1.ResourceSpec.memory", "milepost.v1.ResourceSpec.min_ranks",
                  "milepost.v1.ResourceSpec.max_ranks", "milepost.v1.ResourceSpec.mesh",
                  "milepost.v1.JobSpec.script"));
  const v1::LlamaSpec& llama = spec.model().llama();
  EXPECT_EQ(llama.kv_heads(), 4);
  EXPECT_EQ(llama.head_dim(), 16);
  EXPECT_EQ(llama.rope_theta(), 10000);
  EXPECT_EQ(llama.rope_scaling().factor(), 8);
  EXPECT_EQ(llama.norm_epsilon(), 1e-5);
  EXPECT_EQ(spec.data().sequence_length(), 48);
  EXPECT_FALSE(
      WithLlama([](auto* m) { m->clear_rope_scaling(); }).model().llama().has_rope_scaling());
}

TEST(NormalizeTest, ConstantScheduleEndsAtItsPeak) {
  const JobSpec spec = Normalized([](JobSpec* s) {
    s->mutable_train()->mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_CONSTANT);
  });
  EXPECT_EQ(spec.train().schedule().final_lr_ratio(), 1.0);
  EXPECT_EQ(spec.train().schedule().decay_steps(), 0);
  const v1::JobSpec stable = Normalized([](auto* s) {
    s->mutable_train()->mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY);
  });
  EXPECT_EQ(stable.train().schedule().decay_steps(), stable.train().steps() / 5);
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
}

JobSpec WithBatch(std::optional<int64_t> global, std::optional<int64_t> micro,
                  std::optional<int64_t> accumulation, int ranks = 2) {
  return Normalized([&](JobSpec* s) {
    auto* batch = s->mutable_train()->mutable_batch();
    batch->Clear();
    if (global) batch->set_global(*global);
    if (micro) batch->set_micro(*micro);
    if (accumulation) batch->set_accumulation(*accumulation);
    s->mutable_resources()->set_ranks(ranks);
  });
}

TEST(NormalizeTest, DerivesTheThirdOfTheBatch) {
  for (const JobSpec& spec :
       {WithBatch(24, 4, {}), WithBatch(24, {}, 3), WithBatch({}, 4, 3), WithBatch(24, 4, 3)}) {
    EXPECT_EQ(spec.train().batch().global(), 24);
    EXPECT_EQ(spec.train().batch().micro(), 4);
    EXPECT_EQ(spec.train().batch().accumulation(), 3);
    EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  }
}

TEST(CheckTest, ExplainsTheBatch) {
  constexpr char kTwo[] = "give two of global, micro and accumulation; the third is derived";
  EXPECT_THAT(CheckJobSpec(WithBatch({}, {}, {})),
              ElementsAre(FieldViolation{"train.batch", kTwo}));
  EXPECT_THAT(CheckJobSpec(WithBatch(8, {}, {})), ElementsAre(FieldViolation{"train.batch", kTwo}));
  EXPECT_THAT(CheckJobSpec(WithBatch(25, 4, {})),
              ElementsAre(FieldViolation{
                  "train.batch.global",
                  "must be a multiple of micro * ranks = 8, got 25; nearest: 24 or 32"}));
  EXPECT_THAT(CheckJobSpec(WithBatch(2, {}, 3)),
              ElementsAre(FieldViolation{
                  "train.batch.global",
                  "must be a multiple of accumulation * ranks = 6, got 2; nearest: 6"}));
  EXPECT_THAT(CheckJobSpec(WithBatch(25, 4, 3)),
              ElementsAre(FieldViolation{"train.batch.global",
                                         "micro * accumulation * ranks is 4 * 3 * 2 = 24, not 25: "
                                         "remove one of the three"}));
  EXPECT_THAT(CheckJobSpec(WithBatch(8, 0, {})),
              ElementsAre(FieldViolation{"train.batch.micro", "expected 1 to 65536, got 0"}));
}

// What has no default and is not given is told once, and not what would follow from it.
TEST(CheckTest, SaysWhatIsRequired) {
  const JobSpec empty = Normalized([](JobSpec* s) {
    s->mutable_model()->mutable_llama()->Clear();
    s->mutable_data()->clear_sequence_length();
    s->mutable_train()->clear_steps();
    s->mutable_train()->mutable_schedule()->set_warmup_steps(5);
  });
  std::vector<std::string> fields;
  for (const FieldViolation& violation : CheckJobSpec(empty)) {
    fields.push_back(violation.field);
    EXPECT_THAT(violation.message, StartsWith("required: a whole number from ")) << fields.back();
  }
  EXPECT_THAT(fields, ElementsAre("model.llama.layers", "model.llama.width", "model.llama.heads",
                                  "model.llama.hidden", "model.llama.context",
                                  "model.llama.vocabulary", "train.steps"));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A pointer: hundreds of std::functions take half a minute to compile.
struct Case {
  const char* field;
  void (*change)(JobSpec*);
};

v1::AttentionWindowSpec* WindowOf(v1::LlamaSpec* llama) {
  llama->mutable_window()->set_positions(4);
  return llama->mutable_window();
}

TEST(CheckTest, FindsEachBrokenRuleOfLlama) {
  const std::vector<std::pair<const char*, void (*)(v1::LlamaSpec*)>> cases = {
      {"model.llama.layers", [](auto* m) { m->set_layers(0); }},
      {"model.llama.width",
       [](auto* m) {
         m->set_width(65600);
         m->set_head_dim(8);
       }},
      {"model.llama.heads",
       [](auto* m) {
         m->set_heads(1028);
         m->set_head_dim(8);
         m->set_kv_heads(1);
       }},
      {"model.llama.kv_heads", [](auto* m) { m->set_kv_heads(3); }},
      {"model.llama.kv_heads", [](auto* m) { m->set_kv_heads(0); }},
      {"model.llama.qk_norm", [](auto* m) { m->set_qk_norm(true), m->set_qkv_bias(true); }},
      {"model.llama.wide_qk_norm",
       [](auto* m) { m->set_wide_qk_norm(true), m->set_qk_norm(true); }},
      {"model.llama.wide_qk_norm",
       [](auto* m) { m->set_wide_qk_norm(true), m->set_qkv_bias(true); }},
      {"model.llama.pre_norms", [](auto* m) { m->set_pre_norms(false); }},
      {"model.llama.window.positions", [](auto* m) { m->mutable_window(); }},
      {"model.llama.window.positions", [](auto* m) { m->mutable_window()->set_positions(-1); }},
      {"model.llama.window.full_every", [](auto* m) { WindowOf(m)->set_full_every(1); }},
      {"model.llama.window.rope_theta", [](auto* m) { WindowOf(m)->set_rope_theta(0); }},
      {"model.llama.rope_scaling.type",
       [](auto* m) {
         m->mutable_rope_scaling()->set_type(v1::RopeScalingSpec::TYPE_LINEAR);
         m->mutable_rope_scaling()->set_low_freq_factor(1);
       }},
      {"model.llama.head_dim", [](auto* m) { m->set_head_dim(12); }},
      {"model.llama.head_dim", [](auto* m) { m->set_head_dim(264); }},
      {"model.llama.head_dim", [](auto* m) { m->set_heads(5); }},
      {"model.llama.hidden", [](auto* m) { m->set_hidden(0); }},
      {"model.llama.context", [](auto* m) { m->set_context(1 << 21); }},
      {"model.llama.vocabulary", [](auto* m) { m->set_vocabulary(1); }},
      {"model.llama.rope_theta", [](auto* m) { m->set_rope_theta(0.5); }},
      {"model.llama.rope_theta", [](auto* m) { m->set_rope_theta(kNan); }},
      {"model.llama.norm_epsilon", [](auto* m) { m->set_norm_epsilon(0); }},
      {"model.llama.rope_scaling.factor",
       [](auto* m) { m->mutable_rope_scaling()->set_factor(0.5); }},
      {"model.llama.rope_scaling.low_freq_factor",
       [](auto* m) { m->mutable_rope_scaling()->set_low_freq_factor(0); }},
      {"model.llama.rope_scaling.high_freq_factor",
       [](auto* m) { m->mutable_rope_scaling()->set_high_freq_factor(1); }},
      {"model.llama.rope_scaling.original_context",
       [](auto* m) { m->mutable_rope_scaling()->set_original_context(0); }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(WithLlama(change));
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, field);
  }
}

v1::LossScaleSpec* Fp16(JobSpec* s) {
  s->mutable_train()->set_precision(v1::PRECISION_FP16);
  return s->mutable_train()->mutable_loss_scale();
}

TEST(CheckTest, Fp8HasNoLossScale) {
  JobSpec spec =
      Normalized([](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP8); });
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  spec.mutable_train()->mutable_loss_scale()->set_initial(1);
  EXPECT_THAT(std::string(ValidateJobSpec(spec).message()), testing::HasSubstr("train.loss_scale"));
}

// One broken rule each, with the field that the violation names.
const Case kBrokenRules[] = {
    {"name", [](auto* s) { s->clear_name(); }},
    {"name", [](auto* s) { s->set_name("a b"); }},
    {"name", [](auto* s) { s->set_name(std::string(64, 'a')); }},
    {"model", [](auto* s) { s->clear_model(); }},
    {"model.gpt2.layers", [](auto* s) { s->mutable_model()->mutable_gpt2()->set_layers(0); }},
    {"model.gpt2.width", [](auto* s) { s->mutable_model()->mutable_gpt2()->set_width(-1); }},
    {"model.gpt2.heads", [](auto* s) { s->mutable_model()->mutable_gpt2()->set_heads(3); }},
    {"model.gpt2.heads", [](auto* s) { s->mutable_model()->mutable_gpt2()->set_heads(0); }},
    {"model.gpt2.vocabulary",
     [](auto* s) { s->mutable_model()->mutable_gpt2()->set_vocabulary(1); }},
    {"model.gpt2.dropout", [](auto* s) { s->mutable_model()->mutable_gpt2()->set_dropout(1); }},
    {"model.gpt2.dropout", [](auto* s) { s->mutable_model()->mutable_gpt2()->set_dropout(kNan); }},
    {"data.train", [](auto* s) { s->mutable_data()->clear_train(); }},
    {"data.train", [](auto* s) { s->mutable_data()->set_train("relative.npy"); }},
    {"data.train", [](auto* s) { s->mutable_data()->set_train("/data/text.txt"); }},
    {"data.train", [](auto* s) { s->mutable_data()->set_train("/a\n.npy"); }},
    {"data.train", [](auto* s) { s->mutable_data()->set_train("/" + std::string(5000, 'a')); }},
    {"data.validation", [](auto* s) { s->mutable_data()->set_validation("v.npy"); }},
    {"data.mixture", [](auto* s) { s->mutable_data()->add_mixture()->set_path("/a.npy"); }},
    {"data.mixture[0].path",
     [](auto* s) {
       s->mutable_data()->clear_train();
       s->mutable_data()->add_mixture();
     }},
    {"data.mixture[1].path",
     [](auto* s) {
       s->mutable_data()->clear_train();
       s->mutable_data()->add_mixture()->set_path("/a.npy");
       s->mutable_data()->add_mixture()->set_path("/b.txt");
     }},
    {"data.mixture[0].weight",
     [](auto* s) {
       s->mutable_data()->clear_train();
       auto* source = s->mutable_data()->add_mixture();
       source->set_path("/a.npy");
       source->set_weight(0);
     }},
    {"data.mixture[1].weight",
     [](auto* s) {
       s->mutable_data()->clear_train();
       s->mutable_data()->add_mixture()->set_path("/a.npy");
       auto* source = s->mutable_data()->add_mixture();
       source->set_path("/b.bin");
       source->set_weight(1e-7);
     }},
    {"data.sequence_length", [](auto* s) { s->mutable_data()->set_sequence_length(33); }},
    {"data.sequence_length", [](auto* s) { s->mutable_data()->set_sequence_length(0); }},
    {"train.steps", [](auto* s) { s->mutable_train()->set_steps(0); }},
    {"train.max_skipped_steps", [](auto* s) { s->mutable_train()->set_max_skipped_steps(-1); }},
    {"train.precision", [](auto* s) { s->mutable_train()->set_precision(v1::Precision(99)); }},
    {"train.recompute", [](auto* s) { s->mutable_train()->set_recompute(v1::Recompute(99)); }},
    {"train.zero.stage", [](auto* s) { s->mutable_train()->mutable_zero()->set_stage(4); }},
    {"train.zero.group",
     [](auto* s) {
       s->mutable_resources()->set_ranks(4);
       s->mutable_train()->mutable_zero()->set_group(3);
     }},
    {"resources.min_ranks", [](auto* s) { s->mutable_resources()->set_min_ranks(4096); }},
    {"resources.max_ranks", [](auto* s) { s->mutable_resources()->set_max_ranks(0); }},
    {"resources.max_ranks", [](auto* s) { s->mutable_resources()->set_max_ranks(4095); }},
    {"checkpoint.redundancy", [](auto* s) { s->mutable_checkpoint()->set_redundancy(2); }},
    {"checkpoint.redundancy",
     [](auto* s) {
       s->mutable_checkpoint()->set_redundancy(1);
       s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NVME);
     }},
    {"train.zero.prefetch", [](auto* s) { s->mutable_train()->mutable_zero()->set_prefetch(-1); }},
    {"train.optimizer.lr", [](auto* s) { s->mutable_train()->mutable_optimizer()->set_lr(0); }},
    {"train.optimizer.orthogonalization",
     [](auto* s) {
       s->mutable_train()->mutable_optimizer()->set_orthogonalization(v1::ORTHOGONALIZATION_FP32);
     }},
    {"train.offload.optimizer",
     [](auto* s) {
       s->mutable_train()->mutable_offload()->set_optimizer(static_cast<v1::OffloadTarget>(4));
     }},
    {"train.offload.optimizer",
     [](auto* s) {
       s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
       s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
     }},
    {"train.offload.optimizer",
     [](auto* s) {
       s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NVME);
       s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
     }},
    {"train.offload.path",
     [](auto* s) {
       s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NVME);
       s->mutable_train()->mutable_offload()->set_path("nvme/milepost");
     }},
    {"train.offload.path",
     [](auto* s) {
       s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
       s->mutable_train()->mutable_offload()->set_path("/nvme/milepost");
     }},
    {"train.grad_reduce",
     [](auto* s) { s->mutable_train()->set_grad_reduce(static_cast<v1::GradReduce>(7)); }},
    {"train.optimizer.state_dtype",
     [](auto* s) {
       s->mutable_train()->mutable_optimizer()->set_state_dtype(static_cast<v1::StateDType>(7));
     }},
    {"train.optimizer.master",
     [](auto* s) {
       s->mutable_train()->mutable_optimizer()->set_master(static_cast<v1::MasterDType>(7));
     }},
    {"train.optimizer.master",
     [](auto* s) {
       s->mutable_train()->set_precision(v1::PRECISION_FP32);
       s->mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
     }},
    {"train.optimizer.master",
     [](auto* s) {
       s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
       s->mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
     }},
    {"train.optimizer.master",
     [](auto* s) {
       s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
       s->mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
     }},
    {"train.grad_dtype",
     [](auto* s) { s->mutable_train()->set_grad_dtype(static_cast<v1::GradDType>(7)); }},
    {"train.grad_dtype",
     [](auto* s) {
       s->mutable_train()->set_precision(v1::PRECISION_FP16);
       s->mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
     }},
    {"train.grad_dtype",
     [](auto* s) {
       s->mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
       s->mutable_train()->mutable_batch()->clear_global();
       s->mutable_train()->mutable_batch()->set_accumulation(2);
     }},
    {"train.memory",
     [](auto* s) { s->mutable_train()->set_memory(static_cast<v1::MemoryUse>(7)); }},
    {"train.optimizer.beta1",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_beta1(1); }},
    {"train.optimizer.beta2",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_beta2(-0.1); }},
    {"train.optimizer.epsilon",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_epsilon(0); }},
    {"train.optimizer.weight_decay",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_weight_decay(-1); }},
    {"train.optimizer.momentum",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_momentum(0.9); }},
    {"train.optimizer.nesterov",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_nesterov(true); }},
    {"train.optimizer.adamw_lr",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->set_adamw_lr(1e-3); }},
    {"train.optimizer.groups[0].match",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->add_groups(); }},
    {"train.optimizer.groups[0].match",
     [](auto* s) { s->mutable_train()->mutable_optimizer()->add_groups()->set_match("a b"); }},
    {"train.optimizer.groups[0].lr_scale",
     [](auto* s) {
       auto* group = s->mutable_train()->mutable_optimizer()->add_groups();
       group->set_match("*");
       group->set_lr_scale(0);
     }},
    {"train.optimizer.groups[0].weight_decay",
     [](auto* s) {
       auto* group = s->mutable_train()->mutable_optimizer()->add_groups();
       group->set_match("*");
       group->set_weight_decay(11);
     }},
    {"train.optimizer.groups[0].freeze",
     [](auto* s) {
       auto* group = s->mutable_train()->mutable_optimizer()->add_groups();
       group->set_match("*");
       group->set_freeze(true);
       group->set_weight_decay(0);
     }},
    {"train.optimizer.beta2",
     [](auto* s) {
       s->mutable_train()->mutable_optimizer()->Clear();
       s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_SGD);
       s->mutable_train()->mutable_optimizer()->set_beta2(0.9);
     }},
    {"train.optimizer.epsilon",
     [](auto* s) {
       s->mutable_train()->mutable_optimizer()->Clear();
       s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_LION);
       s->mutable_train()->mutable_optimizer()->set_epsilon(1e-8);
     }},
    {"train.loss_scale", [](auto* s) { s->mutable_train()->mutable_loss_scale(); }},
    {"train.loss_scale.initial", [](auto* s) { Fp16(s)->set_initial(0); }},
    {"train.loss_scale.initial",
     [](auto* s) { Fp16(s)->set_initial(std::numeric_limits<double>::quiet_NaN()); }},
    {"train.loss_scale.growth", [](auto* s) { Fp16(s)->set_growth(0.5); }},
    {"train.loss_scale.backoff", [](auto* s) { Fp16(s)->set_backoff(1); }},
    {"train.loss_scale.backoff", [](auto* s) { Fp16(s)->set_backoff(0); }},
    {"train.loss_scale.growth_interval", [](auto* s) { Fp16(s)->set_growth_interval(0); }},
    {"train.loss_scale.floor", [](auto* s) { Fp16(s)->set_floor(65537); }},
    {"train.schedule.warmup_steps",
     [](auto* s) { s->mutable_train()->mutable_schedule()->set_warmup_steps(11); }},
    {"train.schedule.final_lr_ratio",
     [](auto* s) { s->mutable_train()->mutable_schedule()->set_final_lr_ratio(1.5); }},
    {"train.schedule.final_lr_ratio",
     [](auto* s) {
       auto* schedule = s->mutable_train()->mutable_schedule();
       schedule->set_type(v1::ScheduleSpec::TYPE_CONSTANT);
       schedule->set_final_lr_ratio(0.5);
     }},
    {"train.schedule.decay_steps",
     [](auto* s) { s->mutable_train()->mutable_schedule()->set_decay_steps(3); }},
    {"train.schedule.decay_steps",
     [](auto* s) {
       auto* schedule = s->mutable_train()->mutable_schedule();
       schedule->set_type(v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY);
       schedule->set_warmup_steps(4);
       schedule->set_decay_steps(7);
     }},
    {"train.init_from", [](auto* s) { s->mutable_train()->set_init_from("models/a"); }},
    {"train.init_from",
     [](auto* s) {
       s->mutable_train()->set_init_from("/models/a");
       s->mutable_checkpoint()->set_resume_from("checkpoints/1");
     }},
    {"train.clip_norm", [](auto* s) { s->mutable_train()->set_clip_norm(-1); }},
    {"train.validation.every",
     [](auto* s) {
       s->mutable_data()->clear_validation();
       s->mutable_train()->mutable_validation()->set_every(5);
     }},
    {"train.validation.samples",
     [](auto* s) { s->mutable_train()->mutable_validation()->set_samples(0); }},
    {"resources.ranks", [](auto* s) { s->mutable_resources()->set_ranks(0); }},
    {"resources.threads_per_rank",
     [](auto* s) { s->mutable_resources()->set_threads_per_rank(-1); }},
    {"resources.pool", [](auto* s) { s->mutable_resources()->set_pool("a 100"); }},
    {"resources.pool", [](auto* s) { s->mutable_resources()->set_pool(std::string(64, 'a')); }},
    {"checkpoint.every", [](auto* s) { s->mutable_checkpoint()->set_every(-1); }},
    {"checkpoint.keep_last", [](auto* s) { s->mutable_checkpoint()->set_keep_last(0); }},
    {"checkpoint.keep_every", [](auto* s) { s->mutable_checkpoint()->set_keep_every(5); }},
    {"checkpoint.resume_from", [](auto* s) { s->mutable_checkpoint()->set_resume_from("12"); }},
    {"restart.max_failures", [](auto* s) { s->mutable_restart()->set_max_failures(-1); }},
    {"restart.backoff_seconds", [](auto* s) { s->mutable_restart()->set_backoff_seconds(61); }},
    {"report.tensorboard", [](auto* s) { s->mutable_report()->set_tensorboard("runs/a"); }},
};

TEST(CheckTest, FindsEachBrokenRule) {
  for (const Case& c : kBrokenRules) {
    const auto violations = CheckJobSpec(Normalized(c.change));
    ASSERT_EQ(violations.size(), 1u) << c.field;
    EXPECT_EQ(violations[0].field, c.field) << violations[0].message;
  }
}

TEST(CheckTest, ExtremesNeverOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(CheckJobSpec(WithBatch(kMax, kMax, {})).empty());
  EXPECT_FALSE(CheckJobSpec(WithBatch({}, kMax, kMax)).empty());
  EXPECT_FALSE(CheckJobSpec(WithBatch(kMax, kMax, kMax, 4096)).empty());
  EXPECT_FALSE(CheckJobSpec(WithBatch({}, 65536, 65536)).empty());
}

TEST(ValidateTest, CarriesTheViolationsAsDetails) {
  const absl::Status status = ValidateJobSpec(WithBatch(25, 4, {}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "train.batch.global: must be a multiple of micro * ranks = 8, got 25; nearest: 24 or 32");
  v1::BadRequest bad_request;
  ASSERT_TRUE(bad_request.ParseFromString(
      std::string(*status.GetPayload("type.googleapis.com/google.rpc.BadRequest"))));
  EXPECT_EQ(bad_request.field_violations(0).field(), "train.batch.global");
  EXPECT_TRUE(ValidateJobSpec(Normalized()).ok());
}

TEST(DigestTest, EachCoversWhatItSays) {
  const JobSpec base = Normalized();
  const JobSpec longer = Normalized([](JobSpec* s) { s->mutable_train()->set_steps(20); });
  const JobSpec ranks = Normalized([](JobSpec* s) { s->mutable_resources()->set_ranks(1); });
  const JobSpec seed = Normalized([](JobSpec* s) { s->mutable_train()->set_seed(1); });
  EXPECT_EQ(SpecDigest(base).size(), 32u);
  EXPECT_EQ(SpecDigest(base), SpecDigest(Normalized()));
  EXPECT_NE(SpecDigest(base), SpecDigest(longer));
  EXPECT_EQ(LineageDigest(base), LineageDigest(longer));
  EXPECT_NE(LineageDigest(base), LineageDigest(ranks));
  const JobSpec pool = Normalized([](JobSpec* s) { s->mutable_resources()->set_pool("a-1_b.c"); });
  EXPECT_EQ(LineageDigest(base), LineageDigest(pool));
  EXPECT_NE(SpecDigest(base), SpecDigest(pool));
  EXPECT_EQ(StateDigest(base), StateDigest(longer));
  EXPECT_EQ(StateDigest(base), StateDigest(ranks));
  EXPECT_NE(StateDigest(base), StateDigest(seed));
  JobSpec states = base;
  states.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
  EXPECT_NE(StateDigest(base), StateDigest(states));
  states.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_FP32);
  EXPECT_EQ(StateDigest(base), StateDigest(states));
}

// Specs that were normalised before there was the field do not have it.
TEST(DigestTest, ADefaultThatCameLaterIsNoChange) {
  JobSpec older = Normalized([](JobSpec* s) {
    s->mutable_model()->mutable_llama()->set_heads(4);
    s->mutable_model()->mutable_llama()->set_qk_norm(false);
  });
  const JobSpec spec = older;
  older.mutable_model()->mutable_llama()->clear_qk_norm();
  older.mutable_model()->mutable_llama()->clear_activation();
  older.mutable_train()->clear_max_skipped_steps();
  older.mutable_train()->clear_determinism();
  EXPECT_EQ(StateDigest(older), StateDigest(spec));
  EXPECT_EQ(LineageDigest(older), LineageDigest(spec));
  JobSpec patient = spec;
  patient.mutable_train()->set_max_skipped_steps(100);
  EXPECT_NE(LineageDigest(patient), LineageDigest(spec));
  JobSpec gelu = spec;
  gelu.mutable_model()->mutable_llama()->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  EXPECT_NE(StateDigest(gelu), StateDigest(spec));
  older.mutable_model()->mutable_llama()->set_qk_norm(true);
  EXPECT_NE(StateDigest(older), StateDigest(spec));
  EXPECT_NE(LineageDigest(older), LineageDigest(spec));
}

// A trainer of the version before knows no such field, and counts what it does not know.
TEST(DigestTest, ATrainerThatDoesNotKnowActivationsHasTheSame) {
  JobSpec spec = WithLlama(
      [](v1::LlamaSpec* llama) { llama->set_activation(v1::LlamaSpec::ACTIVATION_SWIGLU); });
  EXPECT_EQ(spec.model().llama().activation(), v1::LlamaSpec::ACTIVATION_UNSPECIFIED);
  EXPECT_EQ(StateDigest(spec), StateDigest(WithLlama()));
  EXPECT_EQ(SpecDigest(spec), SpecDigest(WithLlama()));
  spec = WithLlama([](v1::LlamaSpec* llama) {
    llama->set_norm_offset(false), llama->set_post_norms(false);
    llama->set_scale_embedding(false), llama->set_wide_qk_norm(false);
    llama->set_pre_norms(true);
  });
  EXPECT_EQ(SpecDigest(spec), SpecDigest(WithLlama()));
  EXPECT_NE(StateDigest(WithLlama([](auto* m) { WindowOf(m); })), StateDigest(WithLlama()));
}

// Checkpoints hold this one: another would refuse them all.
TEST(DigestTest, ThatOfAStateStaysFromVersionToVersion) {
  const JobSpec llama = Normalized([](JobSpec* s) {
    s->mutable_model()->mutable_llama()->set_layers(2);
    s->mutable_model()->mutable_llama()->set_width(64);
    s->mutable_model()->mutable_llama()->set_heads(4);
    s->mutable_model()->mutable_llama()->set_hidden(128);
    s->mutable_model()->mutable_llama()->set_context(64);
    s->mutable_model()->mutable_llama()->set_vocabulary(256);
  });
  EXPECT_EQ(StateDigest(llama), "8b4507c487527174cf4d989b542fbaa5");
  EXPECT_EQ(StateDigest(Normalized()), "1095f7b6e4a59fafeb65aa85e29d2556");
}

TEST(DigestTest, MuonsDefaultCameLater) {
  const auto muon = [](v1::Precision precision) {
    return Normalized([precision](JobSpec* s) {
      s->mutable_train()->set_precision(precision);
      s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
    });
  };
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const JobSpec spec = muon(precision);
    JobSpec older = spec;
    older.mutable_train()->mutable_optimizer()->clear_orthogonalization();
    EXPECT_EQ(LineageDigest(older), LineageDigest(spec));
    EXPECT_EQ(StateDigest(older), StateDigest(spec));
    const bool rounds = spec.train().optimizer().orthogonalization() == v1::ORTHOGONALIZATION_BF16;
    EXPECT_EQ(rounds, precision == v1::PRECISION_BF16);
    JobSpec other = spec;
    other.mutable_train()->mutable_optimizer()->set_orthogonalization(
        rounds ? v1::ORTHOGONALIZATION_FP32 : v1::ORTHOGONALIZATION_BF16);
    EXPECT_NE(LineageDigest(other), LineageDigest(spec));
    EXPECT_EQ(StateDigest(other), StateDigest(spec)) << "checkpoints go on with the other rule";
  }
}

TEST(ValidateTest, OfVeryManyViolationsTheFirstAreTold) {
  v1::JobSpec spec;
  for (int i = 0; i < 60; ++i) spec.mutable_scheduling()->add_depends_on("not a name");
  NormalizeJobSpec(&spec);
  ASSERT_GT(CheckJobSpec(spec).size(), 40U);
  const std::string message(ValidateJobSpec(spec).message());
  EXPECT_LT(message.size(), 1500U);
  EXPECT_THAT(message, testing::ContainsRegex("\nand [0-9]+ more$"));
}

}  // namespace
}  // namespace milepost
