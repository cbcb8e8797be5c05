// resources.mesh: what tensor ranks can divide.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/checker.h"
#include "common/spec/model_sizes.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/sizes.h"

namespace milepost {
namespace {

constexpr char kTensor[] = "resources.mesh.tensor";

struct Divided {
  std::string field;
  int64_t size = 0;
};

// Of the model, what is cut into equal parts.
std::vector<Divided> DividedSizes(const v1::ModelSpec& model) {
  const auto field = [&](const char* name) {
    return absl::StrCat("model.", SizesOf(model).family, ".", name);
  };
  std::vector<Divided> sizes = {{field("width"), SizesOf(model).width}};
  if (model.has_gpt2()) sizes.push_back({field("heads"), model.gpt2().heads()});
  if (model.has_llama()) {
    sizes.push_back({field("heads"), model.llama().heads()});
    sizes.push_back({field("kv_heads"), model.llama().kv_heads()});
    sizes.push_back({field("hidden"), model.llama().hidden()});
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
  const auto divides = [&](int64_t size) { return size % tensor == 0; };
  for (--tensor; tensor > 1; --tensor) {
    bool all = divides(ranks);
    for (const Divided& divided : sizes) all = all && divides(divided.size);
    if (all) break;
  }
  return std::max(tensor, 1);
}

void CheckDivided(const v1::JobSpec& spec, Checker* check) {
  const int tensor = TensorRanks(spec.resources()), ranks = spec.resources().ranks();
  const std::vector<Divided> sizes = DividedSizes(spec.model());
  const auto wrong = [&](absl::string_view what, int64_t size) {
    check->Add(kTensor, absl::StrCat("must divide ", what, " (", size, "), got ", tensor,
                                     "; nearest: ", NearestTensor(tensor, ranks, sizes)));
  };
  if (ranks % tensor != 0) return wrong("resources.ranks", ranks);
  for (const Divided& divided : sizes) {
    if (divided.size % tensor != 0) return wrong(divided.field, divided.size);
  }
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
  if (!check->Int(kTensor, resources.mesh().tensor(), 1, kMaxRanks)) return;
  const v1::TrainSpec& train = spec.train();
  const v1::LlamaSpec& llama = spec.model().llama();
  const v1::Precision precision = train.precision();
  const std::pair<bool, const char*> refused[] = {
      {spec.has_script(), "is not for jobs with a script: it divides its model itself"},
      {!HasFamily(spec.model()), "is for model.gpt2, model.llama, model.bert and model.vit"},
      {llama.wide_qk_norm(), "is not for model.llama.wide_qk_norm; take 1"},
      {llama.has_experts(), "is not for model.llama.experts; take 1"},
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
    if (is) return check->Add(kTensor, what);
  }
  CheckDivided(spec, check);
}

}  // namespace milepost
