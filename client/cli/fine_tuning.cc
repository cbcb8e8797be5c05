#include "client/cli/fine_tuning.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/cli/new_folder.h"
#include "client/cli/output.h"
#include "client/cli/tokenizer_folder.h"
#include "common/regular_file.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;

constexpr char kSpecFile[] = "spec.yaml";
constexpr char kMadeOf[] = "made_of.txt";
constexpr char kTrain[] = "train.npy";
constexpr char kValidation[] = "validation.npy";
constexpr int64_t kUsualLength = 1024;
constexpr int64_t kUsualBatch = 32;
constexpr double kValidationFraction = 0.05;
constexpr size_t kMostMadeOfBytes = 1 << 20;

// As a YAML text in quotes.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : absolute.string();
}

// As it is called, whatever a link leads to: "models/SmolLM2/" -> "SmolLM2".
fs::path LastPart(const std::string& path) {
  std::error_code error;
  const fs::path normal = fs::absolute(path, error).lexically_normal();
  return normal.has_filename() ? normal.filename() : normal.parent_path().filename();
}

// A name for a folder and a job.
std::string NameOf(const FineTuning& tuning) {
  std::string name = absl::StrCat(LastPart(tuning.model).string(), "-",
                                  LastPart(tuning.data.front()).stem().string());
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_') c = '-';
  }
  constexpr size_t kLongestName = 63;
  return name.substr(0, kLongestName);
}

// What tells whether files have changed: of a folder all that are in it.
struct Files {
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t newest = 0;

  void Add(const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) return;  // no file
    ++count;
    bytes += static_cast<int64_t>(size);
    newest = std::max<int64_t>(newest, fs::last_write_time(path, error).time_since_epoch().count());
  }
  std::string Line(absl::string_view what, const std::string& path) const {
    return absl::StrCat(what, " ", Absolute(path), " ", count, " files ", bytes, " bytes ", newest,
                        "\n");
  }
};

// A line for each thing that the token files depend on.
absl::StatusOr<std::string> MadeOf(const FineTuning& tuning, int64_t length) {
  std::error_code error;
  Files model;
  for (fs::directory_iterator it(tuning.model, error), end; !error && it != end;
       it.increment(error)) {
    model.Add(it->path());
  }
  std::string text =
      absl::StrCat(model.Line("model", tuning.model), "sequence length ", length, "\nadapters ",
                   tuning.dora   ? "with magnitudes"
                   : tuning.lora ? "yes"
                                 : "no",
                   "\n");
  for (const std::string& path : tuning.data) {
    if (!fs::exists(path, error)) {
      return absl::InvalidArgumentError(absl::StrCat("--data: there is no ", path));
    }
    Files data;
    data.Add(path);
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      data.Add(it->path());
    }
    absl::StrAppend(&text, data.Line("data", path));
  }
  return text;
}

// Whether the folder was made of the same.
absl::StatusOr<bool> IsMade(const std::string& folder, const std::string& made_of) {
  std::error_code error;
  if (!fs::exists(folder, error)) return false;
  const auto found = ReadRegularFile(absl::StrCat(folder, "/", kMadeOf), kMostMadeOfBytes);
  if (found.ok() && *found == made_of) return true;
  if (absl::IsNotFound(found.status()) && fs::is_empty(folder, error)) return false;
  return absl::AlreadyExistsError(
      absl::StrCat(folder,
                   found.ok() ? " was made of another model, other data or other options"
                              : " is there already, and was not made by this command",
                   ": name another folder with --out, or remove it"));
}

absl::Status CheckModel(const std::string& folder, const v1::ModelSpec& model, int64_t length) {
  const ModelSizes sizes = SizesOf(model);
  if (!model.has_gpt2() && !model.has_llama()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: ", folder, " is model.", sizes.family,
                     ", which writes no text: write a spec (docs/use/job-spec.md)"));
  }
  if (length > sizes.context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sequence-length: ", length, " is more than the model's context, ", sizes.context,
        "; a spec may give a Llama a longer one (model.llama.context)"));
  }
  if (!HasTokenizer(folder)) return TokenizerFiles(folder).status();
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    std::error_code error;
    if (fs::exists(absl::StrCat(folder, "/", name), error)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--model: ", folder, " has no weights: neither model.safetensors nor its shards"));
}

absl::StatusOr<TokenizeResult> Tokenize(const FineTuning& tuning, int64_t length,
                                        const std::string& folder) {
  TokenizeJob job = {.inputs = tuning.data,
                     .output = absl::StrCat(folder, "/", kTrain),
                     .validation_output = absl::StrCat(folder, "/", kValidation),
                     .validation_fraction = kValidationFraction,
                     .sequence_length = length,
                     .takes_texts = true};
  absl::StatusOr<TokenizeResult> made = TokenizeHuggingFace(job, tuning.model);
  if (absl::IsInvalidArgument(made.status())) {
    // Nothing may be left for one of the parts; what is wrong otherwise is found again.
    job.validation_output.clear();
    made = TokenizeHuggingFace(job, tuning.model);
  }
  MP_ASSIGN_OR_RETURN(TokenizeResult result, std::move(made));
  if (result.train_tokens <= length) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: ", result.train_tokens, " tokens are less than a sample, which has ",
                     length, ": give more data, or a shorter --sequence-length"));
  }
  if (result.validation_tokens <= length) result.validation_tokens = 0;  // less than a sample
  return result;
}

// /dev/nvidia0, /dev/nvidia1, ...: what the driver offers here. In a container some may be missing.
int CountGpus() {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator it("/dev", error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    absl::string_view number = file;
    int index = 0;
    if (absl::ConsumePrefix(&number, "nvidia") && absl::SimpleAtoi(number, &index)) ++count;
  }
  return count;
}

void TellTokens(const TokenizeResult& tokens, int64_t length) {
  Note(absl::StrCat(tokens.documents, tokens.pairs ? " pairs, " : " examples, ",
                    tokens.train_tokens, " tokens to train on, ", tokens.validation_tokens,
                    " to validate"));
  if (tokens.cut > 0)
    Note(absl::StrCat(tokens.cut, " were longer than ", length, ", and were cut"));
  if (tokens.left_out > 0) Note(absl::StrCat(tokens.left_out, " have no target or are too long"));
}

// What `data` says.
std::string DataLines(const TuningFacts& facts) {
  const bool validation = facts.tokens.validation_tokens > 0;
  std::string text = absl::StrCat("data:\n  train: ", kTrain, "\n");
  if (validation) absl::StrAppend(&text, "  validation: ", kValidation, "\n");
  if (facts.tokens.masks) {
    absl::StrAppend(&text, "  loss_mask: {train: ", MaskPath(kTrain),
                    validation ? absl::StrCat(", validation: ", MaskPath(kValidation)) : "", "}\n",
                    "  document_separator: ", facts.tokens.separator_id, "\n");
  }
  absl::StrAppend(&text, "  sequence_length: ", facts.sequence_length, "\n");
  return text;
}

std::string ModelLines(const TuningFacts& facts) {
  std::string text = absl::StrCat("model:\n  hugging_face: ", Quoted(facts.model), "\n");
  if (facts.tokens.vocabulary > facts.vocabulary) {
    absl::StrAppend(&text, "  ", facts.family, ": {vocabulary: ", facts.tokens.vocabulary,
                    "}  # the tokenizer has more than the folder's ", facts.vocabulary, "\n");
  }
  if (facts.lora) {
    absl::StrAppend(&text, "  lora: {rank: 16, alpha: 32", facts.dora ? ", dora: true" : "", "}\n");
  }
  return text;
}

// What a spec of a mixture of experts would be refused for: before all data is tokenized, or right
// behind that.
absl::Status CheckExperts(const v1::ModelSpec& model, bool adapters, bool pairs) {
  if (!model.llama().has_experts() || (!adapters && !pairs)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      adapters ? "--lora: adapters are not for a model with experts: train all of it"
               : "--data: preferences are not for a model with experts: give completions or chats");
}

}  // namespace

std::string TuningSpec(const TuningFacts& facts) {
  const int ranks = std::max(1, facts.gpus);
  const int64_t samples =
      std::max<int64_t>(1, (facts.tokens.train_tokens - 1) / facts.sequence_length);
  const int64_t per_rank =
      std::clamp<int64_t>(std::min(samples, kUsualBatch) / ranks, 1, kUsualBatch);
  const int64_t global = per_rank * ranks;
  const int64_t epochs = facts.tokens.pairs ? 1 : 3;
  const int64_t steps = (epochs * samples + global - 1) / global;
  const int64_t tenth = std::max<int64_t>(1, steps / 10);
  const bool validation = facts.tokens.validation_tokens > 0;
  const char* rate = facts.tokens.pairs ? "5e-6" : facts.lora ? "2e-4" : "2e-5";
  std::string text =
      absl::StrCat("name: ", Quoted(facts.name), "\n", ModelLines(facts), DataLines(facts),
                   "train:\n  steps: ", steps, "  # ", epochs, epochs == 1 ? " epoch" : " epochs",
                   " of ", samples, " samples\n", "  batch: {global: ", global, ", micro: auto}\n",
                   "  precision: ", facts.gpus > 0 ? "bf16" : "fp32", "\n", "  recompute: auto\n");
  if (ranks > 1) absl::StrAppend(&text, "  zero: {stage: auto}\n");
  if (facts.tokens.pairs) absl::StrAppend(&text, "  dpo: {beta: 0.1}\n");
  absl::StrAppend(&text, "  optimizer: {lr: ", rate, ", weight_decay: 0}\n",
                  "  schedule: {warmup_steps: ", std::min(steps, (steps * 3 + 99) / 100), "}\n");
  if (validation) absl::StrAppend(&text, "  validation: {every: ", tenth, "}\n");
  absl::StrAppend(&text, "checkpoint: {every: ", tenth, ", keep_last: 1",
                  validation ? ", keep_best: true" : "", "}\n");
  absl::StrAppend(&text, "resources: {ranks: ", ranks, facts.gpus > 0 ? ", device: cuda" : "",
                  "}\n");
  return text;
}

absl::StatusOr<std::string> PrepareFineTuning(const FineTuning& tuning) {
  MP_ASSIGN_OR_RETURN(const v1::ModelSpec model, models::ModelOfHfFolder(tuning.model));
  const ModelSizes sizes = SizesOf(model);
  const int64_t length =
      tuning.sequence_length > 0 ? tuning.sequence_length : std::min(kUsualLength, sizes.context);
  MP_RETURN_IF_ERROR(CheckModel(tuning.model, model, length));
  MP_RETURN_IF_ERROR(CheckExperts(model, tuning.lora || tuning.dora, /*pairs=*/false));
  const std::string folder = tuning.folder.empty() ? NameOf(tuning) : tuning.folder;
  const std::string spec = absl::StrCat(folder, "/", kSpecFile);
  MP_ASSIGN_OR_RETURN(const std::string made_of, MadeOf(tuning, length));
  MP_ASSIGN_OR_RETURN(const bool made, IsMade(folder, made_of));
  if (made) {
    Note(absl::StrCat(spec, " is there already: going on with it"));
    return spec;
  }
  MP_ASSIGN_OR_RETURN(const auto target, NewFolder::Create(folder));
  MP_ASSIGN_OR_RETURN(const TokenizeResult tokens, Tokenize(tuning, length, target->path()));
  MP_RETURN_IF_ERROR(CheckExperts(model, /*adapters=*/false, tokens.pairs));
  TellTokens(tokens, length);
  const std::string text = absl::StrCat(
      "# Made by `milepost run --model ... --data ...`. `milepost run` of this file goes on with "
      "it.\n"
      "# Any field may be changed: docs/use/job-spec.md.\n",
      TuningSpec({.name = NameOf(tuning),
                  .model = Absolute(tuning.model),
                  .family = std::string(sizes.family),
                  .vocabulary = sizes.vocabulary,
                  .lora = tuning.lora || tuning.dora || tokens.pairs,
                  .dora = tuning.dora,
                  .sequence_length = length,
                  .tokens = tokens,
                  .gpus = CountGpus()}));
  MP_RETURN_IF_ERROR(WriteNewFile(absl::StrCat(target->path(), "/", kSpecFile), text));
  MP_RETURN_IF_ERROR(WriteNewFile(absl::StrCat(target->path(), "/", kMadeOf), made_of));
  MP_RETURN_IF_ERROR(target->Finish());
  Note(absl::StrCat("the spec is ", spec));
  return spec;
}

}  // namespace milepost::client
