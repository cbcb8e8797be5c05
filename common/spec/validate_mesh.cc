// resources.mesh: what tensor ranks, the stages of a pipeline, context and expert ranks can divide.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/auto_fields.h"
#include "common/spec/checker.h"
#include "common/spec/model_sizes.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/sizes.h"

namespace milepost {
namespace {

constexpr char kTensor[] = "resources.mesh.tensor";
constexpr char kPipeline[] = "resources.mesh.pipeline";
constexpr char kSchedule[] = "resources.mesh.schedule";
constexpr char kChunks[] = "resources.mesh.chunks";
constexpr char kContext[] = "resources.mesh.context";
constexpr char kExpert[] = "resources.mesh.expert";

struct Divided {
  std::string field;
  int64_t size = 0;
  bool shared = false;  // by neighbours, where there are more tensor ranks

  bool By(int tensor) const { return size % tensor == 0 || (shared && tensor % size == 0); }
};

// What `auto` and a search look at, where ranks share heads of keys: as many as hosts mostly have.
constexpr int kMostSharingTensors = 8;

// Of the model, what is cut into equal parts.
std::vector<Divided> DividedSizes(const v1::ModelSpec& model) {
  const auto field = [&](const char* name) {
    return absl::StrCat("model.", SizesOf(model).family, ".", name);
  };
  std::vector<Divided> sizes = {{field("width"), SizesOf(model).width}};
  if (model.has_gpt2()) sizes.push_back({field("heads"), model.gpt2().heads()});
  if (model.has_llama()) {
    sizes.push_back({field("heads"), model.llama().heads()});
    sizes.push_back({field("kv_heads"), model.llama().kv_heads(), /*shared=*/true});
    if (model.llama().has_experts()) {
      sizes.push_back({field("experts.hidden"), model.llama().experts().hidden()});
    } else {
      sizes.push_back({field("hidden"), model.llama().hidden()});
    }
  }
  if (model.has_vit()) {
    sizes.push_back({field("heads"), model.vit().heads()});
    sizes.push_back({field("hidden"), model.vit().hidden()});
  }
  if (model.has_bert()) {
    sizes.push_back({field("heads"), model.bert().heads()});
    sizes.push_back({field("hidden"), model.bert().hidden()});
  }
  return sizes;
}

// The next smaller number that divides the ranks and all sizes; 1 does.
int NearestTensor(int tensor, int ranks, const std::vector<Divided>& sizes) {
  for (--tensor; tensor > 1; --tensor) {
    const auto divides = [&](const Divided& divided) { return divided.By(tensor); };
    if (ranks % tensor == 0 && absl::c_all_of(sizes, divides)) break;
  }
  return std::max(tensor, 1);
}

void CheckDivided(const v1::JobSpec& spec, Checker* check) {
  const int tensor = TensorRanks(spec.resources()), ranks = spec.resources().ranks();
  const std::vector<Divided> sizes = DividedSizes(spec.model());
  const auto wrong = [&](const Divided& what) {
    check->Add(kTensor, absl::StrCat("must divide ", what.field, " (", what.size, ")",
                                     what.shared ? " or be a multiple of it" : "", ", got ", tensor,
                                     "; nearest: ", NearestTensor(tensor, ranks, sizes)));
  };
  if (ranks % tensor != 0) return wrong({"resources.ranks", ranks});
  for (const Divided& divided : sizes) {
    if (!divided.By(tensor)) return wrong(divided);
  }
}

// The next smaller number of stages that the ranks and the layers allow; 1 does.
int NearestPipeline(const v1::JobSpec& spec, int pipeline) {
  const int rest = spec.resources().ranks() / TensorRanks(spec.resources());
  for (--pipeline; pipeline > 1; --pipeline) {
    if (rest % pipeline == 0 && pipeline <= SizesOf(spec.model()).layers) break;
  }
  return std::max(pipeline, 1);
}

// Of an interleaved pipeline, whose stages the layers allow: each run of blocks has a layer.
bool CheckChunks(const v1::JobSpec& spec, Checker* check) {
  const int64_t layers = SizesOf(spec.model()).layers;
  const int stages = PipelineStages(spec.resources()), chunks = PipelineChunks(spec.resources());
  if (int64_t{stages} * chunks <= layers) return true;
  const int64_t nearest = layers / stages;
  check->Add(kChunks,
             absl::StrCat("times pipeline (", stages, ") is more than the model's layers (", layers,
                          "), got ", chunks, "; nearest: ",
                          nearest > 1 ? absl::StrCat(nearest)
                                      : "resources.mesh.schedule: 1f1b or zero_bubble"));
  return false;
}

bool CheckPipeline(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  const int pipeline = PipelineStages(resources);
  const v1::TrainSpec& train = spec.train();
  const auto wrong = [&](std::string what) {
    check->Add(kPipeline, std::move(what));
    return false;
  };
  if (absl::c_any_of(train.optimizer().groups(),
                     [](const v1::ParameterGroupSpec& group) { return group.freeze(); })) {
    return wrong("is not for train.optimizer.groups that are frozen; take 1");
  }
  if (train.recompute() == v1::RECOMPUTE_BUDGET) {
    return wrong("is not for train.recompute: budget; take none, selective or full");
  }
  if (resources.ranks() % TensorRanks(resources) != 0) return true;  // said of tensor
  const int model = TensorRanks(resources) * pipeline;
  if (resources.ranks() % model != 0) {
    return wrong(absl::StrCat(TensorRanks(resources) > 1 ? "times tensor " : "",
                              "must divide resources.ranks (", resources.ranks(), "), got ", model,
                              "; nearest: ", NearestPipeline(spec, pipeline)));
  }
  if (pipeline > SizesOf(spec.model()).layers) {
    return wrong(absl::StrCat("has more stages (", pipeline, ") than the model has layers (",
                              SizesOf(spec.model()).layers,
                              "); nearest: ", NearestPipeline(spec, pipeline)));
  }
  if (!CheckChunks(spec, check)) return false;
  const int64_t micro_batches = train.batch().accumulation();
  if (!MicroIsAuto(spec) && micro_batches > kMaxMicroBatches) {
    return wrong(absl::StrCat("takes at most ", kMaxMicroBatches,
                              " micro-batches in a step (train.batch.accumulation), got ",
                              micro_batches, ": take a larger train.batch.micro"));
  }
  return true;
}

// The next smaller number that divides the ranks of a tensor rank and stage, and a sequence.
int NearestContext(const v1::JobSpec& spec, int context) {
  const v1::ResourceSpec& resources = spec.resources();
  const int rest = resources.ranks() / (TensorRanks(resources) * PipelineStages(resources));
  for (--context; context > 1; --context) {
    if (rest % context == 0 && spec.data().sequence_length() % context == 0) break;
  }
  return std::max(context, 1);
}

void CheckContext(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  const int context = resources.mesh().context();
  const int others = TensorRanks(resources) * PipelineStages(resources);
  const std::pair<bool, const char*> refused[] = {
      {spec.has_script(), "is not for jobs with a script: it divides its sequences itself"},
      {spec.model().has_resnet() || spec.model().has_vit(),
       "is not for images: it is for model.gpt2, model.llama and model.bert; take 1"},
      {spec.train().has_dpo(), "is not for train.dpo; take 1"}};
  for (const auto& [is, what] : refused) {
    if (is) return check->Add(kContext, what);
  }
  if (resources.ranks() % others != 0) return;  // said of these
  const auto wrong = [&](const Divided& divided) {
    check->Add(kContext, absl::StrCat("must divide ", divided.field, " (", divided.size, "), got ",
                                      context, "; nearest: ", NearestContext(spec, context)));
  };
  if (resources.ranks() / others % context != 0) {
    v1::ResourceSpec rest = resources;
    rest.mutable_mesh()->clear_context();
    return wrong({DataRanksName(rest), resources.ranks() / others});
  }
  const int64_t length = spec.data().sequence_length();
  if (length % context != 0) wrong({"data.sequence_length", length});
}

// The next smaller number that divides the ranks and the experts; 1 does.
int NearestExpert(int expert, int ranks, int64_t experts) {
  for (--expert; expert > 1; --expert) {
    if (ranks % expert == 0 && experts % expert == 0) break;
  }
  return std::max(expert, 1);
}

void CheckExpertRanks(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  const OptimizerFields* optimizer = FieldsOf(spec.train().optimizer().type());
  const std::pair<bool, const char*> refused[] = {
      {!spec.model().llama().has_experts(), "is for model.llama.experts; take 1"},
      {spec.train().zero().group() > 0, "is not for train.zero.group; take 1"},
      {optimizer != nullptr && !optimizer->by_element,
       "is not for a train.optimizer.type that steps on whole tensors: take adamw"},
      {spec.checkpoint().redundancy() > 0, "is not for checkpoint.redundancy; take 1"}};
  for (const auto& [is, what] : refused) {
    if (is) return check->Add(kExpert, what);
  }
  const int others = TensorRanks(resources) * PipelineStages(resources);
  if (resources.ranks() % others != 0) return;  // said of these
  const int expert = resources.mesh().expert();
  const int ranks = resources.ranks() / others / Islands(spec);
  const int64_t experts = spec.model().llama().experts().count();
  const auto wrong = [&](const std::string& what, int64_t size) {
    check->Add(kExpert, absl::StrCat("must divide ", what, " (", size, "), got ", expert,
                                     "; nearest: ", NearestExpert(expert, ranks, experts)));
  };
  v1::ResourceSpec rest = resources;
  rest.mutable_mesh()->clear_context();
  const std::string ranks_name =
      absl::StrCat(DataRanksName(rest), Islands(spec) > 1 ? " / train.sync.islands" : "");
  if (ranks % expert != 0) return wrong(ranks_name, ranks);
  if (experts % expert != 0) return wrong("model.llama.experts.count", experts);
}

bool HasFamily(const v1::ModelSpec& model) {
  return model.has_gpt2() || model.has_llama() || model.has_bert() || model.has_vit();
}

bool StepsOnElements(const v1::OptimizerSpec& optimizer) {
  const OptimizerFields* fields = FieldsOf(optimizer.type());
  return fields != nullptr && fields->by_element &&
         optimizer.type() != v1::OptimizerSpec::TYPE_ADAMW_8BIT;
}

}  // namespace

void CheckMesh(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  if (!resources.has_mesh()) return;
  const v1::MeshSpec& mesh = resources.mesh();
  if (!mesh.has_pipeline() && mesh.schedule() != v1::PIPELINE_SCHEDULE_UNSPECIFIED) {
    return check->Add(kSchedule, "is for resources.mesh.pipeline above 1");
  }
  const bool interleaved = mesh.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED;
  if (mesh.has_chunks() && !interleaved) {
    return check->Add(kChunks, "is for resources.mesh.schedule: interleaved");
  }
  if (interleaved && !check->Int(kChunks, mesh.chunks(), 2, kMaxChunks)) return;
  const bool automatic = TensorIsAuto(spec);
  if (!automatic && !check->Int(kTensor, mesh.tensor(), 1, kMaxRanks)) return;
  if (automatic && (mesh.has_pipeline() || mesh.has_context() || mesh.has_expert())) {
    const char* other = mesh.has_pipeline()  ? "pipeline"
                        : mesh.has_context() ? "context"
                                             : "expert";
    return check->Add(kTensor, absl::StrCat("auto chooses no ", other, ": give a number"));
  }
  if (mesh.has_pipeline() && !check->Int(kPipeline, mesh.pipeline(), 1, kMaxStages)) return;
  if (mesh.has_context()) {
    if (!check->Int(kContext, mesh.context(), 1, kMaxContext)) return;
    CheckContext(spec, check);
  }
  if (mesh.has_expert()) {
    if (!check->Int(kExpert, mesh.expert(), 1, kMaxExpertRanks)) return;
    CheckExpertRanks(spec, check);
  }
  // To the rest of the job context and expert ranks are data ranks.
  const bool as_data = mesh.has_context() || mesh.has_expert();
  if (as_data && !mesh.has_pipeline() && mesh.tensor() == 1) return;
  const char* field = mesh.has_pipeline() ? kPipeline : kTensor;
  const v1::TrainSpec& train = spec.train();
  const v1::LlamaSpec& llama = spec.model().llama();
  const v1::Precision precision = train.precision();
  const std::pair<bool, const char*> refused[] = {
      {spec.has_script(), "is not for jobs with a script: it divides its model itself"},
      {!HasFamily(spec.model()), "is for model.gpt2, model.llama, model.bert and model.vit"},
      {llama.wide_qk_norm(), "is not for model.llama.wide_qk_norm; take 1"},
      {spec.model().has_lora(), "is not for model.lora; take 1"},
      {train.has_dpo(), "is not for train.dpo; take 1"},
      {precision != v1::PRECISION_FP32 && precision != v1::PRECISION_BF16,
       "is for train.precision fp32 and bf16"},
      {!StepsOnElements(train.optimizer()),
       "is for train.optimizer.type adamw, lion, sgd and adan"},
      {train.optimizer().state_dtype() == v1::STATE_DTYPE_BF16 ||
           train.optimizer().master() == v1::MASTER_DTYPE_NONE,
       "is not for a train.optimizer that rounds at random: take state_dtype and master fp32"},
      {train.memory() == v1::MEMORY_USE_LOW, "is not for train.memory: low; take exact"},
      {train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE || train.offload().activations(),
       "is not for train.offload; take 1"},
      {spec.checkpoint().redundancy() > 0, "is not for checkpoint.redundancy; take 1"}};
  for (const auto& [is, what] : refused) {
    if (is) return check->Add(field, what);
  }
  if (mesh.has_pipeline() && !CheckPipeline(spec, check)) return;
  if (!automatic && mesh.tensor() > 1) CheckDivided(spec, check);
}

std::vector<int> PossibleTensors(const v1::JobSpec& normalized) {
  v1::JobSpec with = normalized;
  if (with.has_script() || !HasFamily(with.model())) return {1};
  const std::vector<Divided> sizes = DividedSizes(with.model());
  std::vector<int> tensors = {1};
  for (int tensor = 2; tensor <= with.resources().ranks(); ++tensor) {
    with.mutable_resources()->mutable_mesh()->set_tensor(tensor);
    const auto divides = [&](const Divided& divided) {
      return divided.By(tensor) && (divided.size % tensor == 0 || tensor <= kMostSharingTensors);
    };
    if (with.resources().ranks() % tensor != 0 || !absl::c_all_of(sizes, divides)) continue;
    Checker check;
    CheckMesh(with, &check);
    if (check.Take().empty()) tensors.push_back(tensor);
  }
  return tensors;
}

bool ContextDividesHeads(const v1::JobSpec& normalized, int context) {
  for (const Divided& divided : DividedSizes(normalized.model())) {
    if (!absl::EndsWith(divided.field, "heads")) continue;
    const int64_t heads = std::max<int64_t>(1, divided.size / TensorRanks(normalized.resources()));
    const bool shared = absl::EndsWith(divided.field, ".kv_heads") && context % heads == 0;
    if (heads % context != 0 && !shared) return false;
  }
  return true;
}

namespace {

// Divisors of the data ranks, up to `most`, with which the mesh is valid; and 1.
std::vector<int> ValidNumbers(v1::JobSpec with, int64_t most,
                              void (v1::MeshSpec::*set)(int32_t number)) {
  std::vector<int> numbers = {1};
  v1::ResourceSpec alone = with.resources();
  alone.mutable_mesh()->clear_context();
  const int ranks = DataRanks(alone);
  for (int number = 2; number <= std::min<int64_t>(ranks, most); ++number) {
    if (ranks % number != 0) continue;
    (with.mutable_resources()->mutable_mesh()->*set)(number);
    Checker check;
    CheckMesh(with, &check);
    if (check.Take().empty()) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::vector<int> PossibleContexts(const v1::JobSpec& normalized) {
  v1::JobSpec with = normalized;
  v1::MeshSpec* mesh = with.mutable_resources()->mutable_mesh();
  mesh->set_tensor(TensorRanks(normalized.resources()));
  mesh->clear_context();
  return ValidNumbers(std::move(with), kMaxContext, &v1::MeshSpec::set_context);
}

std::vector<int> PossibleExperts(const v1::JobSpec& normalized) {
  v1::JobSpec with = normalized;
  with.mutable_resources()->mutable_mesh()->set_tensor(TensorRanks(normalized.resources()));
  const int64_t most = with.model().llama().experts().count();
  return ValidNumbers(std::move(with), most, &v1::MeshSpec::set_expert);
}

}  // namespace milepost
