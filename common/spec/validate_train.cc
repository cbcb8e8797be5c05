#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/auto_fields.h"
#include "common/spec/checker.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/sizes.h"
#include "common/spec/storage_fields.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

constexpr int64_t kMaxMicro = 1 << 16;
constexpr int64_t kMaxAccumulation = 1 << 16;
constexpr int64_t kMaxGlobal = 1 << 24;
constexpr int kMostPowerSgdRank = 1024;

bool CheckBatchRanges(const v1::BatchSpec& batch, Checker* check) {
  bool ok = true;
  if (batch.has_global()) ok &= check->Int("train.batch.global", batch.global(), 1, kMaxGlobal);
  if (batch.has_micro() && batch.micro() != kAuto) {
    ok &= check->Int("train.batch.micro", batch.micro(), 1, kMaxMicro);
  }
  if (batch.has_accumulation()) {
    ok &= check->Int("train.batch.accumulation", batch.accumulation(), 1, kMaxAccumulation);
  }
  return ok;
}

// As messages call the number of ranks with samples of their own.
std::string SampleRanks(const v1::ResourceSpec& resources) {
  if (ModelRanks(resources) == 1) return "resources.ranks";
  const std::string of = ModelRanksName(resources);
  const bool several = absl::StrContains(of, '*');
  return absl::StrCat("resources.ranks / ", several ? "(" : "", of, several ? ")" : "");
}

void CheckAutoMicro(const v1::BatchSpec& batch, const v1::ResourceSpec& resources, Checker* check) {
  const int64_t ranks = DataRanks(resources);
  if (!batch.has_global() || batch.has_accumulation()) {
    check->Add("train.batch.micro",
               "auto chooses micro and accumulation together: give train.batch.global, and no "
               "accumulation");
  } else if (batch.global() % ranks != 0) {
    check->Add(
        "train.batch.global",
        absl::StrCat("must be a multiple of ", SampleRanks(resources), " (", ranks, "), got ",
                     batch.global(), "; nearest: ", (batch.global() / ranks + 1) * ranks));
  }
}

// How many ranks have samples of their own is still to be chosen.
void CheckOpenBatch(const v1::BatchSpec& batch, Checker* check) {
  if (batch.has_global() && batch.has_micro() && !batch.has_accumulation()) return;
  check->Add("train.batch",
             "with resources.mesh.tensor: auto give global and micro, which may be auto too; "
             "accumulation follows");
}

void CheckBatch(const v1::BatchSpec& batch, const v1::ResourceSpec& resources, Checker* check) {
  const int64_t ranks = DataRanks(resources);
  const std::string by = DataRanksName(resources);
  const int given = batch.has_global() + batch.has_micro() + batch.has_accumulation();
  if (!CheckBatchRanges(batch, check) || ranks < 1 || ranks > kMaxRanks) return;
  if (resources.mesh().tensor() == kAuto) return CheckOpenBatch(batch, check);
  if (batch.has_micro() && batch.micro() == kAuto) return CheckAutoMicro(batch, resources, check);
  if (given < 2) {
    check->Add("train.batch", "give two of global, micro and accumulation; the third is derived");
    return;
  }
  if (given == 3) {
    const int64_t product = batch.micro() * batch.accumulation() * ranks;
    if (product == batch.global()) return;
    check->Add("train.batch.global",
               absl::StrCat("micro * accumulation * ", by, " is ", batch.micro(), " * ",
                            batch.accumulation(), " * ", ranks, " = ", product, ", not ",
                            batch.global(), ": remove one of the three"));
    return;
  }
  // Normalising left the third absent: `global` was given and does not divide.
  const absl::string_view factor = batch.has_micro() ? "micro" : "accumulation";
  const int64_t divisor = (batch.has_micro() ? batch.micro() : batch.accumulation()) * ranks;
  const int64_t below = batch.global() / divisor * divisor;
  std::string nearest = below > 0 ? absl::StrCat(below, " or ") : "";
  check->Add("train.batch.global",
             absl::StrCat("must be a multiple of ", factor, " * ", by, " = ", divisor, ", got ",
                          batch.global(), "; nearest: ", nearest, below + divisor));
}

void CheckSideBySide(const v1::JobSpec& spec, Checker* check) {
  constexpr char kField[] = "train.batch.side_by_side";
  const v1::TrainSpec& train = spec.train();
  if (!train.batch().has_side_by_side()) return;
  const int together = train.batch().side_by_side();
  if (!check->Int(kField, together, 1, kMaxSideBySide)) return;
  const std::pair<bool, const char*> refused[] = {
      {PipelineStages(spec.resources()) > 1,
       "is not for resources.mesh.pipeline, whose stages have an order of their own; remove it"},
      {spec.model().has_resnet(),
       "is not for model.resnet, whose running statistics follow one "
       "micro-batch after the other; remove it"},
      {train.precision() == v1::PRECISION_FP8,
       "is not for train.precision fp8, whose scales follow one micro-batch after the other; take "
       "bf16"},
      {train.offload().activations(), "is not for train.offload.activations; remove it"}};
  for (const auto& [is, what] : refused) {
    if (is) return check->Add(kField, what);
  }
  const int64_t all = train.batch().accumulation();
  if (!train.batch().has_accumulation() || all < 1 || all % together == 0) return;
  int nearest = together - 1;
  while (all % nearest != 0) --nearest;
  check->Add(kField, absl::StrCat("must divide train.batch.accumulation (", all, "), got ",
                                  together, "; nearest: ", nearest));
}

void CheckShardGroup(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  const int32_t group = spec.train().zero().group();
  if (!check->Int("train.zero.group", group, 0, kMaxRanks) || group == 0) return;
  if (resources.mesh().tensor() == kAuto) return;  // checked with each number of tensor ranks
  const int ranks = StateRanks(resources) / Islands(spec);
  if (ranks < 1 || ranks % group == 0) return;
  v1::ResourceSpec whole = resources;  // context ranks share out the state too
  whole.mutable_mesh()->clear_context();
  check->Add("train.zero.group", absl::StrCat("must divide ", SampleRanks(whole),
                                              Islands(spec) > 1 ? " / train.sync.islands (" : " (",
                                              ranks, "), got ", group, "; 0: all ranks"));
}

constexpr int kMaxParameterGroups = 64;
constexpr size_t kMaxPattern = 256;

void CheckPattern(const std::string& field, const std::string& pattern, Checker* check) {
  if (pattern.empty()) check->Add(field, "required: a pattern of parameter names, such as h.0.*");
  bool printable = true;
  for (const char c : pattern) printable = printable && absl::ascii_isgraph(c);
  if (printable && pattern.size() <= kMaxPattern) return;
  check->Add(field, absl::StrCat("expected at most ", kMaxPattern,
                                 " printable characters without blanks, got ", pattern.size()));
}

// That every pattern matches something is found where the model is built: by the planner.
void CheckParameterGroups(const v1::OptimizerSpec& optimizer, Checker* check) {
  if (optimizer.groups_size() > kMaxParameterGroups) {
    check->Add("train.optimizer.groups",
               absl::StrCat(optimizer.groups_size(), " groups; at most ", kMaxParameterGroups));
    return;
  }
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const v1::ParameterGroupSpec& group = optimizer.groups(i);
    const std::string field = absl::StrCat("train.optimizer.groups[", i, "]");
    CheckPattern(field + ".match", group.match(), check);
    check->Real(field + ".lr_scale", group.lr_scale(), 0, 1000, "(]");
    if (group.has_weight_decay()) {
      check->Real(field + ".weight_decay", group.weight_decay(), 0, 10);
    }
    if (group.freeze() && (group.lr_scale() != 1 || group.has_weight_decay())) {
      check->Add(field + ".freeze",
                 "frozen parameters have no learning rate or weight decay: remove lr_scale and "
                 "weight_decay, or freeze");
    }
  }
}

void CheckOptimizer(const v1::OptimizerSpec& optimizer, Checker* check) {
  CheckParameterGroups(optimizer, check);
  const OptimizerFields* fields = FieldsOf(optimizer.type());
  if (fields == nullptr) {
    check->Add("train.optimizer.type",
               absl::StrCat("expected ", OptimizersWith(&OptimizerFields::every, "or")));
    return;
  }
  const std::string type =
      EnumYamlName(*v1::OptimizerSpec::Type_descriptor()->FindValueByNumber(optimizer.type()));
  if (!v1::StateDType_IsValid(optimizer.state_dtype()) || optimizer.state_dtype() == 0) {
    check->Add("train.optimizer.state_dtype", "expected fp32 or bf16");
  }
  if (!fields->bf16_states && optimizer.state_dtype() == v1::STATE_DTYPE_BF16) {
    check->Add("train.optimizer.state_dtype",
               absl::StrCat("bf16 is for ", OptimizersWith(&OptimizerFields::bf16_states, "and"),
                            ", not for ", type));
  }
  check->Real("train.optimizer.lr", optimizer.lr(), 0, 100, "(]");
  check->Real("train.optimizer.weight_decay", optimizer.weight_decay(), 0, 10);
  // What a type does not have must not be given: it would do nothing.
  const auto field = [&](absl::string_view name, bool has, bool given, double value, double high,
                         absl::string_view brackets) {
    const std::string path = absl::StrCat("train.optimizer.", name);
    if (has) {
      check->Real(path, value, 0, high, brackets);
    } else if (given) {
      check->Add(path, absl::StrCat(type, " has none: remove it"));
    }
  };
  const auto of = [](const std::optional<double>& value) { return value.has_value(); };
  const bool muon = fields->orthogonalizes;
  field("beta1", of(fields->beta1), optimizer.has_beta1(), optimizer.beta1(), 1, "[)");
  field("beta2", of(fields->beta2), optimizer.has_beta2(), optimizer.beta2(), 1, "[)");
  field("beta3", of(fields->beta3), optimizer.has_beta3(), optimizer.beta3(), 1, "[)");
  field("epsilon", of(fields->epsilon), optimizer.has_epsilon(), optimizer.epsilon(), 1, "(]");
  field("momentum", of(fields->momentum), optimizer.has_momentum(), optimizer.momentum(), 1, "[)");
  field("adamw_lr", muon, optimizer.has_adamw_lr(), optimizer.adamw_lr(), 100, "(]");
  if (!muon && optimizer.has_nesterov()) {
    check->Add("train.optimizer.nesterov", absl::StrCat(type, " has none: remove it"));
  }
  if (!muon && optimizer.orthogonalization() != 0) {
    check->Add("train.optimizer.orthogonalization", absl::StrCat(type, " has none: remove it"));
  } else if (!v1::Orthogonalization_IsValid(optimizer.orthogonalization())) {
    check->Add("train.optimizer.orthogonalization", "expected bf16 or fp32");
  }
}

void CheckDecaySteps(const v1::TrainSpec& train, Checker* check) {
  const v1::ScheduleSpec& schedule = train.schedule();
  if (schedule.type() != v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY) {
    if (schedule.decay_steps() != 0) {
      check->Add("train.schedule.decay_steps",
                 "only warmup_stable_decay has it: remove this field, or choose that type");
    }
    return;
  }
  const int64_t most = train.steps() - schedule.warmup_steps();
  if (schedule.decay_steps() < 0 || (most >= 0 && schedule.decay_steps() > most)) {
    check->Add("train.schedule.decay_steps",
               absl::StrCat("expected 0 to train.steps - warmup_steps (", most, "), got ",
                            schedule.decay_steps()));
  }
}

void CheckSchedule(const v1::TrainSpec& train, Checker* check) {
  const v1::ScheduleSpec& schedule = train.schedule();
  if (!v1::ScheduleSpec::Type_IsValid(schedule.type()) || schedule.type() == 0) {
    check->Add("train.schedule.type",
               "expected constant, linear, cosine, inverse_sqrt or warmup_stable_decay");
  }
  const bool too_long = train.steps() != 0 && schedule.warmup_steps() > train.steps();
  if (schedule.warmup_steps() < 0 || too_long) {
    check->Add("train.schedule.warmup_steps",
               absl::StrCat("expected 0 to train.steps (", train.steps(), "), got ",
                            schedule.warmup_steps()));
  }
  CheckDecaySteps(train, check);
  const bool ratio = check->Real("train.schedule.final_lr_ratio", schedule.final_lr_ratio(), 0, 1);
  if (ratio && schedule.type() == v1::ScheduleSpec::TYPE_CONSTANT &&
      schedule.final_lr_ratio() != 1) {
    check->Add(
        "train.schedule.final_lr_ratio",
        "a constant schedule ends at its peak: remove this field, or choose linear or cosine");
  }
}

void CheckLossScale(const v1::TrainSpec& train, Checker* check) {
  if (!train.has_loss_scale()) return;
  const v1::LossScaleSpec& scale = train.loss_scale();
  if (train.precision() != v1::PRECISION_FP16) {
    check->Add("train.loss_scale", "only precision fp16 scales the loss: remove it");
    return;
  }
  constexpr double kMost = 1e30;  // far from the end of fp32, in which the scale is kept
  const bool initial = check->Real("train.loss_scale.initial", scale.initial(), 1e-6, kMost);
  check->Real("train.loss_scale.growth", scale.growth(), 1, 1e6);
  check->Real("train.loss_scale.backoff", scale.backoff(), 0, 1, "()");
  check->Int("train.loss_scale.growth_interval", scale.growth_interval(), 1, 1'000'000'000);
  if (check->Real("train.loss_scale.floor", scale.floor(), 1e-6, kMost) && initial &&
      scale.floor() > scale.initial()) {
    check->Add("train.loss_scale.floor",
               absl::StrCat("is above train.loss_scale.initial (", scale.initial(), ")"));
  }
}

void CheckRecomputeBudget(const v1::TrainSpec& train, Checker* check) {
  const bool budget = train.recompute() == v1::RECOMPUTE_BUDGET;
  if (budget && train.recompute_budget() < 1) {
    check->Add("train.recompute_budget",
               "required with train.recompute: budget: the bytes of activations that a rank may "
               "keep, such as 2GiB");
  } else if (!budget && train.has_recompute_budget()) {
    check->Add("train.recompute_budget",
               "only train.recompute: budget has it: remove this field, or set that");
  }
}

void CheckOffload(const v1::TrainSpec& train, Checker* check) {
  const v1::OffloadSpec& offload = train.offload();
  const OptimizerFields* fields = FieldsOf(train.optimizer().type());
  if (!v1::OffloadTarget_IsValid(offload.optimizer()) || offload.optimizer() == 0) {
    check->Add("train.offload.optimizer", "expected none, host or nvme");
  } else if (offload.optimizer() != v1::OFFLOAD_TARGET_NONE && fields != nullptr &&
             !fields->by_element) {
    check->Add(
        "train.offload.optimizer",
        absl::StrCat("host and nvme are for ", OptimizersWith(&OptimizerFields::by_element, "and"),
                     ": choose one of them as train.optimizer.type, or none here"));
  }
  if (offload.path().empty()) return;
  CheckPath("train.offload.path", offload.path(), check);
  if (offload.optimizer() != v1::OFFLOAD_TARGET_NVME) {
    check->Add("train.offload.path",
               "only train.offload.optimizer: nvme has it: remove this field, or set that");
  }
}

void CheckEma(const v1::TrainSpec& train, Checker* check) {
  if (!train.has_ema()) return;
  check->Real("train.ema.decay", train.ema().decay(), 0, 1, "[)");
  if (train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE) {
    check->Add("train.ema",
               "its average lies beside an optimizer that is not offloaded: remove it, or take "
               "train.offload.optimizer: none");
  }
}

void CheckPowerSgd(const v1::JobSpec& spec, Checker* check) {
  const v1::TrainSpec& train = spec.train();
  if (!train.has_powersgd()) return;
  check->Int("train.powersgd.rank", train.powersgd().rank(), 1, kMostPowerSgdRank);
  check->Int("train.powersgd.start_step", train.powersgd().start_step(), 0, kMostSteps);
  const std::pair<bool, const char*> refused[] = {
      {train.zero().stage() != 0,
       "works on whole gradients: take train.zero.stage: 0, or remove it"},
      {spec.resources().has_mesh(),
       "is not for resources.mesh: remove the mesh, or train.powersgd"},
      {train.precision() == v1::PRECISION_FP16,
       "keeps what it leaves out, which a loss scale would change: take train.precision bf16"},
      {train.grad_reduce() == v1::GRAD_REDUCE_BF16,
       "sends its factors in fp32: take train.grad_reduce: fp32"},
      {train.grad_dtype() == v1::GRAD_DTYPE_BF16, "is for train.grad_dtype: fp32"},
      {train.memory() == v1::MEMORY_USE_LOW, "is not for train.memory: low; take exact"},
      {train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE,
       "is not for an optimizer that is offloaded: take train.offload.optimizer: none"},
      {spec.checkpoint().redundancy() > 0,
       "keeps on each rank what no other has: take checkpoint.redundancy: 0"}};
  for (const auto& [is, what] : refused) {
    if (is) return check->Add("train.powersgd", what);
  }
}

}  // namespace

bool KeepsInitialWeights(const v1::JobSpec& spec) {
  return spec.model().has_lora() || spec.train().has_dpo();
}

void CheckDpo(const v1::JobSpec& spec, Checker* check) {
  const v1::DpoSpec& dpo = spec.train().dpo();
  check->Real("train.dpo.beta", dpo.beta(), 0, 1000, "(]");
  check->Real("train.dpo.label_smoothing", dpo.label_smoothing(), 0, 0.5, "[)");
  if (!spec.model().has_gpt2() && !spec.model().has_llama()) {
    check->Add("train.dpo", "is for model.gpt2 and model.llama");
  } else if (!spec.model().has_lora() && spec.train().init_from().empty()) {
    check->Add("train.dpo",
               "compares the model with what it was: give the folder that it begins with, as "
               "train.init_from or as model.hugging_face");
  }
  if (spec.model().lora().also_train_size() > 0) {
    check->Add(
        "train.dpo",
        "compares with what is not trained: model.lora.also_train would move it; remove that");
  }
  if (spec.model().heads_size() > 0) {
    check->Add("train.dpo", "has no place for model.heads beside it");
  }
  if (spec.model().llama().has_experts()) {
    check->Add("train.dpo", "is not for model.llama.experts: train on chats or completions");
  }
  if (!spec.data().has_document_separator()) {
    check->Add("train.dpo", "its pairs are documents: give data.document_separator");
  }
  if (spec.train().precision() == v1::PRECISION_FP8) {
    check->Add("train.dpo", "is not for train.precision fp8: choose bf16");
  }
}

void CheckBaseQuantization(const v1::JobSpec& spec, Checker* check) {
  const v1::BaseQuantization quantization = spec.model().lora().quantize_base();
  if (!v1::BaseQuantization_IsValid(quantization) || quantization == 0) {
    check->Add("model.lora.quantize_base", "expected none or nf4");
  } else if (quantization != v1::BASE_QUANTIZATION_NONE &&
             spec.train().precision() == v1::PRECISION_FP8) {
    check->Add("model.lora.quantize_base", "is not for train.precision fp8: choose bf16");
  }
}

namespace {

void CheckInitialWeights(const v1::JobSpec& spec, Checker* check) {
  const v1::TrainSpec& train = spec.train();
  if (!train.init_from().empty()) CheckPath("train.init_from", train.init_from(), check);
  if (spec.model().has_lora() && train.init_from().empty()) {
    check->Add("model.lora",
               "adapts weights that are there already: give their folder, as train.init_from or "
               "as model.hugging_face");
  }
  // Of adapters the one brings what they adapt, the other the adapters; with preferences the one
  // brings what the other is compared with.
  if (!KeepsInitialWeights(spec) && !train.init_from().empty() &&
      !spec.checkpoint().resume_from().empty()) {
    check->Add(
        "train.init_from",
        "given beside checkpoint.resume_from, which brings all parameters: keep one of them");
  }
}

}  // namespace

void CheckTrain(const v1::JobSpec& spec, Checker* check) {
  const v1::TrainSpec& train = spec.train();
  if (spec.model().has_lora()) CheckBaseQuantization(spec, check);
  if (train.has_dpo()) CheckDpo(spec, check);
  check->Required("train.steps", train.steps(), 1, kMostSteps);
  if (!v1::Precision_IsValid(train.precision()) || train.precision() == 0) {
    check->Add("train.precision", "expected fp32, bf16, fp16 or fp8");
  } else if (spec.model().has_resnet() &&
             (train.precision() == v1::PRECISION_FP16 || train.precision() == v1::PRECISION_FP8)) {
    check->Add("train.precision", "fp16 and fp8 are not for model.resnet: choose bf16 or fp32");
  } else if (spec.model().llama().has_experts() && train.precision() == v1::PRECISION_FP8) {
    check->Add("train.precision", "fp8 is not for model.llama.experts: choose bf16");
  }
  if (!v1::Recompute_IsValid(train.recompute()) || train.recompute() == 0) {
    check->Add("train.recompute", "expected none, selective, full, auto or budget");
  }
  CheckRecomputeBudget(train, check);
  CheckBatch(train.batch(), spec.resources(), check);
  CheckSideBySide(spec, check);
  if (train.zero().stage() != kAuto) {
    check->Int("train.zero.stage", train.zero().stage(), 0, 3);
  }
  check->Int("train.zero.prefetch", train.zero().prefetch(), 0, 16);
  CheckShardGroup(spec, check);
  if (!v1::GradReduce_IsValid(train.grad_reduce()) || train.grad_reduce() == 0) {
    check->Add("train.grad_reduce", "expected fp32 or bf16");
  }
  if (!v1::Determinism_IsValid(train.determinism()) || train.determinism() == 0) {
    check->Add("train.determinism", "expected exact or fast");
  }
  CheckLossScale(train, check);
  CheckOffload(train, check);
  CheckEma(train, check);
  CheckPowerSgd(spec, check);
  CheckSync(spec, check);
  CheckOptimizer(train.optimizer(), check);
  for (const StorageProblem& problem : StorageProblems(train)) {
    check->Add(problem.field, problem.what);
  }
  CheckSchedule(train, check);
  CheckInitialWeights(spec, check);
  check->Real("train.clip_norm", train.clip_norm(), 0, 1e6);
  if (!v1::OnNonfinite_IsValid(train.on_nonfinite()) || train.on_nonfinite() == 0) {
    check->Add("train.on_nonfinite", "expected skip or fail");
  }
  check->Int("train.max_skipped_steps", train.max_skipped_steps(), 0, 1'000'000'000);
  check->Int("train.validation.every", train.validation().every(), 0, 1'000'000'000);
  check->Int("train.validation.samples", train.validation().samples(), 1, 1 << 24);
  if (check->Int("train.validation.patience", train.validation().patience(), 0, 1'000'000'000) &&
      train.validation().patience() > 0 && train.validation().every() == 0) {
    check->Add("train.validation.patience",
               "there is no validation on the way: give train.validation.every, or remove this "
               "field");
  }
  if (train.validation().every() > 0 && spec.data().validation().empty()) {
    check->Add("train.validation.every",
               "there is nothing to validate on: give data.validation, or remove this field");
  }
}

}  // namespace milepost
