#include "common/spec/optimizer_fields.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/to_yaml.h"

namespace milepost {
namespace {

using Spec = v1::OptimizerSpec;

constexpr OptimizerFields kOptimizers[] = {
    {.type = Spec::TYPE_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .bf16_states = true},
    {.type = Spec::TYPE_ADAMW_8BIT, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8},
    {.type = Spec::TYPE_SGD, .lr = 0.01, .weight_decay = 0, .momentum = 0.9, .bf16_states = true},
    {.type = Spec::TYPE_LION, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .bf16_states = true},
    {.type = Spec::TYPE_ADAN,
     .lr = 1e-3,
     .weight_decay = 0.02,
     .beta1 = 0.98,
     .beta2 = 0.92,
     .beta3 = 0.99,
     .epsilon = 1e-8,
     .bf16_states = true},
    {.type = Spec::TYPE_LAMB,
     .lr = 2e-3,
     .weight_decay = 0.01,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .epsilon = 1e-6,
     .by_element = false},
    {.type = Spec::TYPE_MUON,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .epsilon = 1e-8,
     .momentum = 0.95,
     .orthogonalizes = true,
     .by_element = false},
};

}  // namespace

const OptimizerFields* FieldsOf(Spec::Type type) {
  for (const OptimizerFields& fields : kOptimizers) {
    if (fields.type == type) return &fields;
  }
  return nullptr;
}

std::string OptimizersWith(bool OptimizerFields::*what, absl::string_view conjunction) {
  std::vector<std::string> names;
  for (const OptimizerFields& fields : kOptimizers) {
    if (!(fields.*what)) continue;
    names.push_back(EnumYamlName(*Spec::Type_descriptor()->FindValueByNumber(fields.type)));
  }
  if (names.size() < 2) return absl::StrJoin(names, "");
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " ", conjunction, " ", last);
}

}  // namespace milepost
