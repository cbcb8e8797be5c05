#include "bench/step_model.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/philox.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/data/npy.h"

namespace milepost::bench {
namespace {

absl::Status WriteData(const std::string& path, const StepFlags& flags) {
  MP_ASSIGN_OR_RETURN(auto writer, data::NpyWriter::Create(path, data::TokenType::kUint32));
  std::vector<uint32_t> ids(static_cast<size_t>(64 * flags.context + 1));
  const auto words = static_cast<uint32_t>(flags.vocabulary);
  const uint32_t separator = words - 1;  // of preferences, which have it nowhere else
  const auto answer = static_cast<size_t>(flags.context / 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {1, 2})[0] %
             (flags.dpo ? separator : words);
    if (flags.dpo && i % answer == answer - 1) ids[i] = separator;
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
absl::Status WriteImages(const std::string& path, const StepFlags& flags) {
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
void SetSizes(const StepFlags& flags, Family* model) {
  model->set_layers(flags.layers);
  model->set_width(flags.width);
  model->set_heads(flags.heads);
  model->set_context(flags.context);
  model->set_vocabulary(flags.vocabulary);
}

void SetAdapters(const StepFlags& flags, v1::JobSpec* spec) {
  if (flags.lora == 0) return;
  v1::LoraSpec* lora = spec->mutable_model()->mutable_lora();
  lora->set_rank(flags.lora);
  if (flags.nf4) lora->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
  lora->set_dora(flags.dora);
  spec->mutable_train()->set_init_from("nowhere");  // not read: they begin at random
  if (!flags.dpo) return;
  spec->mutable_train()->mutable_dpo();
  spec->mutable_data()->set_document_separator(flags.vocabulary - 1);
}

// A window of a quarter of the context, in every second layer.
void MakeGemma3(v1::LlamaSpec* model) {
  model->set_tied(true);
  model->set_qk_norm(true);
  model->set_norm_offset(true);
  model->set_post_norms(true);
  model->set_scale_embedding(true);
  model->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
  model->mutable_window()->set_positions(model->context() / 4);
  model->mutable_window()->set_full_every(2);
  model->mutable_window()->set_rope_theta(10000);
}

v1::JobSpec Spec(const StepFlags& flags, const std::string& data) {
  v1::JobSpec spec;
  spec.set_name("bench");
  if (flags.family == "llama" || flags.family == "gemma3") {
    v1::LlamaSpec* model = spec.mutable_model()->mutable_llama();
    SetSizes(flags, model);
    model->set_kv_heads(flags.kv_heads);
    model->set_hidden(flags.hidden);
    if (flags.family == "gemma3") MakeGemma3(model);
    if (flags.experts > 0) {
      model->mutable_experts()->set_count(flags.experts);
      model->mutable_experts()->set_per_token(flags.per_token);
      model->mutable_experts()->set_balance_loss(0.01);
      model->mutable_experts()->set_z_loss(0.001);
    }
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
  train->set_precision(flags.precision == "fp8"    ? v1::PRECISION_FP8
                       : flags.precision == "bf16" ? v1::PRECISION_BF16
                                                   : v1::PRECISION_FP32);
  if (flags.recompute_budget > 0) {
    train->set_recompute(v1::RECOMPUTE_BUDGET);
    train->set_recompute_budget(flags.recompute_budget);
  }
  if (flags.fast) train->set_determinism(v1::DETERMINISM_FAST);
  if (flags.bf16_states) train->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
  if (flags.bf16_gradients) train->set_grad_dtype(v1::GRAD_DTYPE_BF16);
  train->mutable_batch()->set_micro(flags.batch);
  train->mutable_batch()->set_accumulation(flags.accumulation);
  SetAdapters(flags, &spec);
  if (flags.stages > 1) {
    spec.mutable_resources()->set_ranks(flags.stages);
    spec.mutable_resources()->mutable_mesh()->set_pipeline(flags.stages);
    spec.mutable_resources()->mutable_mesh()->set_schedule(flags.schedule);
  }
  NormalizeJobSpec(&spec);
  return spec;
}

}  // namespace

void AddStepFlags(CLI::App& app, StepFlags* flags) {
  app.add_option("--family", flags->family)
      ->check(CLI::IsMember({"gpt2", "llama", "gemma3", "bert", "resnet"}));
  app.add_option("--layers", flags->layers);
  app.add_option("--width", flags->width);
  app.add_option("--heads", flags->heads);
  app.add_option("--kv-heads", flags->kv_heads, "llama and gemma3");
  app.add_option("--hidden", flags->hidden, "llama, gemma3 and bert");
  app.add_option("--experts", flags->experts, "llama only: of a layer")->check(CLI::Range(0, 1024));
  app.add_option("--per-token", flags->per_token, "of the experts")->check(CLI::Range(1, 1024));
  app.add_option("--vocabulary", flags->vocabulary);
  app.add_option("--context", flags->context, "sequence length");
  app.add_option("--depth", flags->depth, "resnet only");
  app.add_option("--image", flags->image, "resnet only: pixels of a side");
  app.add_option("--batch", flags->batch, "sequences of a micro-step");
  app.add_option("--accumulation", flags->accumulation, "micro-steps of a step");
  app.add_option("--threads", flags->threads);
  app.add_option("--steps", flags->steps)->check(CLI::PositiveNumber);
  app.add_option("--warmup", flags->warmup);
  app.add_option("--precision", flags->precision)->check(CLI::IsMember({"fp32", "bf16", "fp8"}));
  app.add_flag("--bf16-states", flags->bf16_states, "of the optimizer");
  app.add_flag("--bf16-gradients", flags->bf16_gradients, "train.grad_dtype: bf16");
  app.add_option("--recompute-budget", flags->recompute_budget, "train.recompute: budget; bytes");
  app.add_flag("--fast", flags->fast, "train.determinism: fast");
  CLI::Option* lora = app.add_option("--lora", flags->lora, "rank of adapters, which train alone");
  lora->check(CLI::PositiveNumber);
  app.add_flag("--nf4", flags->nf4, "the adapted matrices in 4 bits")->needs(lora);
  app.add_flag("--dora", flags->dora, "adapters with magnitudes")->needs(lora);
  app.add_flag("--dpo", flags->dpo, "the loss of preferences, of one pair to a sample")
      ->needs(lora);
}

int64_t SampleSize(const StepFlags& flags) { return flags.family == "resnet" ? 1 : flags.context; }

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::StatusOr<std::unique_ptr<runtime::TrainingSession>> MakeSession(
    const StepFlags& flags, const runtime::SessionOptions& options,
    comm::Communicator* communicator) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench-step-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::InternalError("no temporary folder");
  const std::string data = folder + "/samples.npy";
  const bool images = flags.family == "resnet";
  absl::StatusOr<std::unique_ptr<runtime::TrainingSession>> session;
  if (absl::Status status = images ? WriteImages(data, flags) : WriteData(data, flags);
      !status.ok()) {
    session = status;
  } else {
    session = runtime::TrainingSession::Create(Spec(flags, data), options, communicator);
  }
  std::filesystem::remove_all(folder);  // the session keeps its mapping
  return session;
}

}  // namespace milepost::bench
