#include "common/spec/validate.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/spec/auto_fields.h"
#include "common/spec/labels.h"
#include "common/spec/model_sizes.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/scheduling.h"
#include "common/spec/sizes.h"
#include "common/spec/storage_fields.h"
#include "common/spec/task_heads.h"
#include "common/spec/to_yaml.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

class Checker {
 public:
  void Add(std::vector<FieldViolation> violations) {
    for (FieldViolation& violation : violations) violations_.push_back(std::move(violation));
  }

  std::vector<FieldViolation> Take() { return std::move(violations_); }

  void Add(absl::string_view field, std::string message) {
    violations_.push_back({std::string(field), std::move(message)});
  }

  bool Int(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return true;
    Add(field, absl::StrCat("expected ", low, " to ", high, ", got ", value));
    return false;
  }

  // Of a field without a default, which is 0 where it is not given.
  bool Required(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value != 0) return Int(field, value, low, high);
    Add(field, absl::StrCat("required: a whole number from ", low, " to ", high));
    return false;
  }

  // [low, high], or [low, high) or (low, high] with the brackets given.
  bool Real(absl::string_view field, double value, double low, double high,
            absl::string_view brackets = "[]") {
    const bool above = brackets[0] == '[' ? value >= low : value > low;
    const bool below = brackets[1] == ']' ? value <= high : value < high;
    if (above && below) return true;  // false for NaN
    Add(field, absl::StrCat("expected a number in ", brackets.substr(0, 1), low, ", ", high,
                            brackets.substr(1, 1), ", got ", value));
    return false;
  }

 private:
  std::vector<FieldViolation> violations_;
};

void CheckName(const std::string& name, Checker* check) {
  bool valid = !name.empty() && name.size() <= 63;
  for (const char c : name) {
    valid = valid && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  }
  if (valid) return;
  check->Add("name", absl::StrCat("expected 1 to 63 letters, digits, '-', '_' and '.', got ",
                                  name.size(), " characters"));
}

void CheckGpt2(const v1::Gpt2Spec& gpt2, Checker* check) {
  check->Required("model.gpt2.layers", gpt2.layers(), 1, 1024);
  const bool width = check->Required("model.gpt2.width", gpt2.width(), 1, 65536);
  const bool heads = check->Required("model.gpt2.heads", gpt2.heads(), 1, 1024);
  if (width && heads && gpt2.width() % gpt2.heads() != 0) {
    check->Add("model.gpt2.heads", absl::StrCat("must divide the width: ", gpt2.width(),
                                                " is not a multiple of ", gpt2.heads()));
  }
  check->Required("model.gpt2.context", gpt2.context(), 1, 1 << 20);
  check->Required("model.gpt2.vocabulary", gpt2.vocabulary(), 2, 1 << 24);
  check->Real("model.gpt2.dropout", gpt2.dropout(), 0, 1, "[)");
}

void CheckRopeScaling(const v1::RopeScalingSpec& scaling, Checker* check) {
  check->Real("model.llama.rope_scaling.factor", scaling.factor(), 1, 1e6);
  const bool low = check->Real("model.llama.rope_scaling.low_freq_factor",
                               scaling.low_freq_factor(), 0, 1e6, "(]");
  const bool high = check->Real("model.llama.rope_scaling.high_freq_factor",
                                scaling.high_freq_factor(), 0, 1e6, "(]");
  if (low && high && scaling.high_freq_factor() <= scaling.low_freq_factor()) {
    check->Add("model.llama.rope_scaling.high_freq_factor",
               absl::StrCat("must be above low_freq_factor (", scaling.low_freq_factor(), "), got ",
                            scaling.high_freq_factor()));
  }
  check->Int("model.llama.rope_scaling.original_context", scaling.original_context(), 1, 1 << 24);
}

void CheckLlamaHeads(const v1::LlamaSpec& llama, Checker* check) {
  const bool heads = check->Required("model.llama.heads", llama.heads(), 1, 1024);
  // Defaults that follow from what is missing itself need not be told of.
  const bool follows = llama.heads() == 0 && llama.kv_heads() == 0;
  const bool kv = !follows && check->Int("model.llama.kv_heads", llama.kv_heads(), 1, 1024);
  if (heads && kv && llama.heads() % llama.kv_heads() != 0) {
    check->Add("model.llama.kv_heads", absl::StrCat("must divide heads: ", llama.heads(),
                                                    " is not a multiple of ", llama.kv_heads()));
  }
  if (!llama.has_head_dim()) {  // the default is width / heads
    if (llama.width() == 0 || llama.heads() == 0) return;
    check->Add("model.llama.head_dim",
               absl::StrCat("give it, as heads (", llama.heads(), ") does not divide the width (",
                            llama.width(), ")"));
  } else if (llama.head_dim() < 8 || llama.head_dim() > 256 || llama.head_dim() % 8 != 0) {
    check->Add("model.llama.head_dim",
               absl::StrCat("expected a multiple of 8 from 8 to 256, got ", llama.head_dim()));
  }
}

void CheckLlama(const v1::LlamaSpec& llama, Checker* check) {
  check->Required("model.llama.layers", llama.layers(), 1, 1024);
  check->Required("model.llama.width", llama.width(), 1, 65536);
  CheckLlamaHeads(llama, check);
  check->Required("model.llama.hidden", llama.hidden(), 1, 1 << 20);
  check->Required("model.llama.context", llama.context(), 1, 1 << 20);
  check->Required("model.llama.vocabulary", llama.vocabulary(), 2, 1 << 24);
  check->Real("model.llama.rope_theta", llama.rope_theta(), 1, 1e12);
  if (llama.has_rope_scaling()) CheckRopeScaling(llama.rope_scaling(), check);
  check->Real("model.llama.norm_epsilon", llama.norm_epsilon(), 0, 1, "(]");
  if (llama.qk_norm() && llama.qkv_bias()) {
    check->Add("model.llama.qk_norm", "no model has both qk_norm and qkv_bias: leave one out");
  }
}

// Normalising has given a depth its stages: others beside it are a contradiction.
void CheckResNetStages(const v1::ResNetSpec& resnet, Checker* check) {
  if (resnet.depth() == 0 && resnet.stages_size() == 0) {
    check->Add("model.resnet.depth", "required: 18, 34, 50, 101 or 152; or give stages");
    return;
  }
  if (resnet.stages_size() > 5) {
    check->Add("model.resnet.stages", absl::StrCat(resnet.stages_size(), " stages; at most 5"));
    return;
  }
  int64_t layers = 0;
  for (int i = 0; i < resnet.stages_size(); ++i) {
    const int64_t own = resnet.stages(i).layers();
    check->Required(absl::StrCat("model.resnet.stages[", i, "].layers"), own, 1, 256);
    layers += own;
  }
  if (resnet.depth() == 0) return;
  if (resnet.stages_size() == 0) {
    check->Add("model.resnet.depth", absl::StrCat("expected 18, 34, 50, 101 or 152, got ",
                                                  resnet.depth(), "; or give stages instead"));
  } else if (resnet.depth() != (resnet.bottleneck() ? 3 : 2) * layers + 2) {
    check->Add("model.resnet.stages",
               absl::StrCat("are not those of depth ", resnet.depth(), ": keep one of the two"));
  }
}

void CheckResNet(const v1::ResNetSpec& resnet, Checker* check) {
  CheckResNetStages(resnet, check);
  check->Required("model.resnet.classes", resnet.classes(), 1, 1 << 20);
  check->Int("model.resnet.image_size", resnet.image_size(), 1, 8192);
  check->Int("model.resnet.width", resnet.width(), 1, 4096);
  check->Real("model.resnet.label_smoothing", resnet.label_smoothing(), 0, 1, "[)");
  const auto rgb = [&](const std::string& field, const v1::RgbSpec& value, const char* brackets) {
    check->Real(field + ".red", value.red(), 0, 1, brackets);
    check->Real(field + ".green", value.green(), 0, 1, brackets);
    check->Real(field + ".blue", value.blue(), 0, 1, brackets);
  };
  rgb("model.resnet.pixel_mean", resnet.pixel_mean(), "[]");
  rgb("model.resnet.pixel_deviation", resnet.pixel_deviation(), "(]");
}

void CheckBert(const v1::BertSpec& bert, Checker* check) {
  check->Required("model.bert.layers", bert.layers(), 1, 1024);
  const bool width = check->Required("model.bert.width", bert.width(), 1, 65536);
  const bool heads = check->Required("model.bert.heads", bert.heads(), 1, 1024);
  if (width && heads && bert.width() % bert.heads() != 0) {
    check->Add("model.bert.heads", absl::StrCat("must divide the width: ", bert.width(),
                                                " is not a multiple of ", bert.heads()));
  }
  if (width) check->Int("model.bert.hidden", bert.hidden(), 1, 1 << 20);
  check->Required("model.bert.context", bert.context(), 1, 1 << 20);
  check->Required("model.bert.vocabulary", bert.vocabulary(), 2, 1 << 24);
  check->Int("model.bert.segments", bert.segments(), 1, 1024);
  check->Real("model.bert.dropout", bert.dropout(), 0, 1, "[)");
  check->Real("model.bert.norm_epsilon", bert.norm_epsilon(), 0, 1, "(]");
}

void CheckModel(const v1::ModelSpec& model, Checker* check) {
  switch (model.family_case()) {
    case v1::ModelSpec::kGpt2:
      return CheckGpt2(model.gpt2(), check);
    case v1::ModelSpec::kLlama:
      return CheckLlama(model.llama(), check);
    case v1::ModelSpec::kBert:
      return CheckBert(model.bert(), check);
    case v1::ModelSpec::kResnet:
      return CheckResNet(model.resnet(), check);
    case v1::ModelSpec::FAMILY_NOT_SET:
      break;
  }
  check->Add("model",
             "expected a model family: give model.gpt2, model.llama, model.bert or model.resnet");
}

// False: so bad that nothing more need be said about it.
bool CheckPath(absl::string_view field, const std::string& path, Checker* check) {
  if (path.size() > 4096) {
    check->Add(field, absl::StrCat("a path of ", path.size(), " characters; at most 4096"));
    return false;
  }
  for (const char c : path) {
    if (static_cast<unsigned char>(c) >= ' ') continue;
    check->Add(field, "the path holds a control character");
    return false;
  }
  if (path[0] != '/') {
    check->Add(field,
               absl::StrCat("expected an absolute path, got '", path,
                            "' (a spec file's relative paths are made absolute when it is read)"));
  }
  return true;
}

void CheckTokenPath(absl::string_view field, const std::string& path, bool images, Checker* check) {
  if (!CheckPath(field, path, check) || images) return;
  if (!absl::EndsWith(path, ".npy") && !absl::EndsWith(path, ".bin")) {
    check->Add(field, absl::StrCat("expected a .npy or .bin file of token ids, got '", path,
                                   "'; `milepost dataset tokenize` makes one from text"));
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
  check->Int("data.images.resize", images.resize(), spec.model().resnet().image_size(), 65535);
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
  }
}

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
  if (spec.model().family_case() == v1::ModelSpec::FAMILY_NOT_SET) return;
  if (images) {
    CheckImages(spec, check);
  } else if (data.has_images()) {
    check->Add("data.images", "the model is of tokens: remove it, or give model.resnet");
  }
  const ModelSizes model = SizesOf(spec.model());
  if (model.vocabulary >= 2) {
    CheckMasking(spec, model.vocabulary, check);
    CheckDocuments(spec, model.vocabulary, check);
  }
  if (model.context == 0) return;  // which is told already
  if (data.sequence_length() < 1 || data.sequence_length() > model.context) {
    check->Add("data.sequence_length",
               absl::StrCat("expected 1 to model.", model.family, ".context (", model.context,
                            "), got ", data.sequence_length()));
  }
}

constexpr int64_t kMaxRanks = 4096;
constexpr int64_t kMaxMicro = 1 << 16;
constexpr int64_t kMaxAccumulation = 1 << 16;
constexpr int64_t kMaxGlobal = 1 << 24;

bool CheckBatchRanges(const v1::BatchSpec& batch, Checker* check) {
  bool ok = true;
  if (batch.has_global()) ok &= check->Int("train.batch.global", batch.global(), 1, kMaxGlobal);
  if (batch.has_micro() && batch.micro() != kAuto) {
    ok &= check->Int("train.batch.micro", batch.micro(), 1, kMaxMicro);
  }
  if (batch.has_accumulation()) {
    ok &= check->Int("train.batch.accumulation", batch.accumulation(), 1, kMaxAccumulation);
  }
  return ok;
}

void CheckAutoMicro(const v1::BatchSpec& batch, int64_t ranks, Checker* check) {
  if (!batch.has_global() || batch.has_accumulation()) {
    check->Add("train.batch.micro",
               "auto chooses micro and accumulation together: give train.batch.global, and no "
               "accumulation");
  } else if (batch.global() % ranks != 0) {
    check->Add("train.batch.global",
               absl::StrCat("must be a multiple of resources.ranks (", ranks, "), got ",
                            batch.global(), "; nearest: ", (batch.global() / ranks + 1) * ranks));
  }
}

void CheckBatch(const v1::BatchSpec& batch, int64_t ranks, Checker* check) {
  const int given = batch.has_global() + batch.has_micro() + batch.has_accumulation();
  if (!CheckBatchRanges(batch, check) || ranks < 1 || ranks > kMaxRanks) return;
  if (batch.has_micro() && batch.micro() == kAuto) return CheckAutoMicro(batch, ranks, check);
  if (given < 2) {
    check->Add("train.batch", "give two of global, micro and accumulation; the third is derived");
    return;
  }
  if (given == 3) {
    const int64_t product = batch.micro() * batch.accumulation() * ranks;
    if (product == batch.global()) return;
    check->Add("train.batch.global",
               absl::StrCat("micro * accumulation * ranks is ", batch.micro(), " * ",
                            batch.accumulation(), " * ", ranks, " = ", product, ", not ",
                            batch.global(), ": remove one of the three"));
    return;
  }
  // Normalising left the third absent: `global` was given and does not divide.
  const absl::string_view factor = batch.has_micro() ? "micro" : "accumulation";
  const int64_t divisor = (batch.has_micro() ? batch.micro() : batch.accumulation()) * ranks;
  const int64_t below = batch.global() / divisor * divisor;
  std::string nearest = below > 0 ? absl::StrCat(below, " or ") : "";
  check->Add("train.batch.global",
             absl::StrCat("must be a multiple of ", factor, " * ranks = ", divisor, ", got ",
                          batch.global(), "; nearest: ", nearest, below + divisor));
}

void CheckShardGroup(int32_t ranks, int32_t group, Checker* check) {
  if (!check->Int("train.zero.group", group, 0, kMaxRanks) || group == 0) return;
  if (ranks % group == 0) return;
  check->Add("train.zero.group", absl::StrCat("must divide resources.ranks (", ranks, "), got ",
                                              group, "; 0: all ranks"));
}

constexpr int kMaxParameterGroups = 64;
constexpr size_t kMaxPattern = 256;

void CheckPattern(const std::string& field, const std::string& pattern, Checker* check) {
  if (pattern.empty()) check->Add(field, "required: a pattern of parameter names, such as h.0.*");
  bool printable = true;
  for (const char c : pattern) printable = printable && absl::ascii_isgraph(c);
  if (printable && pattern.size() <= kMaxPattern) return;
  check->Add(field, absl::StrCat("expected at most ", kMaxPattern,
                                 " printable characters without blanks, got ", pattern.size()));
}

// That every pattern matches something is found where the model is built: by the planner.
void CheckParameterGroups(const v1::OptimizerSpec& optimizer, Checker* check) {
  if (optimizer.groups_size() > kMaxParameterGroups) {
    check->Add("train.optimizer.groups",
               absl::StrCat(optimizer.groups_size(), " groups; at most ", kMaxParameterGroups));
    return;
  }
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const v1::ParameterGroupSpec& group = optimizer.groups(i);
    const std::string field = absl::StrCat("train.optimizer.groups[", i, "]");
    CheckPattern(field + ".match", group.match(), check);
    check->Real(field + ".lr_scale", group.lr_scale(), 0, 1000, "(]");
    if (group.has_weight_decay()) {
      check->Real(field + ".weight_decay", group.weight_decay(), 0, 10);
    }
    if (group.freeze() && (group.lr_scale() != 1 || group.has_weight_decay())) {
      check->Add(field + ".freeze",
                 "frozen parameters have no learning rate or weight decay: remove lr_scale and "
                 "weight_decay, or freeze");
    }
  }
}

void CheckOptimizer(const v1::OptimizerSpec& optimizer, Checker* check) {
  CheckParameterGroups(optimizer, check);
  const OptimizerFields* fields = FieldsOf(optimizer.type());
  if (fields == nullptr) {
    check->Add("train.optimizer.type",
               absl::StrCat("expected ", OptimizersWith(&OptimizerFields::every, "or")));
    return;
  }
  const std::string type =
      EnumYamlName(*v1::OptimizerSpec::Type_descriptor()->FindValueByNumber(optimizer.type()));
  if (!v1::StateDType_IsValid(optimizer.state_dtype()) || optimizer.state_dtype() == 0) {
    check->Add("train.optimizer.state_dtype", "expected fp32 or bf16");
  }
  if (!fields->bf16_states && optimizer.state_dtype() == v1::STATE_DTYPE_BF16) {
    check->Add("train.optimizer.state_dtype",
               absl::StrCat("bf16 is for ", OptimizersWith(&OptimizerFields::bf16_states, "and"),
                            ", not for ", type));
  }
  check->Real("train.optimizer.lr", optimizer.lr(), 0, 100, "(]");
  check->Real("train.optimizer.weight_decay", optimizer.weight_decay(), 0, 10);
  // What a type does not have must not be given: it would do nothing.
  const auto field = [&](absl::string_view name, bool has, bool given, double value, double high,
                         absl::string_view brackets) {
    const std::string path = absl::StrCat("train.optimizer.", name);
    if (has) {
      check->Real(path, value, 0, high, brackets);
    } else if (given) {
      check->Add(path, absl::StrCat(type, " has none: remove it"));
    }
  };
  const auto of = [](const std::optional<double>& value) { return value.has_value(); };
  const bool muon = fields->orthogonalizes;
  field("beta1", of(fields->beta1), optimizer.has_beta1(), optimizer.beta1(), 1, "[)");
  field("beta2", of(fields->beta2), optimizer.has_beta2(), optimizer.beta2(), 1, "[)");
  field("beta3", of(fields->beta3), optimizer.has_beta3(), optimizer.beta3(), 1, "[)");
  field("epsilon", of(fields->epsilon), optimizer.has_epsilon(), optimizer.epsilon(), 1, "(]");
  field("momentum", of(fields->momentum), optimizer.has_momentum(), optimizer.momentum(), 1, "[)");
  field("adamw_lr", muon, optimizer.has_adamw_lr(), optimizer.adamw_lr(), 100, "(]");
  if (!muon && optimizer.has_nesterov()) {
    check->Add("train.optimizer.nesterov", absl::StrCat(type, " has none: remove it"));
  }
  if (!muon && optimizer.orthogonalization() != 0) {
    check->Add("train.optimizer.orthogonalization", absl::StrCat(type, " has none: remove it"));
  } else if (!v1::Orthogonalization_IsValid(optimizer.orthogonalization())) {
    check->Add("train.optimizer.orthogonalization", "expected bf16 or fp32");
  }
}

void CheckDecaySteps(const v1::TrainSpec& train, Checker* check) {
  const v1::ScheduleSpec& schedule = train.schedule();
  if (schedule.type() != v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY) {
    if (schedule.decay_steps() != 0) {
      check->Add("train.schedule.decay_steps",
                 "only warmup_stable_decay has it: remove this field, or choose that type");
    }
    return;
  }
  const int64_t most = train.steps() - schedule.warmup_steps();
  if (schedule.decay_steps() < 0 || (most >= 0 && schedule.decay_steps() > most)) {
    check->Add("train.schedule.decay_steps",
               absl::StrCat("expected 0 to train.steps - warmup_steps (", most, "), got ",
                            schedule.decay_steps()));
  }
}

void CheckSchedule(const v1::TrainSpec& train, Checker* check) {
  const v1::ScheduleSpec& schedule = train.schedule();
  if (!v1::ScheduleSpec::Type_IsValid(schedule.type()) || schedule.type() == 0) {
    check->Add("train.schedule.type",
               "expected constant, linear, cosine, inverse_sqrt or warmup_stable_decay");
  }
  const bool too_long = train.steps() != 0 && schedule.warmup_steps() > train.steps();
  if (schedule.warmup_steps() < 0 || too_long) {
    check->Add("train.schedule.warmup_steps",
               absl::StrCat("expected 0 to train.steps (", train.steps(), "), got ",
                            schedule.warmup_steps()));
  }
  CheckDecaySteps(train, check);
  const bool ratio = check->Real("train.schedule.final_lr_ratio", schedule.final_lr_ratio(), 0, 1);
  if (ratio && schedule.type() == v1::ScheduleSpec::TYPE_CONSTANT &&
      schedule.final_lr_ratio() != 1) {
    check->Add(
        "train.schedule.final_lr_ratio",
        "a constant schedule ends at its peak: remove this field, or choose linear or cosine");
  }
}

void CheckLossScale(const v1::TrainSpec& train, Checker* check) {
  if (!train.has_loss_scale()) return;
  const v1::LossScaleSpec& scale = train.loss_scale();
  if (train.precision() != v1::PRECISION_FP16) {
    check->Add("train.loss_scale", "only precision fp16 scales the loss: remove it");
    return;
  }
  constexpr double kMost = 1e30;  // far from the end of fp32, in which the scale is kept
  const bool initial = check->Real("train.loss_scale.initial", scale.initial(), 1e-6, kMost);
  check->Real("train.loss_scale.growth", scale.growth(), 1, 1e6);
  check->Real("train.loss_scale.backoff", scale.backoff(), 0, 1, "()");
  check->Int("train.loss_scale.growth_interval", scale.growth_interval(), 1, 1'000'000'000);
  if (check->Real("train.loss_scale.floor", scale.floor(), 1e-6, kMost) && initial &&
      scale.floor() > scale.initial()) {
    check->Add("train.loss_scale.floor",
               absl::StrCat("is above train.loss_scale.initial (", scale.initial(), ")"));
  }
}

void CheckRecomputeBudget(const v1::TrainSpec& train, Checker* check) {
  const bool budget = train.recompute() == v1::RECOMPUTE_BUDGET;
  if (budget && train.recompute_budget() < 1) {
    check->Add("train.recompute_budget",
               "required with train.recompute: budget: the bytes of activations that a rank may "
               "keep, such as 2GiB");
  } else if (!budget && train.has_recompute_budget()) {
    check->Add("train.recompute_budget",
               "only train.recompute: budget has it: remove this field, or set that");
  }
}

void CheckOffload(const v1::TrainSpec& train, Checker* check) {
  const v1::OffloadSpec& offload = train.offload();
  const OptimizerFields* fields = FieldsOf(train.optimizer().type());
  if (!v1::OffloadTarget_IsValid(offload.optimizer()) || offload.optimizer() == 0) {
    check->Add("train.offload.optimizer", "expected none, host or nvme");
  } else if (offload.optimizer() != v1::OFFLOAD_TARGET_NONE && fields != nullptr &&
             !fields->by_element) {
    check->Add(
        "train.offload.optimizer",
        absl::StrCat("host and nvme are for ", OptimizersWith(&OptimizerFields::by_element, "and"),
                     ": choose one of them as train.optimizer.type, or none here"));
  }
  if (offload.path().empty()) return;
  CheckPath("train.offload.path", offload.path(), check);
  if (offload.optimizer() != v1::OFFLOAD_TARGET_NVME) {
    check->Add("train.offload.path",
               "only train.offload.optimizer: nvme has it: remove this field, or set that");
  }
}

void CheckTrain(const v1::JobSpec& spec, Checker* check) {
  const v1::TrainSpec& train = spec.train();
  check->Required("train.steps", train.steps(), 1, kMostSteps);
  if (!v1::Precision_IsValid(train.precision()) || train.precision() == 0) {
    check->Add("train.precision", "expected fp32, bf16, fp16 or fp8");
  } else if (spec.model().has_resnet() &&
             (train.precision() == v1::PRECISION_FP16 || train.precision() == v1::PRECISION_FP8)) {
    check->Add("train.precision", "fp16 and fp8 are not for model.resnet: choose bf16 or fp32");
  }
  if (!v1::Recompute_IsValid(train.recompute()) || train.recompute() == 0) {
    check->Add("train.recompute", "expected none, selective, full, auto or budget");
  }
  CheckRecomputeBudget(train, check);
  CheckBatch(train.batch(), spec.resources().ranks(), check);
  if (train.zero().stage() != kAuto) {
    check->Int("train.zero.stage", train.zero().stage(), 0, 3);
  }
  check->Int("train.zero.prefetch", train.zero().prefetch(), 0, 16);
  CheckShardGroup(spec.resources().ranks(), train.zero().group(), check);
  if (!v1::GradReduce_IsValid(train.grad_reduce()) || train.grad_reduce() == 0) {
    check->Add("train.grad_reduce", "expected fp32 or bf16");
  }
  if (!v1::Determinism_IsValid(train.determinism()) || train.determinism() == 0) {
    check->Add("train.determinism", "expected exact or fast");
  }
  CheckLossScale(train, check);
  CheckOffload(train, check);
  CheckOptimizer(train.optimizer(), check);
  for (const StorageProblem& problem : StorageProblems(train)) {
    check->Add(problem.field, problem.what);
  }
  CheckSchedule(train, check);
  if (!train.init_from().empty()) CheckPath("train.init_from", train.init_from(), check);
  if (!train.init_from().empty() && !spec.checkpoint().resume_from().empty()) {
    check->Add(
        "train.init_from",
        "given beside checkpoint.resume_from, which brings all parameters: keep one of them");
  }
  check->Real("train.clip_norm", train.clip_norm(), 0, 1e6);
  if (!v1::OnNonfinite_IsValid(train.on_nonfinite()) || train.on_nonfinite() == 0) {
    check->Add("train.on_nonfinite", "expected skip or fail");
  }
  check->Int("train.max_skipped_steps", train.max_skipped_steps(), 0, 1'000'000'000);
  check->Int("train.validation.every", train.validation().every(), 0, 1'000'000'000);
  check->Int("train.validation.samples", train.validation().samples(), 1, 1 << 24);
  if (train.validation().every() > 0 && spec.data().validation().empty()) {
    check->Add("train.validation.every",
               "there is nothing to validate on: give data.validation, or remove this field");
  }
}

// Sizes are planned one by one when the job is submitted.
constexpr int kMaxSizes = 32;

void CheckSize(const v1::JobSpec& spec, const char* field, int32_t ranks, Checker* check) {
  if (IsPossibleSize(spec, ranks)) return;
  const v1::TrainSpec& train = spec.train();
  const bool automatic = MicroIsAuto(spec);
  std::string message = absl::StrCat(
      "train.batch.global (", train.batch().global(), ") must be a multiple of ",
      automatic ? "" : absl::StrCat("train.batch.micro (", train.batch().micro(), ") * "), ranks,
      " ranks");
  if (train.zero().group() > 0) {
    absl::StrAppend(&message, ", and these of train.zero.group (", train.zero().group(), ")");
  }
  check->Add(field, message);
}

void CheckSizes(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  if (!resources.has_min_ranks() && !resources.has_max_ranks()) return;
  const int32_t ranks = resources.ranks();
  bool valid = ranks >= 1 && ranks <= kMaxRanks;
  valid = check->Int("resources.min_ranks", LeastRanks(resources), 1, kMaxRanks) && valid;
  valid = check->Int("resources.max_ranks", MostRanks(resources), 1, kMaxRanks) && valid;
  if (!valid || spec.train().batch().global() < 1) return;
  if (LeastRanks(resources) > ranks) {
    return check->Add("resources.min_ranks", absl::StrCat("must be at most resources.ranks (",
                                                          ranks, "), got ", LeastRanks(resources)));
  }
  if (MostRanks(resources) < ranks) {
    return check->Add("resources.max_ranks", absl::StrCat("must be at least resources.ranks (",
                                                          ranks, "), got ", MostRanks(resources)));
  }
  CheckSize(spec, "resources.min_ranks", LeastRanks(resources), check);
  CheckSize(spec, "resources.max_ranks", MostRanks(resources), check);
  const size_t sizes = PossibleSizes(spec).size();
  if (sizes > kMaxSizes) {
    check->Add("resources.max_ranks",
               absl::StrCat("from resources.min_ranks to here the job could run with ", sizes,
                            " numbers of ranks; at most ", kMaxSizes, ": narrow it"));
  }
}

void CheckResources(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  check->Int("resources.ranks", resources.ranks(), 1, kMaxRanks);
  CheckSizes(spec, check);
  if (!v1::DeviceKind_IsValid(resources.device()) || resources.device() == 0) {
    check->Add("resources.device", "expected cpu or cuda");
  }
  check->Int("resources.threads_per_rank", resources.threads_per_rank(), 0, 1024);
  if (resources.has_memory()) {
    check->Int("resources.memory", resources.memory(), 1, int64_t{1} << 50);
  }
  if (resources.device_model().size() > 63) {
    check->Add("resources.device_model", "has at most 63 characters, such as h200");
  }
  if (!IsLabelValue(resources.pool())) {
    check->Add("resources.pool",
               "must be the value of workers' label `pool`, such as a100: at most 63 letters, "
               "digits, '-', '_' and '.'");
  }
  if (resources.profile().size() > 63) {
    check->Add("resources.profile", "the name of a device profile has at most 63 characters");
  }
}

void CheckCheckpoint(const v1::JobSpec& spec, Checker* check) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  check->Int("checkpoint.every", checkpoint.every(), 0, 1'000'000'000);
  check->Int("checkpoint.keep_last", checkpoint.keep_last(), 1, 10'000);
  const bool valid = check->Int("checkpoint.keep_every", checkpoint.keep_every(), 0, 1'000'000'000);
  if (valid && checkpoint.keep_every() > 0 && checkpoint.every() == 0) {
    check->Add("checkpoint.keep_every",
               "no checkpoint is taken on the way: give checkpoint.every, or remove this field");
  }
  check->Int("checkpoint.redundancy", checkpoint.redundancy(), 0, 1);
  if (checkpoint.redundancy() > 0 &&
      spec.train().offload().optimizer() == v1::OFFLOAD_TARGET_NVME) {
    check->Add("checkpoint.redundancy",
               "keeps the state in host memory, and train.offload.optimizer: nvme has it on disk "
               "for want of that: give one of them");
  }
  if (checkpoint.resume_from().empty()) return;
  absl::string_view number = checkpoint.resume_from();
  uint64_t value;
  if (!absl::ConsumePrefix(&number, "checkpoints/") || !absl::SimpleAtoi(number, &value)) {
    check->Add("checkpoint.resume_from",
               "expected a checkpoint's name such as checkpoints/12; `milepost checkpoint list` "
               "shows them");
  }
}

}  // namespace

std::vector<FieldViolation> CheckJobSpec(const v1::JobSpec& normalized) {
  Checker check;
  CheckName(normalized.name(), &check);
  CheckModel(normalized.model(), &check);
  CheckData(normalized, &check);
  check.Add(CheckTaskHeads(normalized));
  CheckTrain(normalized, &check);
  CheckResources(normalized, &check);
  CheckCheckpoint(normalized, &check);
  check.Add(CheckScheduling(normalized.scheduling()));
  check.Int("restart.max_failures", normalized.restart().max_failures(), 0, 1000);
  check.Real("restart.backoff_seconds", normalized.restart().backoff_seconds(), 0, 60);
  const std::string& tensorboard = normalized.report().tensorboard();
  if (!tensorboard.empty()) CheckPath("report.tensorboard", tensorboard, &check);
  return check.Take();
}

absl::Status ValidateJobSpec(const v1::JobSpec& normalized) {
  constexpr size_t kMostBytes = 1200;  // errors travel in headers, which gRPC bounds to 8 KiB
  const std::vector<FieldViolation> violations = CheckJobSpec(normalized);
  if (violations.empty()) return absl::OkStatus();
  v1::BadRequest bad_request;
  std::vector<std::string> lines;
  size_t bytes = 0;
  for (const FieldViolation& violation : violations) {
    std::string line = absl::StrCat(violation.field, ": ", violation.message);
    bytes += line.size();
    if (!lines.empty() && bytes > kMostBytes) {
      lines.push_back(absl::StrCat("and ", violations.size() - lines.size(), " more"));
      break;
    }
    lines.push_back(std::move(line));
    auto* detail = bad_request.add_field_violations();
    detail->set_field(violation.field);
    detail->set_description(violation.message);
  }
  absl::Status status = absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
  SetDetail(bad_request, &status);
  return status;
}

}  // namespace milepost
