// What a job trains on and is validated with, by its spec: the source of samples for its model.
//
//   MP_ASSIGN_OR_RETURN(TrainingData data, OpenTrainingData(spec));
#ifndef MILEPOST_ENGINE_RUNTIME_TRAINING_DATA_H_
#define MILEPOST_ENGINE_RUNTIME_TRAINING_DATA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/data/sample_source.h"

namespace milepost::v1 {
class JobSpec;
}

namespace milepost::runtime {

struct TrainingData {
  std::shared_ptr<const data::SampleSource> train;       // endless, in the order of train.seed
  std::shared_ptr<const data::SampleSource> validation;  // null: none
  int threads = 1;                                       // that fetching training samples is worth
};

// `spec` is normalised. INVALID_ARGUMENT or NOT_FOUND with the path.
absl::StatusOr<TrainingData> OpenTrainingData(const v1::JobSpec& spec);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TRAINING_DATA_H_
