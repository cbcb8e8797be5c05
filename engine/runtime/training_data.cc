#include "engine/runtime/training_data.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/mixture.h"
#include "engine/data/text_source.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {
namespace {

data::TextOptions TextOptionsOf(const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  const auto id = [](bool given, int64_t token) {
    return given ? std::optional(static_cast<int32_t>(token)) : std::nullopt;
  };
  data::TextOptions text{
      .vocabulary = SizesOf(spec.model()).vocabulary,
      .seed = spec.train().seed(),
      .document_separator = id(data.has_document_separator(), data.document_separator()),
      .padding = id(data.has_padding(), data.padding()),
      .segment_separator = id(data.has_segment_separator(), data.segment_separator()),
      .segments = spec.model().bert().segments()};
  if (!data.has_masking()) return text;
  const v1::MaskingSpec& masking = data.masking();
  text.masking = data::Masking{
      .probability = masking.probability(),
      .mask_token = static_cast<int32_t>(masking.mask_token()),
      .special_tokens = {masking.special_tokens().begin(), masking.special_tokens().end()}};
  return text;
}

}  // namespace

absl::StatusOr<TrainingData> OpenTrainingData(const v1::JobSpec& spec) {
  const data::DatasetOptions options{.sequence_length = spec.data().sequence_length(),
                                     .vocabulary = SizesOf(spec.model()).vocabulary,
                                     .next_token = !spec.data().has_masking()};
  std::vector<data::WeightedPath> paths;
  for (const v1::TokenSource& source : spec.data().mixture()) {
    paths.push_back({source.path(), source.weight()});
  }
  if (paths.empty()) paths.push_back({spec.data().train()});
  TrainingData data;
  data::TextOptions text = TextOptionsOf(spec);
  MP_ASSIGN_OR_RETURN(data.train, data::TokenMixture::Open(paths, options, spec.train().seed()));
  if (text.Any()) data.train = std::make_shared<data::TextSource>(data.train, text);
  if (spec.data().validation().empty()) return data;
  MP_ASSIGN_OR_RETURN(auto validation, data::TokenDataset::Open(spec.data().validation(), options));
  data.validation = std::make_shared<data::TokensInOrder>(std::move(validation));
  text.pass = data::MaskingPass::kValidation;
  if (text.Any()) data.validation = std::make_shared<data::TextSource>(data.validation, text);
  return data;
}

}  // namespace milepost::runtime
