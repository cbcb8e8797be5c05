// The rules for storing state in bf16: `train.grad_dtype`, `train.optimizer.master` and
// `train.memory`.
//
//   for (const StorageProblem& problem : StorageProblems(spec.train())) ...
//
// Pure.
#ifndef MILEPOST_COMMON_SPEC_STORAGE_FIELDS_H_
#define MILEPOST_COMMON_SPEC_STORAGE_FIELDS_H_

#include <string>
#include <vector>

#include "milepost/v1/job_spec.pb.h"

namespace milepost {

struct StorageProblem {
  std::string field;  // "train.grad_dtype"
  std::string what;   // "expected fp32 or bf16"
};

// The problems of a normalised spec, at most one for each field. The rules depend on the optimizer,
// the precision and other fields.
std::vector<StorageProblem> StorageProblems(const v1::TrainSpec& train);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_STORAGE_FIELDS_H_
