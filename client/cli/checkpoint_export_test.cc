#include "client/cli/checkpoint_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/tokenizer_folder.h"
#include "common/checksum.h"
#include "common/spec/parse.h"
#include "engine/data/fingerprint.h"
#include "engine/models/hugging_face.h"
#include "engine/models/model.h"
#include "engine/state/half.h"
#include "engine/state/safetensors.h"
#include "engine/state/safetensors_writer.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kModel[] = "gpt2: {layers: 1, width: 8, heads: 2, context: 4, vocabulary: 16}\n";

float ValueOf(int tensor, int64_t element) {
  return static_cast<float>(tensor) + static_cast<float>(element) / 7;
}

class CheckpointExportTest : public testing::Test {
 protected:
  CheckpointExportTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_export_XXXXXX");
    folder_ = mkdtemp(pattern.data());
    manifest_.mutable_checkpoint()->set_name("checkpoints/4");
    manifest_.set_model_yaml(kModel);
    Add("transformer.wte.weight", "master", {16, 8});
    Add("transformer.wte.weight", "m", {16, 8});
    Add("transformer.h.0.ln_1.bias", "master", {8});
    Add("transformer.h.0.ln_1.bias", "v", {8});
  }
  ~CheckpointExportTest() override { fs::remove_all(folder_); }

  void Add(const char* name, const char* kind, std::vector<int64_t> shape) {
    v1::TensorInfo& info = *manifest_.add_tensors();
    info.set_name(name);
    info.set_kind(kind);
    info.set_dtype("F32");
    for (const int64_t dimension : shape) info.add_shape(dimension);
  }

  static v1::Chunk ChunkOf(int tensor, int64_t begin, int64_t end) {
    v1::Chunk chunk;
    chunk.set_tensor(tensor);
    chunk.set_begin(begin);
    chunk.set_end(end);
    for (int64_t i = begin; i < end; ++i) {
      const float value = ValueOf(tensor, i);
      chunk.mutable_data()->append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    chunk.set_xxh3(Xxh3(chunk.data()));
    return chunk;
  }

  // Answers with these chunks and records what was asked for.
  ChunkReader Reader(std::vector<v1::Chunk> chunks) {
    return [this, chunks](const v1::ReadChunksRequest& request,
                          const std::function<bool(const v1::Chunk&)>& on_chunk) {
      request_ = request;
      for (const v1::Chunk& chunk : chunks) {
        if (!on_chunk(chunk)) break;
      }
      return absl::OkStatus();
    };
  }
  // Out of order, cut anywhere, one of them twice, as after a lost stream.
  std::vector<v1::Chunk> Good() const {
    return {ChunkOf(2, 0, 8), ChunkOf(0, 50, 128), ChunkOf(0, 0, 50), ChunkOf(2, 0, 8)};
  }

  std::string Out() const { return folder_ + "/out"; }
  void ExpectNothingLeft() const { EXPECT_TRUE(fs::is_empty(folder_)); }

  std::string folder_;
  v1::CheckpointManifest manifest_;
  v1::ReadChunksRequest request_;
};

TEST_F(CheckpointExportTest, WritesTheMastersAndTheConfig) {
  const auto report = ExportCheckpoint(manifest_, Reader(Good()), {.folder = Out() + "/"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors, 2);
  EXPECT_EQ(report->bytes, (128 + 8) * 4);
  EXPECT_EQ(report->files, 1);
  ASSERT_EQ(request_.ranges_size(), 2);
  EXPECT_EQ(request_.name(), "checkpoints/4");
  EXPECT_EQ(request_.ranges(1).tensor(), 2);
  EXPECT_EQ(request_.ranges(1).end(), 8);

  const auto weights = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->tensors().size(), 2);
  const auto* wte = (*weights)->Find("transformer.wte.weight");
  ASSERT_NE(wte, nullptr);
  EXPECT_EQ(wte->tensor->shape, (std::vector<int64_t>{16, 8}));
  std::vector<float> values(128);
  ASSERT_TRUE(wte->file->ReadF32(*wte->tensor, 0, 128, values.data()).ok());
  for (int64_t i = 0; i < 128; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], ValueOf(0, i));

  std::ifstream config(Out() + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  EXPECT_THAT(text, HasSubstr("\"n_embd\": 8"));
  EXPECT_THAT(text, HasSubstr("float32"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing beside it";
}

// Of parameters without one, as those that were frozen, the parameter.
TEST_F(CheckpointExportTest, WritesTheAveragesWhereThereAreSome) {
  Add("transformer.wte.weight", "ema", {16, 8});
  for (const bool trained : {false, true}) {
    const std::string folder = absl::StrCat(Out(), trained);
    const int source = trained ? 0 : 4;
    const auto report =
        ExportCheckpoint(manifest_, Reader({ChunkOf(2, 0, 8), ChunkOf(source, 0, 128)}),
                         {.folder = folder, .trained_weights = trained});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->tensors, 2);
    const auto weights = state::SafetensorsFolder::Open(folder);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const auto* wte = (*weights)->Find("transformer.wte.weight");
    ASSERT_NE(wte, nullptr);
    std::vector<float> values(128);
    ASSERT_TRUE(wte->file->ReadF32(*wte->tensor, 0, 128, values.data()).ok());
    EXPECT_EQ(values[100], ValueOf(source, 100));
  }
}

// A model of one layer with adapters of rank 2 at attention's first and at the MLP's second layer.
class AdapterExportTest : public CheckpointExportTest {
 protected:
  static constexpr char kLora[] =
      "gpt2: {layers: 1, width: 8, heads: 2, context: 4, vocabulary: 16}\n"
      "lora: {rank: 2, alpha: 3, targets: [c_attn, mlp.c_proj], also_train: [ln_f.bias]}\n";

  AdapterExportTest() {
    manifest_.clear_tensors();
    manifest_.set_model_yaml(kLora);
    for (const auto& [layer, in, out] : {std::tuple("attn.c_attn", 8, 24), {"mlp.c_proj", 32, 8}}) {
      Add(absl::StrCat("transformer.h.0.", layer, ".lora_A.weight").c_str(), "master", {2, in});
      Add(absl::StrCat("transformer.h.0.", layer, ".lora_B.weight").c_str(), "master", {out, 2});
    }
    Add("transformer.ln_f.bias", "master", {8});
    for (int i = 0; i < manifest_.tensors_size(); ++i) {
      int64_t elements = 1;
      for (const int64_t dimension : manifest_.tensors(i).shape()) elements *= dimension;
      chunks_.push_back(ChunkOf(i, 0, elements));
    }
  }

  // Every parameter by a formula; returns the folder.
  std::string WriteBase() {
    v1::ModelSpec model;
    EXPECT_TRUE(ParseYamlMessage(kModel, "model", &model).ok());
    const std::string base = folder_ + "/base";
    fs::create_directory(base);
    std::ofstream(base + "/config.json") << *models::HfConfig(model, "float32");
    const auto graph = models::BuildModel(model, {.mode = models::Mode::kEvaluation});
    EXPECT_TRUE(graph.ok()) << graph.status();
    std::vector<state::SafetensorsTensor> tensors;
    for (const graph::Parameter& p : graph->parameters) {
      const graph::Value& value = graph->values[p.value];
      tensors.push_back({value.name, "F32", {value.shape.begin(), value.shape.end()}});
    }
    auto writer = state::SafetensorsWriter::Create(base, tensors);
    EXPECT_TRUE(writer.ok()) << writer.status();
    std::vector<data::TensorBytes> prints;
    std::vector<std::string> all;
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::string bytes;
      for (int64_t e = 0; e < graph::Elements(graph->values[graph->parameters[i].value].shape);
           ++e) {
        const float value = ValueOf(-static_cast<int>(i), e);
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      EXPECT_TRUE((*writer)->Write(i, 0, bytes).ok());
      all.push_back(std::move(bytes));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name != "transformer.ln_f.bias") {
        prints.push_back({tensors[i].name, "F32", all[i]});
      }
    }
    manifest_.mutable_state()->set_base(data::FingerprintOf(prints));
    EXPECT_TRUE((*writer)->Finish().ok());
    return base;
  }

  static std::vector<float> Read(const state::SafetensorsFolder& folder, const std::string& name) {
    const auto* place = folder.Find(name);
    EXPECT_NE(place, nullptr) << name;
    if (place == nullptr) return {};
    int64_t elements = 1;
    for (const int64_t dimension : place->tensor->shape) elements *= dimension;
    std::vector<float> values(static_cast<size_t>(elements));
    EXPECT_TRUE(place->file->ReadF32(*place->tensor, 0, elements, values.data()).ok());
    return values;
  }

  std::vector<v1::Chunk> chunks_;
};

TEST_F(AdapterExportTest, WritesThemAsPeftDoes) {
  const auto report =
      ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = "/models/tiny"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors, 5);
  EXPECT_EQ(report->others, "adapter_config.json");
  const auto file = state::SafetensorsFile::Open(Out() + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto* b = (*file)->Find("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{24, 2}));
  EXPECT_NE((*file)->Find("base_model.model.transformer.ln_f.bias"), nullptr);
  std::ifstream config(Out() + "/adapter_config.json");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  for (const char* line :
       {"\"base_model_name_or_path\": \"/models/tiny\"", "\"fan_in_fan_out\": true",
        "\"lora_alpha\": 3.0", "\"r\": 2", "\"peft_type\": \"LORA\"", "\"use_rslora\": false",
        // attn.c_proj has none.
        "\"target_modules\": [\n    \"c_attn\",\n    \"transformer.h.0.mlp.c_proj\"\n  ]",
        "\"modules_to_save\": [\n    \"transformer.ln_f\"\n  ]"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// A folder whose layers have other names than what was trained.
TEST_F(AdapterExportTest, OfAConvertedFolderTheyAreRefused) {
  const std::string base = WriteBase();
  std::ofstream(base + "/config.json") << R"({"model_type": "roberta"})";
  const auto report = ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = base});
  EXPECT_TRUE(absl::IsFailedPrecondition(report.status())) << report.status();
  EXPECT_THAT(report.status().message(), HasSubstr("the adapters fit no roberta"));
  EXPECT_FALSE(fs::exists(Out()));
}

TEST_F(AdapterExportTest, AddsThemToWhatTheyAdapt) {
  const std::string base = WriteBase();
  const auto report =
      ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = base, .merge = true});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors, 16);
  const auto from = state::SafetensorsFolder::Open(base);
  const auto to = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(from.ok() && to.ok()) << to.status();
  EXPECT_EQ((*to)->tensors().size(), 16);
  int changed = 0;
  for (const auto& [name, place] : (*to)->tensors()) {
    const std::vector<float> before = Read(**from, name), after = Read(**to, name);
    changed += before == after ? 0 : 1;
  }
  EXPECT_EQ(changed, 3);
  // W[in, out] + 3/2 (B A)^T, of the MLP's second layer.
  const std::vector<float> before = Read(**from, "transformer.h.0.mlp.c_proj.weight");
  const std::vector<float> after = Read(**to, "transformer.h.0.mlp.c_proj.weight");
  for (int64_t i = 0; i < 32; ++i) {
    for (int64_t o = 0; o < 8; ++o) {
      double sum = before[static_cast<size_t>(i * 8 + o)];
      for (int64_t k = 0; k < 2; ++k) {
        sum += 1.5 * double{ValueOf(2, k * 32 + i)} * double{ValueOf(3, o * 2 + k)};
      }
      EXPECT_NEAR(after[static_cast<size_t>(i * 8 + o)], sum, 1e-5 * std::abs(sum));
    }
  }
  EXPECT_EQ(Read(**to, "transformer.ln_f.bias")[3], ValueOf(4, 3));
  EXPECT_FALSE(fs::exists(Out() + "/adapters"));
}

// With magnitudes of both layers.
class DoraExportTest : public AdapterExportTest {
 protected:
  DoraExportTest() {
    manifest_.set_model_yaml(absl::StrReplaceAll(kLora, {{"alpha: 3", "alpha: 3, dora: true"}}));
    for (const auto& [layer, out] : {std::pair("attn.c_attn", 24), {"mlp.c_proj", 8}}) {
      Add(absl::StrCat("transformer.h.0.", layer, ".lora_magnitude_change").c_str(), "master",
          {out});
      chunks_.push_back(ChunkOf(manifest_.tensors_size() - 1, 0, out));
    }
  }

  // Of the MLP's second layer, W[in, out] with its adapter; before it for `adapted` false.
  static double Norm(const std::vector<float>& weight, int64_t output, bool adapted) {
    double squares = 0;
    for (int64_t i = 0; i < 32; ++i) {
      double sum = weight[static_cast<size_t>(i * 8 + output)];
      for (int64_t k = 0; k < 2 && adapted; ++k) {
        sum += 1.5 * double{ValueOf(2, k * 32 + i)} * double{ValueOf(3, output * 2 + k)};
      }
      squares += sum * sum;
    }
    return std::sqrt(squares);
  }
  static constexpr int kChange = 6;  // of that layer, among the manifest's tensors
};

TEST_F(DoraExportTest, WritesWholeMagnitudes) {
  const std::string base = WriteBase();
  const auto report = ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = base});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors, 7);
  const auto from = state::SafetensorsFolder::Open(base);
  const auto file = state::SafetensorsFile::Open(Out() + "/adapter_model.safetensors");
  ASSERT_TRUE(from.ok() && file.ok()) << file.status();
  const auto* magnitudes =
      (*file)->Find("base_model.model.transformer.h.0.mlp.c_proj.lora_magnitude_vector");
  ASSERT_NE(magnitudes, nullptr);
  std::vector<float> values(8);
  ASSERT_TRUE((*file)->ReadF32(*magnitudes, 0, 8, values.data()).ok());
  const std::vector<float> weight = Read(**from, "transformer.h.0.mlp.c_proj.weight");
  for (int64_t o = 0; o < 8; ++o) {
    const double want = Norm(weight, o, false) + ValueOf(kChange, o);
    EXPECT_NEAR(values[static_cast<size_t>(o)], want, 1e-6 * want);
  }
  std::ifstream config(Out() + "/adapter_config.json");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  EXPECT_THAT(text, HasSubstr("\"use_dora\": true"));
}

// What was trained is less than bf16 can hold beside a norm.
TEST_F(DoraExportTest, MagnitudesStayInFp32) {
  const auto report = ExportCheckpoint(
      manifest_, Reader(chunks_), {.folder = Out(), .dtype = DType::kBf16, .base = WriteBase()});
  ASSERT_TRUE(report.ok()) << report.status();
  const auto file = state::SafetensorsFile::Open(Out() + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string layer = "base_model.model.transformer.h.0.mlp.c_proj.";
  EXPECT_EQ((*file)->Find(layer + "lora_magnitude_vector")->dtype, "F32");
  EXPECT_EQ((*file)->Find(layer + "lora_A.weight")->dtype, "BF16");
}

TEST_F(DoraExportTest, GivesMergedWeightsTheirMagnitudes) {
  const std::string base = WriteBase();
  const auto report =
      ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = base, .merge = true});
  ASSERT_TRUE(report.ok()) << report.status();
  const auto from = state::SafetensorsFolder::Open(base);
  const auto to = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(from.ok() && to.ok()) << to.status();
  EXPECT_EQ((*to)->tensors().size(), 16);
  const std::vector<float> before = Read(**from, "transformer.h.0.mlp.c_proj.weight");
  const std::vector<float> after = Read(**to, "transformer.h.0.mlp.c_proj.weight");
  for (int64_t o = 0; o < 8; ++o) {
    // The adapter gives it a direction, and the magnitude its length.
    const double magnitude = Norm(before, o, false) + ValueOf(kChange, o);
    EXPECT_NEAR(Norm(after, o, false), std::abs(magnitude), 1e-5 * std::abs(magnitude));
    for (int64_t i = 0; i < 32; ++i) {
      double sum = before[static_cast<size_t>(i * 8 + o)];
      for (int64_t k = 0; k < 2; ++k) {
        sum += 1.5 * double{ValueOf(2, k * 32 + i)} * double{ValueOf(3, o * 2 + k)};
      }
      const double want = sum * magnitude / Norm(before, o, true);
      EXPECT_NEAR(after[static_cast<size_t>(i * 8 + o)], want, 1e-5 * (1 + std::abs(want)));
    }
  }
}

TEST_F(DoraExportTest, NeedsTheModelThatWasAdapted) {
  const auto problem = [&](const std::string& base) {
    return ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = base}).status();
  };
  EXPECT_THAT(problem("").message(), HasSubstr("name its folder with --base"));
  const std::string base = WriteBase();
  manifest_.mutable_state()->set_base(5);
  EXPECT_EQ(problem(base).code(), absl::StatusCode::kFailedPrecondition);
  manifest_.mutable_state()->set_base(0);
  manifest_.mutable_tensors(5)->set_name("transformer.h.7.attn.c_attn.lora_magnitude_change");
  EXPECT_EQ(problem(base).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(Out()));
}

// What is merged has the vocabulary that was trained, with the rows that it began with.
TEST_F(AdapterExportTest, AddsThemToALargerVocabulary) {
  const std::string base = WriteBase();
  manifest_.set_model_yaml(absl::StrReplaceAll(kLora, {{"vocabulary: 16", "vocabulary: 19"}}));
  const auto report =
      ExportCheckpoint(manifest_, Reader(chunks_), {.folder = Out(), .base = base, .merge = true});
  ASSERT_TRUE(report.ok()) << report.status();
  const auto from = state::SafetensorsFolder::Open(base);
  const auto to = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(from.ok() && to.ok()) << to.status();
  std::vector<float> want = Read(**from, "transformer.wte.weight");
  for (int row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 8; ++i) {
      double sum = 0;
      for (int64_t token = 0; token < 16; ++token) sum += want[token * 8 + i];
      want.push_back(static_cast<float>(sum / 16));
    }
  }
  EXPECT_EQ(Read(**to, "transformer.wte.weight"), want);
}

TEST_F(AdapterExportTest, RefusesToMergeWithAnythingElse) {
  const auto merge = [&](const std::string& base) {
    return ExportCheckpoint(manifest_, Reader(chunks_),
                            {.folder = Out(), .base = base, .merge = true})
        .status();
  };
  EXPECT_THAT(merge("").message(), HasSubstr("name its folder with --base"));
  EXPECT_THAT(merge(folder_ + "/none").message(), HasSubstr("/none"));
  const std::string base = WriteBase();
  manifest_.mutable_state()->set_base(5);
  EXPECT_EQ(merge(base).code(), absl::StatusCode::kFailedPrecondition);
  manifest_.set_model_yaml(kModel);
  EXPECT_THAT(merge(base).message(), HasSubstr("has no adapters"));
  EXPECT_FALSE(fs::exists(Out()));
}

TEST_F(CheckpointExportTest, CopiesATokenizer) {
  const std::string from = folder_ + "/from";
  fs::create_directory(from);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(absl::StrCat(from, "/", name)) << text;
  };
  const auto read = [&](const char* name) {
    std::ifstream file(absl::StrCat(Out(), "/", name));
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const ExportSettings settings = {.folder = Out(), .tokenizer = from};
  EXPECT_FALSE(HasTokenizer(from));
  EXPECT_THAT(ExportCheckpoint(manifest_, Reader(Good()), settings).status().message(),
              HasSubstr("from has no tokenizer"));
  write("tokenizer.json", "{}");
  EXPECT_TRUE(HasTokenizer(from));
  write("config.json", "[");
  EXPECT_THAT(ExportCheckpoint(manifest_, Reader(Good()), settings).status().message(),
              HasSubstr("from/config.json: not valid JSON"));
  EXPECT_FALSE(fs::exists(Out()));
  ExportSettings optional = settings;
  optional.folder = folder_ + "/without";
  optional.tokenizer_if_readable = true;
  const auto without = ExportCheckpoint(manifest_, Reader(Good()), optional);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->others, "config.json");
  EXPECT_THAT(without->tokenizer_problem, HasSubstr("not valid JSON"));
  write("config.json", R"({"eos_token_id": 3, "vocab_size": 99})");
  write("chat_template.jinja", "{{ x }}");
  write("generation_config.json", "{ }");
  write("model.safetensors", "not of a tokenizer");
  const auto report = ExportCheckpoint(manifest_, Reader(Good()), settings);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->others,
            "chat_template.jinja, config.json, generation_config.json, tokenizer.json");
  EXPECT_EQ(read("tokenizer.json"), "{}");
  EXPECT_EQ(read("chat_template.jinja"), "{{ x }}");
  EXPECT_THAT(read("config.json"), HasSubstr("\"eos_token_id\": 3"));
  EXPECT_THAT(read("config.json"), HasSubstr("\"vocab_size\": 16"));
}

TEST_F(CheckpointExportTest, RoundsToBf16InShards) {
  const auto report = ExportCheckpoint(
      manifest_, Reader(Good()), {.folder = Out(), .dtype = DType::kBf16, .max_shard_bytes = 100});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->files, 2);
  EXPECT_EQ(report->bytes, (128 + 8) * 2);
  const auto weights = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto* wte = (*weights)->Find("transformer.wte.weight");
  EXPECT_EQ(wte->tensor->dtype, "BF16");
  std::vector<float> values(128);
  ASSERT_TRUE(wte->file->ReadF32(*wte->tensor, 0, 128, values.data()).ok());
  for (int64_t i = 0; i < 128; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], state::Bf16ToF32(state::F32ToBf16(ValueOf(0, i))));
  }
}

TEST_F(CheckpointExportTest, RoundsToHalves) {
  const auto report =
      ExportCheckpoint(manifest_, Reader(Good()), {.folder = Out(), .dtype = DType::kF16});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->bytes, (128 + 8) * 2);
  const auto weights = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto* wte = (*weights)->Find("transformer.wte.weight");
  EXPECT_EQ(wte->tensor->dtype, "F16");
  std::vector<float> values(128);
  ASSERT_TRUE(wte->file->ReadF32(*wte->tensor, 0, 128, values.data()).ok());
  for (int64_t i = 0; i < 128; ++i) {
    const float value = values[static_cast<size_t>(i)];
    EXPECT_EQ(value, state::F16ToF32(state::F32ToF16(ValueOf(0, i))));
    EXPECT_NEAR(value, ValueOf(0, i), std::abs(ValueOf(0, i)) / 2048 + 1e-7);
  }
  std::ifstream config(Out() + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(config), {}};
  EXPECT_THAT(text, HasSubstr("float16"));
}

// A batch norm's: as they are, whatever the dtype of the parameters.
TEST_F(CheckpointExportTest, KeepsRunningStatistics) {
  Add("norm.running_mean", "statistic", {3});
  Add("norm.num_batches_tracked", "statistic", {});
  manifest_.mutable_tensors(5)->set_dtype("I64");
  v1::Chunk counter = ChunkOf(5, 0, 1);
  const int64_t batches = 1234567;
  counter.set_data(std::string(reinterpret_cast<const char*>(&batches), sizeof(batches)));
  counter.set_xxh3(Xxh3(counter.data()));
  std::vector<v1::Chunk> chunks = Good();
  chunks.insert(chunks.end(), {ChunkOf(4, 0, 3), counter});
  const auto report =
      ExportCheckpoint(manifest_, Reader(chunks), {.folder = Out(), .dtype = DType::kBf16});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->bytes, (128 + 8) * 2 + 3 * 4 + 8);
  const auto weights = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto* mean = (*weights)->Find("norm.running_mean");
  ASSERT_NE(mean, nullptr);
  float value = 0;
  ASSERT_TRUE(mean->file->ReadF32(*mean->tensor, 2, 3, &value).ok());
  EXPECT_EQ(value, ValueOf(4, 2));
  const auto* counted = (*weights)->Find("norm.num_batches_tracked");
  ASSERT_NE(counted, nullptr);
  EXPECT_EQ(counted->tensor->dtype, "I64");
  EXPECT_TRUE(counted->tensor->shape.empty());
  EXPECT_EQ(counted->file->Bytes(*counted->tensor), counter.data());
}

TEST_F(CheckpointExportTest, OfAScriptAllTensorsAndWhereTheyWere) {
  manifest_.clear_model_yaml();
  manifest_.clear_tensors();
  Add("model.weight", "tensor", {4});
  manifest_.mutable_tensors(0)->set_dtype("I32");
  const std::string text = R"({"structure": {"dict": []}})";
  const auto add_text = [&](const char* name, const char* kind) {
    Add(name, kind, {static_cast<int64_t>(text.size())});
    manifest_.mutable_tensors(manifest_.tensors_size() - 1)->set_dtype("U8");
  };
  add_text("milepost.structure", "structure");
  add_text("rank3.structure", "rank_structure");
  add_text("../../evil.structure", "rank_structure");  // a name is no path
  Add("rank3.own", "rank", {2});
  const auto read = [&](const v1::ReadChunksRequest& request,
                        const std::function<bool(const v1::Chunk&)>& on_chunk) {
    for (const v1::TensorRange& range : request.ranges()) {
      v1::Chunk chunk;
      if (manifest_.tensors(range.tensor()).dtype() == "U8") {
        chunk.set_tensor(range.tensor());
        chunk.set_end(range.end());
        chunk.set_data(text);
        chunk.set_xxh3(Xxh3(text));
      } else {
        chunk = ChunkOf(range.tensor(), 0, range.end());
      }
      EXPECT_TRUE(on_chunk(chunk));
    }
    return absl::OkStatus();
  };
  const auto report = ExportCheckpoint(manifest_, read, {.folder = Out(), .dtype = DType::kBf16});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors, 2);
  EXPECT_EQ(report->bytes, 4 * 4 + 2 * 4) << "as they are, whatever the dtype";
  EXPECT_EQ(report->others, "rank3.json, state.json");
  std::ifstream state(Out() + "/state.json");
  std::string line;
  std::getline(state, line);
  EXPECT_EQ(line, text);
  const auto weights = state::SafetensorsFolder::Open(Out());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_NE((*weights)->Find("model.weight"), nullptr);
  EXPECT_NE((*weights)->Find("rank3.own"), nullptr);
}

TEST_F(CheckpointExportTest, NeverTouchesWhatIsThere) {
  fs::create_directory(Out());
  std::ofstream(Out() + "/mine") << "x";
  absl::Status status = ExportCheckpoint(manifest_, Reader(Good()), {.folder = Out()}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("not an empty folder"));
  EXPECT_TRUE(fs::exists(Out() + "/mine"));
  fs::remove(Out() + "/mine");
  EXPECT_TRUE(ExportCheckpoint(manifest_, Reader(Good()), {.folder = Out()}).ok()) << "empty";
  fs::remove_all(Out());
  std::ofstream(Out()) << "a file";
  status = ExportCheckpoint(manifest_, Reader(Good()), {.folder = Out()}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_TRUE(absl::IsNotFound(
      ExportCheckpoint(manifest_, Reader(Good()), {.folder = folder_ + "/a/b"}).status()));
}

TEST_F(CheckpointExportTest, DamageLeavesNothingBehind) {
  auto flipped = Good();
  (*flipped[1].mutable_data())[5] ^= 1;
  auto missing = Good();
  missing.erase(missing.begin() + 1);
  auto unasked = Good();
  unasked[0] = ChunkOf(1, 0, 8);
  auto outside = Good();
  outside[0].set_begin(1);
  outside[0].set_end(9);
  const std::pair<std::vector<v1::Chunk>, const char*> cases[] = {
      {flipped, "wte.weight (master) [50, 128) does not have the checksum"},
      {missing, "elements of transformer.wte.weight from 50 on did not come"},
      {unasked, "a chunk that was not asked for (tensor 1 [0, 8))"},
      {outside, "a chunk that was not asked for (tensor 2 [1, 9))"},
  };
  for (const auto& [chunks, message] : cases) {
    const absl::Status status =
        ExportCheckpoint(manifest_, Reader(chunks), {.folder = Out()}).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    ExpectNothingLeft();
  }
  const ChunkReader away = [](const auto&, const auto&) { return absl::UnavailableError("away"); };
  EXPECT_TRUE(absl::IsUnavailable(ExportCheckpoint(manifest_, away, {.folder = Out()}).status()));
  manifest_.set_model_yaml("no_such_family: {}");
  EXPECT_FALSE(ExportCheckpoint(manifest_, Reader(Good()), {.folder = Out()}).ok());
  ExpectNothingLeft();
}

}  // namespace
}  // namespace milepost::client
