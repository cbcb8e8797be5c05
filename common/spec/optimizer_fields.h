// Which fields of train.optimizer each optimizer has, with their defaults: a row for each.
//
//   if (const OptimizerFields* fields = FieldsOf(optimizer.type())) ... *fields->beta1 ...
//   OptimizersWith(&OptimizerFields::by_element, "or") == "adamw, adamw_8bit, sgd, lion or adan"
//
// Pure.
#ifndef MILEPOST_COMMON_SPEC_OPTIMIZER_FIELDS_H_
#define MILEPOST_COMMON_SPEC_OPTIMIZER_FIELDS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

struct OptimizerFields {
  v1::OptimizerSpec::Type type = v1::OptimizerSpec::TYPE_UNSPECIFIED;
  double lr = 6e-4;
  double weight_decay = 0.1;
  // Absent: it has no such field, which then must not be given.
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
  std::optional<double> beta3 = std::nullopt;
  std::optional<double> epsilon = std::nullopt;
  std::optional<double> momentum = std::nullopt;
  // nesterov, orthogonalization, and adamw_lr, which is lr where it is not given.
  bool orthogonalizes = false;
  // It changes each element by that element's gradient and states alone: they may be offloaded, and
  // masters and gradients may be kept in fewer bits.
  bool by_element = true;
  bool bf16_states = false;  // state_dtype: bf16
  bool every = true;         // of every optimizer
};

// Null for a number that is no optimizer.
const OptimizerFields* FieldsOf(v1::OptimizerSpec::Type type);

// Names, as the spec writes them, of those for which `what` holds.
std::string OptimizersWith(bool OptimizerFields::*what, absl::string_view conjunction);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_OPTIMIZER_FIELDS_H_
