// What a job trains on and is validated with, by its spec: the source of samples for its model.
//
//   MP_ASSIGN_OR_RETURN(TrainingData data, OpenTrainingData(spec));
#ifndef MILEPOST_ENGINE_DATA_TRAINING_TRAINING_DATA_H_
#define MILEPOST_ENGINE_DATA_TRAINING_TRAINING_DATA_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/sample_source.h"

namespace milepost::v1 {
class DataFingerprint;
class JobSpec;
}  // namespace milepost::v1

namespace milepost::data {

// One of data.validation_sets.
struct ValidationSet {
  std::string name;
  std::shared_ptr<const SampleSource> source;
};

struct TrainingData {
  std::shared_ptr<const SampleSource> train;       // endless, in the order of train.seed
  std::shared_ptr<const SampleSource> validation;  // null: none
  std::vector<ValidationSet> sets;                 // with the same fields as `validation`
  int threads = 1;                                 // that fetching training samples is worth
};

// `spec` is normalised. INVALID_ARGUMENT or NOT_FOUND with the path.
absl::StatusOr<TrainingData> OpenTrainingData(const v1::JobSpec& spec);

// SampleSource::AddTo of training and validation data. Blocks on the disk.
absl::StatusOr<v1::DataFingerprint> FingerprintOf(const TrainingData& data);

// FAILED_PRECONDITION where `now` is of other data than `before`, that of `whose` ("step 90 of
// jobs/1"): which data, and how many samples there are and were. Pure.
absl::Status CheckSameData(const v1::DataFingerprint& before, const v1::DataFingerprint& now,
                           absl::string_view whose);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_TRAINING_TRAINING_DATA_H_
