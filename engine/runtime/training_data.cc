#include "engine/runtime/training_data.h"

#include <vector>

#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/mixture.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

absl::StatusOr<TrainingData> OpenTrainingData(const v1::JobSpec& spec) {
  const data::DatasetOptions options{.sequence_length = spec.data().sequence_length(),
                                     .vocabulary = SizesOf(spec.model()).vocabulary};
  std::vector<data::WeightedPath> paths;
  for (const v1::TokenSource& source : spec.data().mixture()) {
    paths.push_back({source.path(), source.weight()});
  }
  if (paths.empty()) paths.push_back({spec.data().train()});
  TrainingData data;
  MP_ASSIGN_OR_RETURN(data.train, data::TokenMixture::Open(paths, options, spec.train().seed()));
  if (spec.data().validation().empty()) return data;
  MP_ASSIGN_OR_RETURN(auto validation, data::TokenDataset::Open(spec.data().validation(), options));
  data.validation = std::make_shared<data::TokensInOrder>(std::move(validation));
  return data;
}

}  // namespace milepost::runtime
