#include "engine/runtime/training_data.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_set.h"
#include "engine/data/images/image_source.h"
#include "engine/data/images/pixel_source.h"
#include "engine/data/mixture.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

namespace {

// Plain pixels are taken as they are, so they must have the model's size; what is compressed is
// cropped at random, as torchvision's reference training does it, and for validation its centre.
absl::StatusOr<std::shared_ptr<const data::SampleSource>> OpenImages(
    const std::string& path, const data::ImageSourceOptions& options) {
  if (!absl::EndsWith(path, ".npy")) {
    MP_ASSIGN_OR_RETURN(auto source, data::ImageSource::Open(path, options));
    return std::shared_ptr<const data::SampleSource>(std::move(source));
  }
  MP_ASSIGN_OR_RETURN(auto set, data::OpenImageSet(path, {.classes = options.classes}));
  MP_ASSIGN_OR_RETURN(
      auto source, data::PixelSource::Create(std::move(set), options.view.image_size, options.train,
                                             options.seed));
  return std::shared_ptr<const data::SampleSource>(std::move(source));
}

absl::StatusOr<TrainingData> OpenImageData(const v1::JobSpec& spec) {
  const v1::ResNetSpec& model = spec.model().resnet();
  data::ImageSourceOptions options{
      .view = {.image_size = model.image_size(), .resize = model.image_size() * 8 / 7},
      .classes = model.classes(),
      .seed = spec.train().seed()};
  TrainingData data;
  MP_ASSIGN_OR_RETURN(data.train, OpenImages(spec.data().train(), options));
  if (spec.data().validation().empty()) return data;
  const auto* train = dynamic_cast<const data::ImageSource*>(data.train.get());
  if (train != nullptr) options.class_names = train->set().class_names();
  options.train = false;
  MP_ASSIGN_OR_RETURN(data.validation, OpenImages(spec.data().validation(), options));
  return data;
}

}  // namespace

absl::StatusOr<TrainingData> OpenTrainingData(const v1::JobSpec& spec) {
  if (SizesOf(spec.model()).images) return OpenImageData(spec);
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
