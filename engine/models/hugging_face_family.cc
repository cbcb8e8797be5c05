#include "engine/models/hugging_face_family.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace milepost::models {
namespace {

constexpr int64_t kGpt2EndOfText = 50256;

HfFamily Gpt2(const v1::Gpt2Spec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.gpt2.", name); };
  // GPT-2's own end of text, where the vocabulary holds it; no guess at others' tokens.
  const HfJson end = spec.vocabulary() > kGpt2EndOfText ? HfJson(kGpt2EndOfText) : HfJson(nullptr);
  return {.prefix = "transformer.",
          .fields = {
              {"architectures", "", HfJson::array({"GPT2LMHeadModel"}), nullptr, HfRule::kWrite},
              {"model_type", "", "gpt2", HfRequired()},
              {"n_layer", field("layers"), spec.layers(), 12},
              {"n_embd", field("width"), spec.width(), 768},
              {"n_head", field("heads"), spec.heads(), 12},
              {"n_positions", field("context"), spec.context(), 1024},
              // A larger one has rows that are new (state/resized_tensor.h).
              {"vocab_size", field("vocabulary"), spec.vocabulary(), 50257, HfRule::kAtMost},
              {"n_inner", field("width"), nullptr, nullptr, HfRule::kEqual, {4 * spec.width()}},
              {"activation_function",
               "",
               "gelu_new",
               "gelu_new",
               HfRule::kEqual,
               {"gelu_pytorch_tanh"}},
              {"layer_norm_epsilon", "", 1e-5, 1e-5},
              {"tie_word_embeddings", "", true, true},
              {"scale_attn_weights", "", true, true},
              {"scale_attn_by_inverse_layer_idx", "", false, false},
              {"add_cross_attention", "", false, false},
              {"embd_pdrop", "", spec.dropout(), 0.1, HfRule::kWrite},
              {"resid_pdrop", "", spec.dropout(), 0.1, HfRule::kWrite},
              {"attn_pdrop", "", 0.0, 0.1, HfRule::kWrite},
              {"initializer_range", "", 0.02, 0.02, HfRule::kWrite},
              {"bos_token_id", "", end, nullptr, HfRule::kWrite},
              {"eos_token_id", "", end, nullptr, HfRule::kWrite},
          }};
}

constexpr const char* kBertTypes[] = {"bert", "camembert", "roberta", "xlm-roberta"};

HfFamily DistilBert(const v1::BertSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.bert.", name); };
  return {
      .prefix = "distilbert.",
      .fields = {
          {"architectures", "", HfJson::array({"DistilBertForMaskedLM"}), nullptr, HfRule::kWrite},
          {"model_type", "", "distilbert", HfRequired()},
          {"n_layers", field("layers"), spec.layers(), 6},
          {"dim", field("width"), spec.width(), 768},
          {"n_heads", field("heads"), spec.heads(), 12},
          {"hidden_dim", field("hidden"), spec.hidden(), 3072},
          {"max_position_embeddings", field("context"), spec.context(), 512},
          {"vocab_size", field("vocabulary"), spec.vocabulary(), 30522, HfRule::kAtMost},
          {"activation", "", "gelu", "gelu"},
          {"tie_word_embeddings", "", true, true},
          // How positions begin, where no file has them.
          {"sinusoidal_pos_embds", "", false, false, HfRule::kWrite},
          {"dropout", "", spec.dropout(), 0.1, HfRule::kWrite},
          {"attention_dropout", "", 0.0, 0.1, HfRule::kWrite},
          {"initializer_range", "", 0.02, 0.02, HfRule::kWrite},
      }};
}

absl::StatusOr<HfFamily> Bert(const v1::BertSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.bert.", name); };
  if (spec.segments() == 0) {
    if (spec.norm_epsilon() == kDistilBertEpsilon) return DistilBert(spec);
    return absl::InvalidArgumentError(
        absl::StrCat("model.bert.norm_epsilon: a model without segments is a DistilBERT, and "
                     "transformers' has ",
                     kDistilBertEpsilon, ", not ", spec.norm_epsilon()));
  }
  return HfFamily{
      .prefix = "bert.",
      .fields = {
          {"architectures", "", HfJson::array({"BertForMaskedLM"}), nullptr, HfRule::kWrite},
          {"model_type",
           "",
           "bert",
           HfRequired(),
           HfRule::kEqual,
           {std::begin(kBertTypes), std::end(kBertTypes)}},
          {"num_hidden_layers", field("layers"), spec.layers(), 12},
          {"hidden_size", field("width"), spec.width(), 768},
          {"num_attention_heads", field("heads"), spec.heads(), 12},
          {"intermediate_size", field("hidden"), spec.hidden(), 3072},
          {"max_position_embeddings", field("context"), spec.context(), 512},
          {"type_vocab_size", field("segments"), spec.segments(), 2},
          {"vocab_size", field("vocabulary"), spec.vocabulary(), 30522, HfRule::kAtMost},
          {"hidden_act", "", "gelu", "gelu"},
          {"layer_norm_eps", field("norm_epsilon"), spec.norm_epsilon(), 1e-12},
          {"position_embedding_type", "", "absolute", "absolute"},
          {"is_decoder", "", false, false},
          {"tie_word_embeddings", "", true, true},
          {"roberta.pad_token_id", "", kRobertaPositions - 1, kRobertaPositions - 1, HfRule::kRead},
          {"hidden_dropout_prob", "", spec.dropout(), 0.1, HfRule::kWrite},
          {"attention_probs_dropout_prob", "", 0.0, 0.1, HfRule::kWrite},
          {"initializer_range", "", 0.02, 0.02, HfRule::kWrite},
      }};
}

HfFamily ResNet(const v1::ResNetSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.resnet.", name); };
  HfJson depths = HfJson::array(), sizes = HfJson::array(), names = HfJson::array({"stem"});
  for (int i = 0; i < spec.stages_size(); ++i) {
    depths.push_back(spec.stages(i).layers());
    sizes.push_back((spec.width() << i) * (spec.bottleneck() ? 4 : 1));
    names.push_back(absl::StrCat("stage", i + 1));
  }
  return {.prefix = "resnet.",
          .fields = {
              {"architectures", "", HfJson::array({"ResNetForImageClassification"}), nullptr,
               HfRule::kWrite},
              {"model_type", "", "resnet", HfRequired()},
              {"num_channels", "", 3, 3},
              {"embedding_size", field("width"), spec.width(), 64},
              {"hidden_sizes", field("width"), sizes, HfJson::array({256, 512, 1024, 2048})},
              {"depths", field("stages"), depths, HfJson::array({3, 4, 6, 3})},
              {"layer_type", field("bottleneck"), spec.bottleneck() ? "bottleneck" : "basic",
               "bottleneck"},
              {"hidden_act", "", "relu", "relu"},
              {"downsample_in_first_stage", "", false, false},
              {"downsample_in_bottleneck", "", false, false},
              {"num_labels", field("classes"), spec.classes(), 2},
              {"stage_names", "", names, nullptr, HfRule::kWrite},
          }};
}

HfFamily Vit(const v1::VitSpec& spec) {
  const auto field = [](absl::string_view name) { return absl::StrCat("model.vit.", name); };
  return {.prefix = "vit.",
          .fields = {
              {"architectures", "", HfJson::array({"ViTForImageClassification"}), nullptr,
               HfRule::kWrite},
              {"model_type", "", "vit", HfRequired()},
              {"num_hidden_layers", field("layers"), spec.layers(), 12},
              {"hidden_size", field("width"), spec.width(), 768},
              {"num_attention_heads", field("heads"), spec.heads(), 12},
              {"intermediate_size", field("hidden"), spec.hidden(), 3072},
              {"num_labels", field("classes"), spec.classes(), 2},
              {"image_size", field("image_size"), spec.image_size(), 224},
              {"patch_size", field("patch_size"), spec.patch_size(), 16},
              {"num_channels", "", 3, 3},
              {"qkv_bias", "", true, true},
              {"hidden_act", "", "gelu", "gelu"},
              {"layer_norm_eps", field("norm_epsilon"), spec.norm_epsilon(), 1e-12},
              {"hidden_dropout_prob", "", spec.dropout(), 0.0, HfRule::kWrite},
              {"attention_probs_dropout_prob", "", 0.0, 0.0, HfRule::kWrite},
              {"initializer_range", "", 0.02, 0.02, HfRule::kWrite},
          }};
}

}  // namespace

std::string HfNeeds(const HfJson& model_type) {
  if (model_type == HfJson("distilbert")) return "model.bert.segments: 0";
  for (const char* type : kBertTypes) {
    if (model_type == HfJson(type)) return "model.bert.segments of at least 1";
  }
  return HfLlamaNeeds(model_type);
}

absl::StatusOr<HfFamily> HfFamilyOf(const v1::ModelSpec& spec) {
  switch (spec.family_case()) {
    case v1::ModelSpec::kGpt2:
      return Gpt2(spec.gpt2());
    case v1::ModelSpec::kLlama:
      return HfLlamaFamily(spec.llama());
    case v1::ModelSpec::kBert:
      return Bert(spec.bert());
    case v1::ModelSpec::kResnet:
      return ResNet(spec.resnet());
    case v1::ModelSpec::kVit:
      return Vit(spec.vit());
    default:
      return absl::InvalidArgumentError(
          "model: this family has no Hugging Face form; gpt2, llama, bert, resnet and vit have "
          "one");
  }
}

}  // namespace milepost::models
