#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/checker.h"
#include "common/spec/to_yaml.h"
#include "common/spec/unknown_fields.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

// A number for which the message's enum has no word; only the API can give one.
void CheckChoices(const google::protobuf::Message& message, const std::string& path,
                  Checker* check) {
  using google::protobuf::FieldDescriptor;
  std::vector<const FieldDescriptor*> given;
  message.GetReflection()->ListFields(message, &given);
  for (const FieldDescriptor* field : given) {
    if (field->is_repeated()) continue;
    const std::string here = absl::StrCat(path, ".", field->name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      CheckChoices(message.GetReflection()->GetMessage(message, field), here, check);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const int value = message.GetReflection()->GetEnumValue(message, field);
      const auto* type = field->enum_type();
      if (type->FindValueByNumber(value) != nullptr) continue;
      std::vector<std::string> names;
      for (int i = 1; i < type->value_count(); ++i) names.push_back(EnumYamlName(*type->value(i)));
      check->Add(here, absl::StrCat("expected ", absl::StrJoin(names, " or "), ", got the number ",
                                    value));
    }
  }
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
  if (scaling.type() == v1::RopeScalingSpec::TYPE_LINEAR) {
    if (scaling.has_low_freq_factor() || scaling.has_high_freq_factor() ||
        scaling.has_original_context()) {
      check->Add("model.llama.rope_scaling.type",
                 "linear has a factor alone: leave out low_freq_factor, high_freq_factor and "
                 "original_context");
    }
    return;
  }
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

void CheckWindow(const v1::LlamaSpec& llama, Checker* check) {
  const v1::AttentionWindowSpec& window = llama.window();
  check->Required("model.llama.window.positions", window.positions(), 1, 1 << 20);
  check->Int("model.llama.window.full_every", window.full_every(), 0, 1024);
  if (window.full_every() == 1) {
    check->Add("model.llama.window.full_every",
               "with 1 no layer has the window: leave out model.llama.window");
  }
  if (window.has_rope_theta()) {
    check->Real("model.llama.window.rope_theta", window.rope_theta(), 1, 1e12);
  }
}

// What Mixtral and Qwen3's mixtures do not have has not been tried.
void CheckBesideExperts(const v1::LlamaSpec& llama, Checker* check) {
  const std::pair<const char*, bool> others[] = {
      {"qkv_bias", llama.qkv_bias()},
      {"wide_qk_norm", llama.wide_qk_norm()},
      {"norm_offset", llama.norm_offset()},
      {"post_norms", llama.post_norms()},
      {"scale_embedding", llama.scale_embedding()},
      {"activation", llama.activation() == v1::LlamaSpec::ACTIVATION_GEGLU}};
  for (const auto& [field, given] : others) {
    if (!given) continue;
    check->Add(absl::StrCat("model.llama.", field),
               "is not for model.llama.experts, which are as in Mixtral and Qwen3: remove one of "
               "the two");
  }
}

void CheckExperts(const v1::LlamaSpec& llama, Checker* check) {
  constexpr int64_t kMostExperts = 1024;
  const v1::ExpertsSpec& experts = llama.experts();
  const bool count = check->Required("model.llama.experts.count", experts.count(), 2, kMostExperts);
  check->Required("model.llama.experts.per_token", experts.per_token(), 1,
                  count ? experts.count() : kMostExperts);
  if (llama.hidden() != 0 || experts.hidden() != 0) {  // the default is the model's
    check->Int("model.llama.experts.hidden", experts.hidden(), 1, 1 << 20);
  }
  check->Real("model.llama.experts.balance_loss", experts.balance_loss(), 0, 1000);
  check->Real("model.llama.experts.z_loss", experts.z_loss(), 0, 1000);
  // Each is three parameters with their states, and one message lists all of a checkpoint.
  constexpr int64_t kMostInAll = 12288;
  if (count && llama.layers() >= 1 && llama.layers() <= 1024 &&
      llama.layers() * experts.count() > kMostInAll) {
    check->Add("model.llama.experts.count",
               absl::StrCat("makes ", llama.layers() * experts.count(),
                            " experts in all layers; at most ", kMostInAll));
  }
  CheckBesideExperts(llama, check);
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
  if (llama.has_window()) CheckWindow(llama, check);
  if (llama.has_experts()) CheckExperts(llama, check);
  check->Real("model.llama.norm_epsilon", llama.norm_epsilon(), 0, 1, "(]");
  if (llama.qk_norm() && llama.qkv_bias()) {
    check->Add("model.llama.qk_norm", "no model has both qk_norm and qkv_bias: leave one out");
  }
  if (llama.wide_qk_norm() && (llama.qk_norm() || llama.qkv_bias())) {
    check->Add("model.llama.wide_qk_norm",
               absl::StrCat("no model has both wide_qk_norm and ",
                            llama.qk_norm() ? "qk_norm" : "qkv_bias", ": leave one out"));
  }
  if (llama.has_pre_norms() && !llama.pre_norms() && !llama.post_norms()) {
    check->Add("model.llama.pre_norms",
               "without pre_norms nothing is normed: give post_norms: true");
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

// `model`: the field that has them, "model.resnet.".
void CheckPixels(const std::string& model, const v1::RgbSpec& mean, const v1::RgbSpec& deviation,
                 Checker* check) {
  const auto rgb = [&](const std::string& field, const v1::RgbSpec& value, const char* brackets) {
    check->Real(field + ".red", value.red(), 0, 1, brackets);
    check->Real(field + ".green", value.green(), 0, 1, brackets);
    check->Real(field + ".blue", value.blue(), 0, 1, brackets);
  };
  rgb(model + "pixel_mean", mean, "[]");
  rgb(model + "pixel_deviation", deviation, "(]");
}

void CheckResNet(const v1::ResNetSpec& resnet, Checker* check) {
  CheckResNetStages(resnet, check);
  check->Required("model.resnet.classes", resnet.classes(), 1, 1 << 20);
  check->Int("model.resnet.image_size", resnet.image_size(), 1, 8192);
  check->Int("model.resnet.width", resnet.width(), 1, 4096);
  check->Real("model.resnet.label_smoothing", resnet.label_smoothing(), 0, 1, "[)");
  CheckPixels("model.resnet.", resnet.pixel_mean(), resnet.pixel_deviation(), check);
}

void CheckPatches(const v1::VitSpec& vit, Checker* check) {
  const bool image = check->Int("model.vit.image_size", vit.image_size(), 1, 8192);
  const bool patch = check->Int("model.vit.patch_size", vit.patch_size(), 1, 1024);
  if (!image || !patch) return;
  const int64_t side = vit.image_size() / vit.patch_size();
  if (vit.image_size() % vit.patch_size() != 0) {
    check->Add("model.vit.patch_size", absl::StrCat("must divide image_size: ", vit.image_size(),
                                                    " is not a multiple of ", vit.patch_size()));
  } else if (side * side >= 1 << 20) {
    check->Add("model.vit.patch_size",
               absl::StrCat("makes ", side * side, " patches of an image; at most ", (1 << 20) - 1,
                            ": give larger ones"));
  }
}

void CheckVit(const v1::VitSpec& vit, Checker* check) {
  check->Required("model.vit.layers", vit.layers(), 1, 1024);
  const bool width = check->Required("model.vit.width", vit.width(), 1, 65536);
  const bool heads = check->Required("model.vit.heads", vit.heads(), 1, 1024);
  if (width && heads && vit.width() % vit.heads() != 0) {
    check->Add("model.vit.heads", absl::StrCat("must divide the width: ", vit.width(),
                                               " is not a multiple of ", vit.heads()));
  } else if (const int64_t head = width && heads ? vit.width() / vit.heads() : 8;
             head % 8 != 0 || head > 256) {
    check->Add("model.vit.heads",
               absl::StrCat("a head's width, here ", head, ", is a multiple of 8, at most 256"));
  }
  if (width) check->Int("model.vit.hidden", vit.hidden(), 1, 1 << 20);
  check->Required("model.vit.classes", vit.classes(), 1, 1 << 20);
  CheckPatches(vit, check);
  check->Real("model.vit.dropout", vit.dropout(), 0, 1, "[)");
  check->Real("model.vit.norm_epsilon", vit.norm_epsilon(), 0, 1, "(]");
  check->Real("model.vit.label_smoothing", vit.label_smoothing(), 0, 1, "[)");
  CheckPixels("model.vit.", vit.pixel_mean(), vit.pixel_deviation(), check);
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
  check->Int("model.bert.segments", bert.segments(), 0, 1024);
  check->Real("model.bert.dropout", bert.dropout(), 0, 1, "[)");
  check->Real("model.bert.norm_epsilon", bert.norm_epsilon(), 0, 1, "(]");
}

void CheckLora(const v1::ModelSpec& model, Checker* check) {
  const v1::LoraSpec& lora = model.lora();
  if (model.has_resnet()) {
    check->Add("model.lora", "a ResNet has none: adapters are for gpt2, llama, bert and vit");
  }
  if (model.llama().has_experts()) {
    check->Add("model.lora",
               "is not for model.llama.experts: leave it out, and train all parameters");
  }
  check->Required("model.lora.rank", lora.rank(), 1, 1024);
  check->Real("model.lora.alpha", lora.alpha(), 0, 1e6, "(]");
  check->Real("model.lora.dropout", lora.dropout(), 0, 1, "[)");
  if (lora.dora() && lora.dropout() > 0) {
    check->Add("model.lora.dropout",
               "is not for model.lora.dora: magnitudes apply to what the layer and its adapters "
               "make of one input; give 0");
  }
  const auto patterns = [check](absl::string_view field, const auto& given) {
    for (int i = 0; i < given.size(); ++i) {
      if (!given[i].empty() && given[i].size() <= 256) continue;
      check->Add(absl::StrCat("model.lora.", field, "[", i, "]"),
                 "expected a pattern of 1 to 256 characters");
    }
    if (given.size() > 256) {
      check->Add(absl::StrCat("model.lora.", field),
                 absl::StrCat("at most 256 patterns, got ", given.size()));
    }
  };
  patterns("targets", lora.targets());
  patterns("also_train", lora.also_train());
}

}  // namespace

void CheckModel(const v1::ModelSpec& model, Checker* check) {
  if (const auto unknown = UnknownField(model, "model"); unknown.has_value()) {
    check->Add(*unknown,
               "has a field of a later version of Milepost: upgrade the coordinator and the "
               "workers to the version of the program `milepost` that submits it");
  }
  CheckChoices(model, "model", check);
  if (!model.hugging_face().empty()) {
    check->Add("model.hugging_face",
               "only a spec's file has it, for the program `milepost` to read the folder; give "
               "the family's fields here");
  }
  if (model.has_lora()) CheckLora(model, check);
  if (model.llama().has_experts() && model.heads_size() > 0) {
    check->Add("model.heads", "are not for model.llama.experts: remove them");
  }
  switch (model.family_case()) {
    case v1::ModelSpec::kGpt2:
      return CheckGpt2(model.gpt2(), check);
    case v1::ModelSpec::kLlama:
      return CheckLlama(model.llama(), check);
    case v1::ModelSpec::kBert:
      return CheckBert(model.bert(), check);
    case v1::ModelSpec::kResnet:
      return CheckResNet(model.resnet(), check);
    case v1::ModelSpec::kVit:
      return CheckVit(model.vit(), check);
    case v1::ModelSpec::FAMILY_NOT_SET:
      break;
  }
  check->Add("model",
             "expected a model family: give model.gpt2, model.llama, model.bert, model.resnet or "
             "model.vit");
}

}  // namespace milepost
