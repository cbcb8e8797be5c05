#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/checker.h"
#include "common/spec/model_sizes.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

void CheckTokenPath(absl::string_view field, const std::string& path, bool images, Checker* check) {
  if (!CheckPath(field, path, check) || images) return;
  if (!absl::EndsWith(path, ".npy") && !absl::EndsWith(path, ".bin")) {
    check->Add(field, absl::StrCat("expected a .npy or .bin file of token ids, got '", path,
                                   "'; `milepost dataset tokenize` makes one from text"));
  }
}

void CheckMaskPath(absl::string_view field, const std::string& path, Checker* check) {
  if (!CheckPath(field, path, check) || absl::EndsWith(path, ".npy")) return;
  check->Add(field, absl::StrCat("expected a .npy file with 1 for each target, got '", path,
                                 "'; `milepost dataset tokenize` makes one beside the tokens"));
}

constexpr size_t kLongestSetName = 40;

bool IsSetName(const std::string& name) {
  return !name.empty() && name.size() <= kLongestSetName &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
}

void CheckSetMask(const v1::JobSpec& spec, const std::string& field, const std::string& mask,
                  Checker* check) {
  if (mask.empty() || spec.model().family_case() == v1::ModelSpec::FAMILY_NOT_SET) return;
  if (!spec.model().has_gpt2() && !spec.model().has_llama()) {
    check->Add(field, "only models that predict the next token have it");
  } else {
    CheckMaskPath(field, mask, check);
  }
}

void CheckValidationSets(const v1::JobSpec& spec, bool images, Checker* check) {
  const v1::DataSpec& data = spec.data();
  if (data.validation_sets().empty()) return;
  if (data.validation_sets_size() > kMostValidationSets) {
    check->Add("data.validation_sets",
               absl::StrCat(data.validation_sets_size(), " sets; at most ", kMostValidationSets));
    return;
  }
  if (data.validation().empty()) {
    check->Add("data.validation_sets",
               "these are measured beside data.validation, by which the best checkpoint is found: "
               "give that too");
  }
  std::set<std::string> names;
  for (int i = 0; i < data.validation_sets_size(); ++i) {
    const v1::ValidationSetSpec& set = data.validation_sets(i);
    const std::string field = absl::StrCat("data.validation_sets[", i, "]");
    if (!IsSetName(set.name())) {
      check->Add(field + ".name", absl::StrCat("expected 1 to ", kLongestSetName,
                                               " letters, digits, '_' and '-', got '",
                                               absl::CHexEscape(set.name()), "'"));
    } else if (!names.insert(set.name()).second) {
      check->Add(field + ".name", absl::StrCat("two sets are called '", set.name(), "'"));
    }
    if (set.path().empty()) {
      check->Add(field + ".path", images ? "required: the images of the set"
                                         : "required: a file of tokens, .npy or .bin");
    } else {
      CheckTokenPath(field + ".path", set.path(), images, check);
    }
    CheckSetMask(spec, field + ".loss_mask", set.loss_mask(), check);
  }
}

constexpr int kMaxSources = 256;
constexpr double kLeastShare = 1e-6;

void CheckMixture(const v1::DataSpec& data, Checker* check) {
  if (data.mixture_size() > kMaxSources) {
    check->Add("data.mixture", absl::StrCat(data.mixture_size(), " files; at most ", kMaxSources));
    return;
  }
  double sum = 0;
  for (const v1::TokenSource& source : data.mixture()) sum += source.weight();
  for (int i = 0; i < data.mixture_size(); ++i) {
    const v1::TokenSource& source = data.mixture(i);
    const std::string field = absl::StrCat("data.mixture[", i, "]");
    if (source.path().empty()) {
      check->Add(field + ".path", "required: a file of training tokens");
    } else {
      CheckTokenPath(field + ".path", source.path(), false, check);
    }
    if (!source.loss_mask().empty()) {
      CheckMaskPath(field + ".loss_mask", source.loss_mask(), check);
    }
    const bool weight = check->Real(field + ".weight", source.weight(), 0, 1e9, "(]");
    if (weight && source.weight() < kLeastShare * sum) {
      check->Add(field + ".weight", absl::StrCat(source.weight(),
                                                 " is less than a millionth of all "
                                                 "weights together: raise it, or remove the file"));
    }
  }
}

void CheckImages(const v1::JobSpec& spec, Checker* check) {
  const v1::ImageDataSpec& images = spec.data().images();
  const auto range = [&](const std::string& field, double low, double high, double most) {
    check->Real("data.images.min_" + field, low, 0, most, "(]");
    if (check->Real("data.images.max_" + field, high, 0, most, "(]") && high < low) {
      check->Add("data.images.max_" + field,
                 absl::StrCat("must not be below min_", field, " (", low, "), got ", high));
    }
  };
  if (!v1::ImageCrop_IsValid(images.crop()) || images.crop() == 0) {
    check->Add("data.images.crop", "expected random or centre");
  }
  range("scale", images.min_scale(), images.max_scale(), 1);
  range("ratio", images.min_ratio(), images.max_ratio(), 1000);
  check->Real("data.images.flip", images.flip(), 0, 1);
  check->Int("data.images.resize", images.resize(), SizesOf(spec.model()).image_size, 65535);
  if (images.has_patch()) {
    check->Int("data.images.patch.size", images.patch().size(), 1, 65535);
    check->Int("data.images.patch.stride", images.patch().stride(), 1, images.patch().size());
  }
  check->Int("data.images.decode_threads", images.decode_threads(), 1, 256);
  if (!v1::OnCorrupt_IsValid(images.on_corrupt()) || images.on_corrupt() == 0) {
    check->Add("data.images.on_corrupt", "expected fail or skip");
  }
  check->Int("data.images.max_pixels", images.max_pixels(), 1, int64_t{1} << 32);
}

constexpr int kMaxSpecialTokens = 256;

void CheckMasking(const v1::JobSpec& spec, int64_t vocabulary, Checker* check) {
  const bool bert = spec.model().has_bert();
  const v1::MaskingSpec& masking = spec.data().masking();
  if (bert != spec.data().has_masking()) {
    check->Add("data.masking", bert ? "required: BERT learns to find masked tokens again"
                                    : "only BERT has it: this model predicts the next token");
    return;
  }
  if (!bert) return;
  check->Real("data.masking.probability", masking.probability(), 0, 1, "(]");
  if (!masking.has_mask_token()) {
    check->Add("data.masking.mask_token", "required: the id that stands for a masked token");
  } else {
    check->Int("data.masking.mask_token", masking.mask_token(), 0, vocabulary - 1);
  }
  if (masking.special_tokens_size() > kMaxSpecialTokens) {
    check->Add("data.masking.special_tokens",
               absl::StrCat(masking.special_tokens_size(), " ids; at most ", kMaxSpecialTokens));
    return;
  }
  for (int i = 0; i < masking.special_tokens_size(); ++i) {
    check->Int(absl::StrCat("data.masking.special_tokens[", i, "]"), masking.special_tokens(i), 0,
               vocabulary - 1);
  }
}

bool HasLossMask(const v1::DataSpec& data) {
  bool any = data.has_loss_mask();
  for (const v1::TokenSource& source : data.mixture()) any = any || !source.loss_mask().empty();
  return any;
}

void CheckLossMask(const v1::JobSpec& spec, Checker* check) {
  const v1::DataSpec& data = spec.data();
  if (!HasLossMask(data)) return;
  if (!spec.model().has_gpt2() && !spec.model().has_llama()) {
    check->Add(data.has_loss_mask() ? "data.loss_mask" : "data.mixture.loss_mask",
               "only models that predict the next token have it");
    return;
  }
  if (!data.has_loss_mask()) return;
  const v1::LossMaskSpec& mask = data.loss_mask();
  if (mask.train().empty() && mask.validation().empty()) {
    check->Add("data.loss_mask", "give data.loss_mask.train, or remove it");
  }
  if (!mask.train().empty()) {
    CheckMaskPath("data.loss_mask.train", mask.train(), check);
    if (data.mixture_size() > 0) {
      check->Add("data.loss_mask.train",
                 "of a mixture each file has its own: give it as "
                 "data.mixture.loss_mask");
    }
  }
  if (mask.validation().empty()) return;
  CheckMaskPath("data.loss_mask.validation", mask.validation(), check);
  if (data.validation().empty()) {
    check->Add("data.loss_mask.validation", "there is no data.validation: give it, or remove this");
  }
}

void CheckDocuments(const v1::JobSpec& spec, int64_t vocabulary, Checker* check) {
  const v1::DataSpec& data = spec.data();
  if (data.has_document_separator()) {
    check->Int("data.document_separator", data.document_separator(), 0, vocabulary - 1);
  }
  if (data.has_padding()) check->Int("data.padding", data.padding(), 0, vocabulary - 1);
  if (!data.has_segment_separator()) return;
  check->Int("data.segment_separator", data.segment_separator(), 0, vocabulary - 1);
  if (!spec.model().has_bert()) {
    check->Add("data.segment_separator", "only BERT has segments");
  } else if (spec.model().bert().segments() == 0) {
    check->Add("data.segment_separator", "this model has none, by model.bert.segments: 0");
  }
}

}  // namespace

void CheckData(const v1::JobSpec& spec, Checker* check) {
  const v1::DataSpec& data = spec.data();
  const bool images = SizesOf(spec.model()).images;
  if (images && data.mixture_size() > 0) {
    check->Add("data.mixture", "mixtures are of token files; give data.train a set of images");
  } else if (data.mixture_size() > 0 && !data.train().empty()) {
    check->Add("data.mixture", "given beside data.train: keep one of them");
  } else if (data.mixture_size() > 0) {
    CheckMixture(data, check);
  } else if (data.train().empty()) {
    check->Add("data.train", images ? "required: the training images"
                                    : "required: the file of training tokens, .npy or .bin");
  } else {
    CheckTokenPath("data.train", data.train(), images, check);
  }
  if (!data.validation().empty()) {
    CheckTokenPath("data.validation", data.validation(), images, check);
  }
  CheckValidationSets(spec, images, check);
  if (spec.model().family_case() == v1::ModelSpec::FAMILY_NOT_SET) return;
  if (images) {
    CheckImages(spec, check);
  } else if (data.has_images()) {
    check->Add("data.images",
               "the model is of tokens: remove it, or give model.resnet or model.vit");
  }
  const ModelSizes model = SizesOf(spec.model());
  if (model.vocabulary >= 2) {
    CheckMasking(spec, model.vocabulary, check);
    CheckDocuments(spec, model.vocabulary, check);
    CheckLossMask(spec, check);
  }
  if (model.context == 0) return;  // which is told already
  if (data.sequence_length() < 1 || data.sequence_length() > model.context) {
    check->Add("data.sequence_length",
               absl::StrCat("expected 1 to model.", model.family, ".context (", model.context,
                            "), got ", data.sequence_length()));
  }
}

}  // namespace milepost
