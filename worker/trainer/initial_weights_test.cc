#include "worker/trainer/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/dtype/nf4.h"
#include "engine/models/hugging_face.h"
#include "engine/runtime/session/fill_interval.h"
#include "engine/runtime/session/parameter_store.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/half.h"
#include "engine/state/safetensors_writer.h"

namespace milepost::worker {
namespace {

using runtime::StateInterval;
using runtime::TinyJob;
using runtime::TrainingSession;
using testing::HasSubstr;

// All of a kind's tensors, whole, by name.
using Weights = std::map<std::string, std::vector<float>>;

Weights Gather(const v1::JobSpec& spec, const std::string& kind,
               const std::function<void(TrainingSession&)>& prepare) {
  Weights all;
  std::mutex mutex;
  runtime::RunRanks(spec, [&](int rank, TrainingSession& session) {
    prepare(session);
    ASSERT_EQ(session.PrepareSave(), absl::OkStatus());
    const std::lock_guard lock(mutex);
    for (const StateInterval& source : session.SaveSources()) {
      const v1::TensorInfo& tensor = session.state_tensors()[static_cast<size_t>(source.tensor)];
      if (tensor.kind() != kind) continue;
      int64_t elements = 1;
      for (const int64_t dimension : tensor.shape()) elements *= dimension;
      std::vector<float>& values = all[tensor.name()];
      values.resize(static_cast<size_t>(elements), NAN);
      if (tensor.dtype() == "BF16") {
        const auto* bits = reinterpret_cast<const uint16_t*>(source.data);
        std::transform(bits, bits + (source.end - source.begin), values.begin() + source.begin,
                       state::Bf16ToF32);
        continue;
      }
      std::memcpy(values.data() + source.begin, source.data,
                  static_cast<size_t>(source.end - source.begin) * sizeof(float));
    }
  });
  return all;
}

void Initialize(TrainingSession& session) {
  ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
}

// By arithmetic. Of what is below 65504.
float RoundToHalf(float value) {
  const int exponent = std::max(value == 0 ? -14 : std::ilogb(value), -14);
  const float unit = std::ldexp(1.0f, exponent - 10);
  return std::nearbyint(value / unit) * unit;
}

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

void WriteTensors(const std::string& folder, const std::vector<StoredTensor>& stored,
                  const std::string& dtype) {
  std::vector<state::SafetensorsTensor> tensors;
  for (const StoredTensor& tensor : stored) {
    tensors.push_back({.name = tensor.name, .dtype = dtype, .shape = tensor.shape});
  }
  auto writer = state::SafetensorsWriter::Create(folder, tensors, 20000);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t index = 0; index < stored.size(); ++index) {
    std::string bytes;
    for (const float value : stored[index].values) {
      const uint16_t half = state::F32ToF16(value);
      const uint16_t brain = state::F32ToBf16(value);
      const void* data = dtype == "F32"    ? static_cast<const void*>(&value)
                         : dtype == "BF16" ? static_cast<const void*>(&brain)
                                           : static_cast<const void*>(&half);
      bytes.append(static_cast<const char*>(data), dtype == "F32" ? 4 : 2);
    }
    ASSERT_TRUE((*writer)->Write(index, 0, bytes).ok());
  }
  ASSERT_GT((*writer)->files().size(), 1u);
  ASSERT_TRUE((*writer)->Finish().ok());
}

// The masters, by the names of the state.
std::vector<StoredTensor> Stored(const v1::JobSpec& spec, const Weights& weights) {
  std::vector<StoredTensor> stored;
  runtime::RunRanks(spec, [&](int rank, TrainingSession& session) {
    for (const v1::TensorInfo& info : session.state_tensors()) {
      if (rank != 0 || info.kind() != "master") continue;
      stored.push_back(
          {info.name(), {info.shape().begin(), info.shape().end()}, weights.at(info.name())});
    }
  });
  return stored;
}

// Writes the weights as an export would, in shards.
void WriteFolder(const std::string& folder, const v1::JobSpec& spec, const Weights& weights,
                 const std::string& dtype, const std::string& without_prefix = "") {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << *models::HfConfig(spec.model(), "float32");
  std::vector<StoredTensor> stored = Stored(spec, weights);
  for (StoredTensor& tensor : stored) {
    if (tensor.name.starts_with(without_prefix)) tensor.name.erase(0, without_prefix.size());
  }
  WriteTensors(folder, stored, dtype);
}

// The same as a Phi-3: queries, keys and values below each other, and so both halves of the MLP.
void WritePhi3(const std::string& folder, const v1::JobSpec& spec, const Weights& weights) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << absl::StrReplaceAll(
      *models::HfConfig(spec.model(), "float32"), {{"\"llama\"", "\"phi3\""}});
  std::vector<StoredTensor> fused;
  for (const StoredTensor& tensor : Stored(spec, weights)) {
    const models::HfPlace place = models::HfPlaces(spec.model(), tensor.name)[0];
    if (place.of == 0) {
      fused.push_back(tensor);
      continue;
    }
    const int64_t width = tensor.shape[1];
    if (place.begin == 0) {
      fused.push_back({place.tensor, {place.of, width}, {}});
      fused.back().values.resize(static_cast<size_t>(place.of * width), NAN);
    }
    ASSERT_EQ(fused.back().name, place.tensor);
    std::copy(tensor.values.begin(), tensor.values.end(),
              fused.back().values.begin() + place.begin * width);
  }
  WriteTensors(folder, fused, "F32");
}

absl::Status Load(const std::string& folder, const v1::JobSpec& spec, TrainingSession& session) {
  EXPECT_EQ(session.InitializeParameters(), absl::OkStatus());
  absl::Status status =
      ReadInitialWeights(folder, spec.model(), session.state_tensors(), session.RestoreTargets());
  if (!status.ok()) return status;
  return session.FinishRestore(session.trainer_state());
}

// Parameters that are their own masters are the files', and those of a fresh start those of one
// with masters, to the nearest bf16.
TEST(InitialWeightsTest, WithoutMastersTheyAreRounded) {
  const TinyJob job;
  v1::JobSpec from = job.Spec({.precision = v1::PRECISION_BF16, .seed = 11});
  Weights weights = Gather(from, "master", Initialize);
  const std::string folder = job.path("fp32");
  WriteFolder(folder, from, weights, "F32");
  for (auto& [name, values] : weights) {
    for (float& value : values) value = state::Bf16ToF32(state::F32ToBf16(value));
  }
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 3}}) {
    v1::JobSpec spec =
        job.Spec({.ranks = ranks, .stage = stage, .precision = v1::PRECISION_BF16, .seed = 7});
    spec.mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
    const auto load = [&](TrainingSession& session) {
      ASSERT_EQ(Load(folder, spec, session), absl::OkStatus());
    };
    EXPECT_EQ(Gather(spec, "master", load), weights) << ranks << " ranks, stage " << stage;
    spec.mutable_train()->set_seed(11);
    EXPECT_EQ(Gather(spec, "master", Initialize), weights) << ranks << " ranks, stage " << stage;
  }
}

// At every stage and world, of both families: the masters are the files', bit for bit, and training
// goes on from them as from the parameters that they were written from.
TEST(InitialWeightsTest, EveryShardGetsItsElements) {
  const TinyJob job;
  for (const bool llama : {false, true}) {
    v1::JobSpec from = job.Spec({.ranks = 1, .stage = 0, .seed = 11, .llama = llama});
    const Weights weights = Gather(from, "master", Initialize);
    const std::string folder = job.path(llama ? "llama" : "gpt2");
    WriteFolder(folder, from, weights, "F32", llama ? "" : "transformer.");
    struct Layout {
      int ranks, tensor, stage;
    };
    for (const auto& [ranks, tensor, stage] :
         {Layout{1, 1, 0}, Layout{2, 1, 1}, Layout{3, 1, 3}, Layout{4, 2, 2}}) {
      const v1::JobSpec spec = job.Spec({.ranks = ranks,
                                         .tensor = tensor,
                                         .stage = stage,
                                         .steps = 3,
                                         .seed = 7,
                                         .llama = llama});
      const auto load = [&](TrainingSession& session) {
        ASSERT_EQ(Load(folder, spec, session), absl::OkStatus());
      };
      EXPECT_EQ(Gather(spec, "master", load), weights) << ranks << " ranks, stage " << stage;
      for (const auto& [name, values] : Gather(spec, "v", load)) {
        EXPECT_THAT(values, testing::Each(0.0F)) << name;
      }
    }
  }
}

// Each shard is rows of rows.
TEST(InitialWeightsTest, RowsOfAPhi3) {
  const TinyJob job;
  const v1::JobSpec from = job.Spec({.ranks = 1, .stage = 0, .seed = 11, .llama = true});
  const Weights weights = Gather(from, "master", Initialize);
  const std::string folder = job.path("phi3");
  WritePhi3(folder, from, weights);
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {3, 3}}) {
    const v1::JobSpec spec = job.Spec({.ranks = ranks, .stage = stage, .seed = 7, .llama = true});
    const auto load = [&](TrainingSession& session) {
      ASSERT_EQ(Load(folder, spec, session), absl::OkStatus());
    };
    EXPECT_EQ(Gather(spec, "master", load), weights) << ranks << " ranks, stage " << stage;
  }
  std::vector<StoredTensor> short_of_a_row = {
      {"model.layers.0.self_attn.qkv_proj.weight", {3, 4}, std::vector<float>(12)},
      {"model.embed_tokens.weight", {6000, 1}, std::vector<float>(6000)}};
  std::filesystem::create_directories(folder + "x");
  WriteTensors(folder + "x", short_of_a_row, "F32");
  v1::TensorInfo query;
  query.set_name("model.layers.0.self_attn.q_proj.weight");
  query.set_kind("master");
  std::filesystem::copy(folder + "/config.json", folder + "x/config.json");
  EXPECT_THAT(InitialWeights::Open(folder + "x", from.model(), {query}).status().message(),
              HasSubstr("holds no tensor model.layers.0.self_attn.qkv_proj.weight of "));
}

TEST(InitialWeightsTest, ComputesWithWhatItRead) {
  const TinyJob job;
  const v1::JobSpec from = job.Spec({.ranks = 1, .stage = 0, .seed = 11});
  WriteFolder(job.path("hf"), from, Gather(from, "master", Initialize), "F32");
  const auto loss = [&](const v1::JobSpec& spec,
                        const std::function<void(TrainingSession&)>& prepare) {
    double loss = 0;
    runtime::RunRanks(spec, [&](int rank, TrainingSession& session) {
      prepare(session);
      const auto report = session.Evaluate();
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) loss = report->loss;
    });
    return loss;
  };
  const double expected = loss(from, Initialize);
  for (const int stage : {1, 3}) {
    const v1::JobSpec spec = job.Spec({.ranks = 2, .stage = stage, .seed = 7});
    EXPECT_NE(loss(spec, Initialize), expected) << "another seed, other parameters";
    EXPECT_NEAR(loss(spec,
                     [&](TrainingSession& session) {
                       ASSERT_EQ(Load(job.path("hf"), spec, session), absl::OkStatus());
                     }),
                expected, 1e-6 * expected);
  }
}

// What adapters adapt: it is read apart from the state, of which the folder has nothing, and has a
// fingerprint of its own.
TEST(InitialWeightsTest, WhatAdaptersAdapt) {
  const TinyJob job;
  const v1::JobSpec whole = job.Spec({.ranks = 1, .stage = 0, .seed = 11});
  const Weights weights = Gather(whole, "master", Initialize);
  WriteFolder(job.path("hf"), whole, weights, "F32");
  Weights other = weights;
  other.at("transformer.wpe.weight").back() += 1;
  WriteFolder(job.path("other"), whole, other, "F32");
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 3}}) {
    const v1::JobSpec spec =
        job.Spec({.ranks = ranks, .stage = stage, .seed = 7, .lora = 2, .dora = ranks > 1});
    Weights read;
    std::mutex mutex;
    runtime::RunRanks(spec, [&](int, TrainingSession& session) {
      const std::vector<v1::TensorInfo>& tensors = session.base_tensors();
      const auto base = InitialWeights::Open(job.path("hf"), spec.model(), tensors);
      ASSERT_TRUE(base.ok()) << base.status();
      ASSERT_EQ(base->Read(session.BaseTargets(0)), absl::OkStatus());
      const auto other = InitialWeights::Open(job.path("other"), spec.model(), tensors);
      ASSERT_TRUE(other.ok()) << other.status();
      EXPECT_NE(other->Fingerprint(), base->Fingerprint());
      const std::lock_guard lock(mutex);
      for (const StateInterval& i : session.BaseTargets(0)) {
        std::vector<float>& values = read[tensors[i.tensor].name()];
        values.resize(weights.at(tensors[i.tensor].name()).size());
        std::memcpy(values.data() + i.begin, i.data, static_cast<size_t>(i.end - i.begin) * 4);
      }
    });
    EXPECT_EQ(read, weights) << ranks << " ranks, stage " << stage;
    // Adapters are as they begin.
    const auto load = [&](TrainingSession& session) {
      ASSERT_EQ(Load(job.path("hf"), spec, session), absl::OkStatus());
    };
    EXPECT_EQ(Gather(spec, "master", load), Gather(spec, "master", Initialize));
  }
}

// In 4 bits, whole or by shards: what the whole tensor is packed to.
TEST(InitialWeightsTest, WhatAdaptersAdaptIn4Bits) {
  const TinyJob job;
  const v1::JobSpec whole = job.Spec({.ranks = 1, .stage = 0, .seed = 11});
  const Weights weights = Gather(whole, "master", Initialize);
  WriteFolder(job.path("hf"), whole, weights, "F32");
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 3}}) {
    const v1::JobSpec spec =
        job.Spec({.ranks = ranks, .stage = stage, .seed = 7, .lora = 2, .nf4 = true});
    std::map<std::string, std::vector<char>> read, wanted;
    std::mutex mutex;
    runtime::RunRanks(spec, [&](int, TrainingSession& session) {
      const std::vector<v1::TensorInfo>& tensors = session.base_tensors();
      const auto base = InitialWeights::Open(job.path("hf"), spec.model(), tensors);
      ASSERT_TRUE(base.ok()) << base.status();
      ASSERT_EQ(base->Read(session.BaseTargets(0)), absl::OkStatus());
      const std::lock_guard lock(mutex);
      for (const StateInterval& i : session.BaseTargets(0)) {
        const v1::TensorInfo& tensor = tensors[static_cast<size_t>(i.tensor)];
        if (tensor.dtype() != runtime::kPackedDType) continue;
        const std::vector<float>& values = weights.at(tensor.name());
        std::vector<char>&bytes = read[tensor.name()], &whole = wanted[tensor.name()];
        const int64_t size = Nf4Bytes(static_cast<int64_t>(values.size()));
        bytes.resize(static_cast<size_t>(size));
        whole.resize(static_cast<size_t>(size));
        std::memcpy(bytes.data() + i.begin, i.data, static_cast<size_t>(i.end - i.begin));
        const auto from = [&](int64_t begin, int64_t end, float* at) {
          std::copy(values.begin() + begin, values.begin() + end, at);
          return absl::OkStatus();
        };
        const StateInterval all = {
            .tensor = i.tensor, .begin = 0, .end = size, .data = whole.data()};
        ASSERT_EQ(runtime::FillInterval(tensor, all, from), absl::OkStatus());
      }
    });
    EXPECT_EQ(read.size(), 8U);  // of two layers
    EXPECT_EQ(read, wanted) << ranks << " ranks, stage " << stage;
  }
}

// A vocabulary of five tokens more: their rows are the mean of the others, on whichever rank.
TEST(InitialWeightsTest, ALargerVocabularyHasTheMeanRows) {
  const TinyJob job;
  const auto spec_of = [&](int ranks, int stage, int64_t tokens) {
    v1::JobSpec spec = job.Spec({.ranks = ranks, .stage = stage, .llama = true});
    spec.mutable_model()->mutable_llama()->set_vocabulary(TinyJob::kVocabulary + tokens);
    return spec;
  };
  const v1::JobSpec whole = spec_of(1, 0, 0);
  Weights weights = Gather(whole, "master", Initialize);
  WriteFolder(job.path("hf"), whole, weights, "F32");
  const int64_t width = whole.model().llama().width();
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    std::vector<float>& table = weights.at(name);
    for (int64_t i = 0; i < 5 * width; ++i) {
      double sum = 0;
      for (int64_t row = 0; row < TinyJob::kVocabulary; ++row)
        sum += table[row * width + i % width];
      table.push_back(static_cast<float>(sum / TinyJob::kVocabulary));
    }
  }
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 3}}) {
    const v1::JobSpec spec = spec_of(ranks, stage, 5);
    const auto load = [&](TrainingSession& session) {
      ASSERT_EQ(Load(job.path("hf"), spec, session), absl::OkStatus());
    };
    EXPECT_EQ(Gather(spec, "master", load), weights) << ranks << " ranks, stage " << stage;
  }
  const v1::JobSpec smaller = spec_of(1, 0, -1);
  runtime::RunRanks(smaller, [&](int, TrainingSession& session) {
    EXPECT_THAT(std::string(Load(job.path("hf"), smaller, session).message()),
                HasSubstr("model.llama.vocabulary needs at most"));
  });
}

TEST(InitialWeightsTest, WidensHalves) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 1});
  const Weights weights = Gather(spec, "master", Initialize);
  for (const std::string dtype : {"BF16", "F16"}) {
    WriteFolder(job.path(dtype), spec, weights, dtype);
    const Weights read = Gather(spec, "master", [&](TrainingSession& session) {
      ASSERT_EQ(Load(job.path(dtype), spec, session), absl::OkStatus());
    });
    for (const auto& [name, values] : weights) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float expected =
            dtype == "F16" ? RoundToHalf(values[i]) : state::Bf16ToF32(state::F32ToBf16(values[i]));
        ASSERT_EQ(read.at(name)[i], expected) << name << " " << i;
      }
    }
  }
}

TEST(InitialWeightsTest, NewHeadsStartAnew) {
  const TinyJob job;
  const v1::JobSpec trunk = job.Spec({.ranks = 1, .stage = 0, .seed = 11});
  const v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 3, .seed = 3, .heads = true});
  const Weights stored = Gather(trunk, "master", Initialize);
  const Weights fresh = Gather(spec, "master", Initialize);
  WriteFolder(job.path("hf"), trunk, stored, "F32");
  const Weights read = Gather(spec, "master", [&](TrainingSession& session) {
    ASSERT_EQ(Load(job.path("hf"), spec, session), absl::OkStatus());
  });
  EXPECT_EQ(read.size(), stored.size() + 4);
  for (const auto& [name, values] : read) {
    EXPECT_EQ(values, stored.contains(name) ? stored.at(name) : fresh.at(name)) << name;
  }
  // A folder that has a head brings it.
  WriteFolder(job.path("again"), spec, read, "F32");
  const v1::JobSpec other = job.Spec({.ranks = 2, .stage = 1, .seed = 5, .heads = true});
  EXPECT_EQ(Gather(other, "master",
                   [&](TrainingSession& session) {
                     ASSERT_EQ(Load(job.path("again"), other, session), absl::OkStatus());
                   }),
            read);
}

// It would train to the end, each loss being no number.
TEST(InitialWeightsTest, ValuesThatAreNoNumbersAreRefused) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 1, .stage = 0});
  Weights weights = Gather(spec, "master", Initialize);
  auto& [name, values] = *weights.begin();
  for (const float odd : {NAN, -INFINITY}) {
    values.back() = odd;
    WriteFolder(job.path("hf"), spec, weights, "BF16");
    runtime::RunRanks(spec, [&, &name = name](int rank, TrainingSession& session) {
      const absl::Status status = Load(job.path("hf"), spec, session);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("tensor ", name, " holds ",
                                         std::isnan(odd) ? "NaN" : "infinity")));
    });
    std::filesystem::remove_all(job.path("hf"));
  }
}

TEST(InitialWeightsTest, SaysWhatDoesNotFit) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 1, .stage = 0});
  const std::string folder = job.path("hf");
  WriteFolder(folder, spec, Gather(spec, "master", Initialize), "F32");
  const auto read = [&](const v1::JobSpec& other, const std::string& from) {
    absl::Status status;
    runtime::RunRanks(
        other, [&](int rank, TrainingSession& session) { status = Load(from, other, session); });
    return status;
  };
  absl::Status status = read(spec, job.path("absent"));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("No such file or directory; a folder with config"));

  status = read(job.Spec({.ranks = 1, .stage = 0, .layers = 3}), folder);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("hf/config.json: n_layer is 2, model.gpt2.layers needs 3"));

  // The config of one model beside the weights of another.
  const v1::JobSpec deeper = job.Spec({.ranks = 1, .stage = 0, .layers = 3});
  std::ofstream(folder + "/config.json") << *models::HfConfig(deeper.model(), "float32");
  status = read(deeper, folder);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("holds no tensor transformer.h.2.ln_1.weight or "
                                          "h.2.ln_1.weight"));
  const v1::JobSpec wider = job.Spec({.ranks = 1, .stage = 0, .width = 64});
  std::ofstream(folder + "/config.json") << *models::HfConfig(wider.model(), "float32");
  status = read(wider, folder);
  EXPECT_THAT(status.message(), HasSubstr("has the shape [61, 32], the model's is [61, 64]"));

  std::ofstream(folder + "/config.json") << *models::HfConfig(spec.model(), "float32");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry, 3000);
  }
  status = read(spec, folder);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << "tried again it is as short: " << status;
  EXPECT_THAT(status.message(), HasSubstr(".safetensors: truncated"));
}

}  // namespace
}  // namespace milepost::worker
