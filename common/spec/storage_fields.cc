#include "common/spec/storage_fields.h"

#include "absl/strings/str_cat.h"
#include "common/spec/auto_fields.h"
#include "common/spec/optimizer_fields.h"

namespace milepost {
namespace {

// Why neither may be anything but fp32; empty: it may.
std::string Obstacle(const v1::TrainSpec& train) {
  if (train.precision() != v1::PRECISION_BF16 && train.precision() != v1::PRECISION_FP8) {
    return " is for train.precision bf16 and fp8";
  }
  const OptimizerFields* fields = FieldsOf(train.optimizer().type());
  if (fields != nullptr && !fields->by_element) {
    return absl::StrCat(" is for ", OptimizersWith(&OptimizerFields::by_element, "and"));
  }
  if (train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE) {
    return " does not work with train.offload.optimizer, by which masters and gradients are in "
           "host "
           "memory: keep one of them";
  }
  return "";
}

std::string GradientProblem(const v1::TrainSpec& train) {
  if (!v1::GradDType_IsValid(train.grad_dtype()) || train.grad_dtype() == 0) {
    return "expected fp32 or bf16";
  }
  if (train.grad_dtype() != v1::GRAD_DTYPE_BF16) return "";
  if (const std::string obstacle = Obstacle(train); !obstacle.empty()) {
    return absl::StrCat("bf16", obstacle);
  }
  if (train.batch().micro() == kAuto) {
    return "bf16 needs train.batch.accumulation: 1, which micro: auto may not leave: give it";
  }
  if (train.batch().accumulation() <= 1) return "";
  return absl::StrCat("bf16 needs train.batch.accumulation: 1, got ", train.batch().accumulation(),
                      ": sums of micro-steps are kept in fp32");
}

std::string MasterProblem(const v1::TrainSpec& train) {
  const v1::MasterDType master = train.optimizer().master();
  if (!v1::MasterDType_IsValid(master) || master == 0) return "expected fp32 or none";
  const std::string obstacle = master == v1::MASTER_DTYPE_NONE ? Obstacle(train) : "";
  return obstacle.empty() ? "" : absl::StrCat("none", obstacle);
}

}  // namespace

std::vector<StorageProblem> StorageProblems(const v1::TrainSpec& train) {
  std::vector<StorageProblem> problems;
  const auto add = [&](const char* field, const std::string& what) {
    if (!what.empty()) problems.push_back({field, what});
  };
  add("train.grad_dtype", GradientProblem(train));
  add("train.optimizer.master", MasterProblem(train));
  const bool known = v1::MemoryUse_IsValid(train.memory()) && train.memory() != 0;
  add("train.memory", known ? "" : "expected exact or low");
  return problems;
}

}  // namespace milepost
