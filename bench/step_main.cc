// Training steps of a GPT-2, a Llama, a BERT or a ResNet on this machine, one rank, with where the
// time goes. Prints one line of JSON; torch_step.py is its peer, step_vs_torch runs both.
//
//   build/release/bench/step --layers 12 --width 768 --heads 12 --vocabulary 50257 --context 512
//   --batch 2
//
// The floor is the step's matrix products (attention's included) at the rate of one large oneDNN
// product of the same precision, measured between the steps.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/philox.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/data/npy.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/types.h"
#include "engine/runtime/session.h"

namespace milepost {
namespace {

struct Flags {
  std::string family = "gpt2";
  int64_t layers = 6;
  int64_t width = 384;
  int64_t heads = 6;
  int64_t kv_heads = 2;   // Llama only
  int64_t hidden = 1024;  // Llama and BERT
  int64_t vocabulary = 256;
  int64_t context = 256;
  int64_t depth = 50;   // ResNet only
  int64_t image = 224;  // ResNet only
  int64_t batch = 8;
  int64_t accumulation = 1;
  int threads = 2;
  int64_t steps = 8;
  int64_t warmup = 3;
  std::string precision = "bf16";
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status WriteData(const std::string& path, const Flags& flags) {
  MP_ASSIGN_OR_RETURN(auto writer, data::NpyWriter::Create(path, data::TokenType::kUint32));
  std::vector<uint32_t> ids(static_cast<size_t>(64 * flags.context + 1));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {1, 2})[0] %
             static_cast<uint32_t>(flags.vocabulary);
  }
  MP_RETURN_IF_ERROR(writer->Append(ids));
  return writer->Finish();
}

// NumPy's format 1.0.
absl::Status WriteNpy(const std::string& path, const std::string& type, const std::string& shape,
                      const std::string& bytes) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header.push_back('\n');
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size() % 256)
       << static_cast<char>(header.size() / 256) << header << bytes;
  return file.good() ? absl::OkStatus() : absl::InternalError("cannot write " + path);
}

constexpr int64_t kClasses = 1000;

// Noise; a step's time does not depend on what it sees.
absl::Status WriteImages(const std::string& path, const Flags& flags) {
  std::string pixels(static_cast<size_t>(flags.batch * flags.image * flags.image * 3), '\0');
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<char>(i * 2654435761U >> 24);
  std::string labels;
  for (int32_t i = 0; i < flags.batch; ++i) {
    labels.append(reinterpret_cast<const char*>(&i), sizeof(i));
  }
  const std::string count = std::to_string(flags.batch), side = std::to_string(flags.image);
  MP_RETURN_IF_ERROR(WriteNpy(path, "|u1", count + ", " + side + ", " + side + ", 3", pixels));
  const std::string stem = path.substr(0, path.size() - 4);
  return WriteNpy(stem + ".labels.npy", "<i4", count + ",", labels);
}

template <typename Family>
void SetSizes(const Flags& flags, Family* model) {
  model->set_layers(flags.layers);
  model->set_width(flags.width);
  model->set_heads(flags.heads);
  model->set_context(flags.context);
  model->set_vocabulary(flags.vocabulary);
}

v1::JobSpec Spec(const Flags& flags, const std::string& data) {
  v1::JobSpec spec;
  spec.set_name("bench");
  if (flags.family == "llama") {
    v1::LlamaSpec* model = spec.mutable_model()->mutable_llama();
    SetSizes(flags, model);
    model->set_kv_heads(flags.kv_heads);
    model->set_hidden(flags.hidden);
  } else if (flags.family == "resnet") {
    v1::ResNetSpec* model = spec.mutable_model()->mutable_resnet();
    model->set_depth(flags.depth);
    model->set_image_size(flags.image);
    model->set_classes(kClasses);
  } else if (flags.family == "bert") {
    v1::BertSpec* model = spec.mutable_model()->mutable_bert();
    SetSizes(flags, model);
    model->set_hidden(flags.hidden);
    spec.mutable_data()->mutable_masking()->set_mask_token(flags.vocabulary - 1);
  } else {
    SetSizes(flags, spec.mutable_model()->mutable_gpt2());
  }
  spec.mutable_data()->set_train(data);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1000000);
  train->set_precision(flags.precision == "bf16" ? v1::PRECISION_BF16 : v1::PRECISION_FP32);
  train->mutable_batch()->set_micro(flags.batch);
  train->mutable_batch()->set_accumulation(flags.accumulation);
  NormalizeJobSpec(&spec);
  return spec;
}

// FLOP/s of C[n,n] = A[n,n] B[n,n], plain or with packed weights, whichever is faster here.
class Floor {
 public:
  explicit Floor(bool bf16) {
    const kernels::DType type = bf16 ? kernels::DType::kBf16 : kernels::DType::kF32;
    plain_ = {.m = kSize, .n = kSize, .k = kSize, .a = type, .b = type, .c = type};
    packed_ = plain_;
    packed_.packed_b = true;
    const auto element = static_cast<int64_t>(ByteSize(type));
    for (auto* matrix : {&a_, &b_, &c_}) {
      matrix->resize(static_cast<size_t>(kSize * kSize * element));
      // Small numbers: zeros would flatter, NaNs slow down.
      for (int64_t i = 0; i < kSize * kSize; ++i) {
        const float value = static_cast<float>(i * 7919 % 201 - 100) / 1024;
        const kernels::bf16 half = kernels::ToBf16(value);
        std::memcpy(matrix->data() + i * element,
                    bf16 ? static_cast<const void*>(&half) : static_cast<const void*>(&value),
                    static_cast<size_t>(element));
      }
    }
  }

  absl::Status Prepare() {
    MP_ASSIGN_OR_RETURN(const size_t plain, cache_.WorkspaceBytes(plain_));
    MP_ASSIGN_OR_RETURN(const size_t packed, cache_.WorkspaceBytes(packed_));
    MP_ASSIGN_OR_RETURN(const size_t weight, cache_.PackedWeightBytes(packed_));
    scratch_.resize(std::max(plain, packed));
    weight_.resize(weight);
    return cache_.PackWeight(packed_, b_.data(), weight_.data(), scratch_.data());
  }

  absl::Status Measure() {
    MP_RETURN_IF_ERROR(Time(plain_, b_.data(), &plain_rates_));
    return Time(packed_, weight_.data(), &packed_rates_);
  }
  double Rate() const { return std::max(Median(plain_rates_), Median(packed_rates_)); }

 private:
  static constexpr int64_t kSize = 2944;  // rows that are no multiple of a page

  absl::Status Time(const kernels::MatmulSpec& spec, const void* b, std::vector<double>* rates) {
    const double start = Seconds();
    MP_RETURN_IF_ERROR(cache_.Execute(spec, a_.data(), b, nullptr, c_.data(), scratch_.data()));
    rates->push_back(2.0 * kSize * kSize * kSize / (Seconds() - start));
    return absl::OkStatus();
  }

  kernels::MatmulCache cache_;
  kernels::MatmulSpec plain_, packed_;
  std::vector<char> a_, b_, c_, weight_, scratch_;
  std::vector<double> plain_rates_, packed_rates_;
};

nlohmann::ordered_json OpTable(const std::vector<runtime::OpKindTime>& before,
                               const std::vector<runtime::OpKindTime>& after, double rate,
                               double steps) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (size_t i = 0; i < after.size(); ++i) {
    const double seconds = (after[i].seconds - before[i].seconds) / steps;
    const double flops = (after[i].flops - before[i].flops) / steps;
    const double bytes = (after[i].bytes - before[i].bytes) / steps;
    if (seconds == 0) continue;
    table.push_back({{"op", graph::Name(after[i].kind)},
                     {"milliseconds_per_step", seconds * 1e3},
                     {"gflops", flops / seconds / 1e9},
                     {"gigabytes_per_second", bytes / seconds / 1e9},
                     {"ratio_to_floor", flops / rate / seconds}});
  }
  std::sort(table.begin(), table.end(), [](const auto& x, const auto& y) {
    return x["milliseconds_per_step"] > y["milliseconds_per_step"];
  });
  return table;
}

absl::StatusOr<std::unique_ptr<runtime::TrainingSession>> MakeSession(
    const Flags& flags, comm::Communicator* communicator) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench-step-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::InternalError("no temporary folder");
  const std::string data = folder + "/samples.npy";
  const bool images = flags.family == "resnet";
  absl::StatusOr<std::unique_ptr<runtime::TrainingSession>> session;
  if (absl::Status status = images ? WriteImages(data, flags) : WriteData(data, flags);
      !status.ok()) {
    session = status;
  } else {
    session = runtime::TrainingSession::Create(Spec(flags, data), {.threads = flags.threads},
                                               communicator);
  }
  std::filesystem::remove_all(folder);  // the session keeps its mapping
  return session;
}

struct Measured {
  std::vector<double> seconds;  // of each step
  double floor_rate = 0;
  double loss = 0;
  nlohmann::ordered_json ops;
};

// Steps and large products, alternating.
absl::StatusOr<Measured> Measure(const Flags& flags, runtime::TrainingSession& session) {
  Floor floor(flags.precision == "bf16");
  MP_RETURN_IF_ERROR(floor.Prepare());
  const std::vector<runtime::OpKindTime> before = session.op_times();
  Measured measured;
  for (int64_t i = 0; i < flags.steps; ++i) {
    MP_ASSIGN_OR_RETURN(const runtime::StepReport report, session.Step(false));
    measured.seconds.push_back(report.seconds);
    measured.loss = report.train_loss;
    MP_RETURN_IF_ERROR(floor.Measure());
  }
  measured.floor_rate = floor.Rate();
  measured.ops =
      OpTable(before, session.op_times(), measured.floor_rate, static_cast<double>(flags.steps));
  return measured;
}

absl::Status Run(const Flags& flags) {
  auto group = comm::MakeInProcessGroup(1);
  MP_ASSIGN_OR_RETURN(auto session, MakeSession(flags, group[0].get()));
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  for (int64_t i = 0; i < flags.warmup; ++i) MP_RETURN_IF_ERROR(session->Step(false).status());
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);  // before the floor's own matrices
  MP_ASSIGN_OR_RETURN(const Measured measured, Measure(flags, *session));
  const double step = Median(measured.seconds);
  const plan::StepPlan& plan = session->plan();
  // Of a ResNet: images.
  const int64_t sample = flags.family == "resnet" ? 1 : flags.context;
  const auto tokens = static_cast<double>(flags.batch * flags.accumulation * sample);
  const double floor_seconds = plan.flops_per_step / measured.floor_rate;
  const auto [least, most] = std::minmax_element(measured.seconds.begin(), measured.seconds.end());
  const nlohmann::ordered_json result = {{"precision", flags.precision},
                                         {"threads", flags.threads},
                                         {"parameters", plan.parameters},
                                         {"tokens_per_second", tokens / step},
                                         {"step_seconds_median", step},
                                         {"step_seconds_min", *least},
                                         {"step_seconds_max", *most},
                                         {"flops_per_step", plan.flops_per_step},
                                         {"floor_gflops", measured.floor_rate / 1e9},
                                         {"floor_seconds", floor_seconds},
                                         {"floor_tokens_per_second", tokens / floor_seconds},
                                         {"ratio_to_floor", floor_seconds / step},
                                         {"arena_bytes", plan.arena_bytes},
                                         {"peak_rss_bytes", usage.ru_maxrss * 1024},
                                         {"loss", measured.loss},
                                         {"ops", measured.ops}};
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) {
  milepost::Flags flags;
  CLI::App app{"Training steps of a model on this machine"};
  app.add_option("--family", flags.family)
      ->check(CLI::IsMember({"gpt2", "llama", "bert", "resnet"}));
  app.add_option("--layers", flags.layers);
  app.add_option("--width", flags.width);
  app.add_option("--heads", flags.heads);
  app.add_option("--kv-heads", flags.kv_heads, "llama only");
  app.add_option("--hidden", flags.hidden, "llama and bert");
  app.add_option("--vocabulary", flags.vocabulary);
  app.add_option("--context", flags.context, "sequence length");
  app.add_option("--depth", flags.depth, "resnet only");
  app.add_option("--image", flags.image, "resnet only: pixels of a side");
  app.add_option("--batch", flags.batch, "sequences of a micro-step");
  app.add_option("--accumulation", flags.accumulation, "micro-steps of a step");
  app.add_option("--threads", flags.threads);
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber);
  app.add_option("--warmup", flags.warmup);
  app.add_option("--precision", flags.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::Run(flags); !status.ok()) {
    std::fprintf(stderr, "step: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
