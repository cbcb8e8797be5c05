// Trains tiny models with further heads from the weights and on the data and labels that
// make_heads_curve.py gave PyTorch, and compares 20 steps: the weighted sum of the heads' losses,
// each of them, and the weights that come of it.
#include "absl/strings/str_cat.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class HeadsCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("heads_curve.json"); }

  // Of one case, which keeps the optimizer's settings.
  void Take(const char* name) {
    const json train = golden_["train"];
    golden_ = json(golden_["cases"][name]);
    golden_["train"] = train;
  }

  static int32_t Label(int64_t i, const json& head) {
    const auto named = static_cast<int64_t>(head["name"].get<std::string>().size());
    const int64_t classes = head["classes"];
    return (i + named) % 5 == 2 ? -1
                                : static_cast<int32_t>((i * i / 3 + i / 7 + classes) % classes);
  }

  // `labelled`: how many tokens or images there are.
  void AddHeads(int64_t labelled, v1::ModelSpec* model, v1::JobSpec* spec) const {
    model->set_head_weight(golden_["head_weight"]);
    for (const json& golden : golden_["heads"]) {
      v1::TaskHeadSpec& head = *model->add_heads();
      head.set_name(golden["name"].get<std::string>());
      head.set_classes(golden["classes"]);
      head.set_weight(golden["weight"]);
      std::string bytes;
      for (int64_t i = 0; i < labelled; ++i) {
        const int32_t label = Label(i, golden);
        bytes.append(reinterpret_cast<const char*>(&label), sizeof(label));
      }
      const std::string path = absl::StrCat(folder_, "/", head.name(), ".npy");
      runtime::WriteNpy(path, "<i4", absl::StrCat(labelled, ","), bytes);
      v1::LabelSource& labels = *spec->mutable_data()->add_labels();
      labels.set_head(head.name());
      labels.set_train(path);
    }
  }

  void ExpectGpt2(int stage, int64_t micro) {
    Take("gpt2");
    const json& golden = golden_["model"];
    WriteTokens(golden);
    v1::ModelSpec model = Gpt2Of(golden);
    v1::JobSpec spec;
    AddHeads(golden_["samples"].get<int64_t>() * model.gpt2().context() + 1, &model, &spec);
    ExpectTheCurve(Spec(model, stage, micro, spec), golden_, "ln_");
  }
};

TEST_F(HeadsCurve, Gpt2) { ExpectGpt2(0, 8); }

TEST_F(HeadsCurve, Gpt2AccumulatedOverMicroSteps) { ExpectGpt2(3, 2); }

// Documents, segments and padding, of which there are no labels.
TEST_F(HeadsCurve, PackedBert) {
  Take("bert");
  const json& golden = golden_["model"];
  const int64_t length = golden["context"];
  std::vector<uint32_t> tokens(length);
  for (int64_t i = 0; i < length; ++i) tokens[i] = i >= 44 ? 5 : Token(i, 60);
  auto writer = data::NpyWriter::Create(folder_ + "/train.npy", data::TokenType::kUint8);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ((*writer)->Append(tokens), absl::OkStatus());
  ASSERT_EQ((*writer)->Finish(), absl::OkStatus());
  v1::ModelSpec model;
  v1::BertSpec& bert = *model.mutable_bert();
  bert.set_layers(golden["layers"]);
  bert.set_width(golden["width"]);
  bert.set_heads(golden["heads"]);
  bert.set_hidden(golden["hidden"]);
  bert.set_context(length);
  bert.set_vocabulary(golden["vocabulary"]);
  bert.set_segments(golden["segments"]);
  bert.set_norm_epsilon(golden["norm_epsilon"]);
  v1::JobSpec spec;
  v1::DataSpec& data = *spec.mutable_data();
  data.set_segment_separator(golden_["data"]["segment_separator"]);
  data.set_document_separator(golden_["data"]["document_separator"]);
  data.set_padding(golden_["data"]["padding"]);
  v1::MaskingSpec& masking = *data.mutable_masking();
  masking.set_probability(golden_["masking"]["probability"]);
  masking.set_mask_token(golden_["masking"]["mask_token"]);
  for (const json& token : golden_["masking"]["special_tokens"]) masking.add_special_tokens(token);
  spec.mutable_train()->set_seed(golden_["seed"]);
  AddHeads(length, &model, &spec);
  ExpectTheCurve(Spec(model, 2, 4, spec), golden_, "norm");
}

TEST_F(HeadsCurve, ResNet) {
  Take("resnet");
  const json& golden = golden_["model"];
  v1::ModelSpec model;
  v1::ResNetSpec& resnet = *model.mutable_resnet();
  for (const int64_t layers : golden["stages"]) resnet.add_stages()->set_layers(layers);
  resnet.set_bottleneck(golden["bottleneck"]);
  resnet.set_width(golden["width"]);
  resnet.set_label_smoothing(golden["label_smoothing"]);
  resnet.set_image_size(golden_["image_size"]);
  resnet.set_classes(golden_["classes"]);
  WriteImages(golden_["samples"], resnet.image_size(), resnet.classes());
  v1::JobSpec spec;
  AddHeads(golden_["samples"], &model, &spec);
  ExpectTheCurve(Spec(model, 1, golden_["samples"], spec), golden_, "normalization");
}

}  // namespace
}  // namespace milepost
