#include "engine/data/training/training_data.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/fingerprint.h"
#include "engine/data/images/image_source.h"
#include "engine/data/mixture.h"
#include "engine/data/text_source.h"
#include "engine/models/task_heads.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::data {
namespace {

Masking MaskingOf(const v1::MaskingSpec& spec) {
  return {.probability = spec.probability(),
          .mask_token = static_cast<int32_t>(spec.mask_token()),
          .special_tokens = {spec.special_tokens().begin(), spec.special_tokens().end()}};
}

TextOptions TextOptionsOf(const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  const auto id = [](bool given, int64_t token) {
    return given ? std::optional(static_cast<int32_t>(token)) : std::nullopt;
  };
  TextOptions text{
      .vocabulary = SizesOf(spec.model()).vocabulary,
      .seed = spec.train().seed(),
      .document_separator = id(data.has_document_separator(), data.document_separator()),
      .padding = id(data.has_padding(), data.padding()),
      .segment_separator = id(data.has_segment_separator(), data.segment_separator()),
      .segments = spec.model().bert().segments(),
      .pairs = spec.train().has_dpo()};
  if (data.has_masking()) text.masking = MaskingOf(data.masking());
  return text;
}

ImageSourceOptions ImageOptions(const v1::JobSpec& spec) {
  const v1::ImageDataSpec& images = spec.data().images();
  const ModelSizes model = SizesOf(spec.model());
  ImageSourceOptions options{.limits = {.max_pixels = images.max_pixels()},
                             .classes = model.vocabulary,
                             .seed = spec.train().seed(),
                             .skip_damaged = images.on_corrupt() == v1::ON_CORRUPT_SKIP};
  options.view = {.image_size = model.image_size,
                  .min_scale = images.min_scale(),
                  .max_scale = images.max_scale(),
                  .min_ratio = images.min_ratio(),
                  .max_ratio = images.max_ratio(),
                  .random_crop = images.crop() == v1::IMAGE_CROP_RANDOM,
                  .flip = images.flip(),
                  .resize = images.resize(),
                  .patch_size = images.patch().size(),
                  .patch_stride = images.patch().stride()};
  return options;
}

// Of every head in the model's order; `path`: of one of its entries in `labels`.
template <typename Labels, typename Path>
std::vector<LabelOptions> LabelsOf(const v1::JobSpec& spec, const Labels& labels, Path path) {
  std::vector<LabelOptions> options;
  for (const v1::TaskHeadSpec& head : spec.model().heads()) {
    for (const auto& source : labels) {
      if (source.head() != head.name()) continue;
      options.push_back(
          {models::LabelsInput(head.name()), path(source), head.classes(), head.name()});
    }
  }
  return options;
}

std::vector<LabelOptions> TrainingLabels(const v1::JobSpec& spec) {
  return LabelsOf(spec, spec.data().labels(),
                  [](const v1::LabelSource& labels) { return labels.train(); });
}

// What a model is validated on.
struct Held {
  std::string field;
  std::string path;
  std::string loss_mask;
  std::vector<LabelOptions> labels;
};

Held ValidationOf(const v1::JobSpec& spec) {
  return {.field = "data.validation",
          .path = spec.data().validation(),
          .loss_mask = spec.data().loss_mask().validation(),
          .labels = LabelsOf(spec, spec.data().labels(),
                             [](const v1::LabelSource& labels) { return labels.validation(); })};
}

Held SetOf(const v1::JobSpec& spec, const v1::ValidationSetSpec& set) {
  return {.field = "this set",
          .path = set.path(),
          .loss_mask = set.loss_mask(),
          .labels = LabelsOf(spec, set.labels(),
                             [](const v1::SetLabels& labels) { return labels.path(); })};
}

// open(held) of data.validation and of each further set.
template <typename Open>
absl::Status OpenHeld(const v1::JobSpec& spec, const Open& open, TrainingData& data) {
  if (spec.data().validation().empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(data.validation, open(ValidationOf(spec)));
  for (const v1::ValidationSetSpec& set : spec.data().validation_sets()) {
    absl::StatusOr<std::shared_ptr<const SampleSource>> source = open(SetOf(spec, set));
    if (!source.ok()) {
      return Annotate(source.status(), absl::StrCat("data.validation_sets, ", set.name()));
    }
    data.sets.push_back({set.name(), *std::move(source)});
  }
  return absl::OkStatus();
}

// That the first samples have pairs: without any, nothing would be learned.
absl::Status CheckPairs(const SampleSource& source, absl::string_view field) {
  constexpr int64_t kLooked = 8;
  const int64_t looked = std::min(source.samples(), kLooked);
  for (size_t i = 0; i < source.fields().size(); ++i) {
    if (source.fields()[i].name != "pairs") continue;
    const absl::StatusOr<int64_t> pairs = source.CountTargets(i, 0, looked);
    if (!pairs.ok()) return Annotate(pairs.status(), field);
    if (*pairs > 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": the first ", looked, " samples have no pair of documents with ",
                   "targets: `milepost dataset tokenize` makes such of `chosen` and `rejected`"));
}

absl::StatusOr<TrainingData> OpenImageData(const v1::JobSpec& spec) {
  ImageSourceOptions options = ImageOptions(spec);
  TrainingData data;
  data.threads = spec.data().images().decode_threads();
  options.labels = TrainingLabels(spec);
  MP_ASSIGN_OR_RETURN(auto train, ImageSource::Open(spec.data().train(), options));
  options.class_names = train->set().class_names();
  data.train = std::move(train);
  options.train = false;
  const auto open = [&](const Held& held) -> absl::StatusOr<std::shared_ptr<const SampleSource>> {
    options.labels = held.labels;
    return ImageSource::Open(held.path, options);
  };
  MP_RETURN_IF_ERROR(OpenHeld(spec, open, data));
  return data;
}

}  // namespace

absl::StatusOr<v1::DataFingerprint> FingerprintOf(const TrainingData& data) {
  v1::DataFingerprint fingerprint;
  Fingerprint train, validation;
  MP_RETURN_IF_ERROR(data.train->AddTo(&train));
  fingerprint.set_train_samples(data.train->samples());
  fingerprint.set_train(train.value());
  if (data.validation == nullptr) return fingerprint;
  MP_RETURN_IF_ERROR(data.validation->AddTo(&validation));
  fingerprint.set_validation_samples(data.validation->samples());
  fingerprint.set_validation(validation.value());
  return fingerprint;
}

absl::Status CheckSameData(const v1::DataFingerprint& before, const v1::DataFingerprint& now,
                           absl::string_view whose) {
  const auto check = [&](const char* what, int64_t samples_before, int64_t samples_now,
                         bool same) -> absl::Status {
    if (same && samples_before == samples_now) return absl::OkStatus();
    const std::string difference =
        samples_before == samples_now
            ? absl::StrCat("as many, ", samples_now, " samples, but not the same")
            : absl::StrCat(samples_now, " samples, not ", samples_before);
    return absl::FailedPreconditionError(
        absl::StrCat("the ", what, " data are not those of ", whose, ": ", difference));
  };
  MP_RETURN_IF_ERROR(check("training", before.train_samples(), now.train_samples(),
                           before.train() == now.train()));
  return check("validation", before.validation_samples(), now.validation_samples(),
               before.validation() == now.validation());
}

absl::StatusOr<TrainingData> OpenTrainingData(const v1::JobSpec& spec) {
  if (SizesOf(spec.model()).images) return OpenImageData(spec);
  DatasetOptions options{.sequence_length = spec.data().sequence_length(),
                         .vocabulary = SizesOf(spec.model()).vocabulary,
                         .next_token = !spec.data().has_masking(),
                         .labels = TrainingLabels(spec)};
  std::vector<WeightedPath> paths;
  for (const v1::TokenSource& source : spec.data().mixture()) {
    paths.push_back({source.path(), source.weight(), source.loss_mask()});
  }
  if (paths.empty()) paths.push_back({spec.data().train(), 1, spec.data().loss_mask().train()});
  TrainingData data;
  TextOptions text = TextOptionsOf(spec);
  MP_ASSIGN_OR_RETURN(data.train, TokenMixture::Open(paths, options, spec.train().seed()));
  if (text.Any()) data.train = std::make_shared<TextSource>(data.train, text);
  if (text.pairs) MP_RETURN_IF_ERROR(CheckPairs(*data.train, "data.train"));
  text.pass = MaskingPass::kValidation;
  const auto open = [&](const Held& held) -> absl::StatusOr<std::shared_ptr<const SampleSource>> {
    options.labels = held.labels;
    options.loss_mask = held.loss_mask;
    MP_ASSIGN_OR_RETURN(auto tokens, TokenDataset::Open(held.path, options));
    std::shared_ptr<const SampleSource> source = std::make_shared<TokensInOrder>(std::move(tokens));
    if (text.Any()) source = std::make_shared<TextSource>(source, text);
    if (text.pairs) MP_RETURN_IF_ERROR(CheckPairs(*source, held.field));
    return source;
  };
  MP_RETURN_IF_ERROR(OpenHeld(spec, open, data));
  return data;
}

}  // namespace milepost::data
