#include "worker/trainer/generate.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rpc/status.h"
#include "common/spec/model_sizes.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "worker/trainer/checkpoint_reader.h"
#include "worker/trainer/initial_weights.h"

namespace milepost::worker {

namespace {

constexpr int64_t kByteVocabulary = 256;
constexpr absl::Duration kPatience = absl::Seconds(5);

absl::StatusOr<std::vector<int32_t>> PromptIds(const GenerateRequest& request, int64_t vocabulary) {
  std::vector<int32_t> ids;
  if (vocabulary == kByteVocabulary && request.prompt_ids.empty()) {
    for (char c : request.prompt) ids.push_back(static_cast<unsigned char>(c));
    if (ids.empty()) ids.push_back('\n');
    return ids;
  }
  if (request.prompt_ids.empty()) {
    return absl::InvalidArgumentError(
        "this model's tokens are not bytes: name its tokenizer with --tokenizer FOLDER, or give "
        "the prompt as token ids with --prompt-ids 1,2,3");
  }
  for (absl::string_view part : absl::StrSplit(request.prompt_ids, ',')) {
    if (!absl::SimpleAtoi(part, &ids.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-ids: \"", part, "\" is not a token id"));
    }
    if (ids.back() < 0 || ids.back() >= vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--prompt-ids: ", part, " is none of the model's token ids, 0 to ", vocabulary - 1));
    }
  }
  return ids;
}

// A model may have learnt what rings a terminal's bell or hides its lines.
bool IsControl(int32_t id) { return (id < ' ' && id != '\n' && id != '\t') || id == 0x7f; }

// A file or a pipe gets the bytes as they are.
void Print(int32_t id, bool bytes) {
  static const bool terminal = isatty(STDOUT_FILENO) != 0;
  if (bytes) {
    std::putchar(terminal && IsControl(id) ? '?' : id);
  } else {
    std::printf("%d ", id);
  }
  std::fflush(stdout);
}

// Some of a generator's tensors, and where they go.
struct Wanted {
  std::vector<v1::TensorInfo> tensors;
  std::vector<runtime::StateInterval> targets;
};
Wanted Select(runtime::Generator& generator, bool base) {
  Wanted wanted;
  for (runtime::StateInterval target : generator.LoadTargets()) {
    if (generator.IsBase(target.tensor) != base) continue;
    wanted.tensors.push_back(generator.tensors()[static_cast<size_t>(target.tensor)]);
    target.tensor = static_cast<int32_t>(wanted.targets.size());
    wanted.targets.push_back(target);
  }
  return wanted;
}

absl::Status LoadBase(const GenerateRequest& request, const v1::ModelSpec& model,
                      const v1::TrainerState& state, runtime::Generator& generator) {
  const Wanted base = Select(generator, /*base=*/true);
  if (base.tensors.empty()) return absl::OkStatus();
  if (request.base.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.checkpoint, " has adapters alone: name the folder of the model that ",
                     "they adapt with --base FOLDER"));
  }
  const auto weights = InitialWeights::Open(request.base, model, base.tensors);
  if (!weights.ok()) {
    return Annotate(weights.status(), "the model that was adapted (--base FOLDER names it)");
  }
  if (state.base() != 0 && state.base() != weights->Fingerprint()) {
    return absl::FailedPreconditionError(
        absl::StrCat(request.base, " holds another model than the one that ", request.checkpoint,
                     " adapts: name that one's folder with --base"));
  }
  return weights->Read(base.targets);
}

}  // namespace

absl::Status Generate(const GenerateRequest& request) {
  CheckpointReader reader(request.coordinator, kPatience, [] { return false; });
  MP_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, reader.Manifest(request.checkpoint));
  if (manifest.model_yaml().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(request.checkpoint,
                     " is of a script, whose model Milepost does not know; `milepost "
                     "checkpoint export` writes its tensors"));
  }
  v1::ModelSpec model;
  MP_RETURN_IF_ERROR(
      ParseYamlMessage(manifest.model_yaml(), request.checkpoint + " model", &model));
  MP_RETURN_IF_ERROR(runtime::CheckGeneratesText(model));
  const int64_t vocabulary = SizesOf(model).vocabulary;
  const bool bytes = vocabulary == kByteVocabulary;
  MP_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, PromptIds(request, vocabulary));
  MP_ASSIGN_OR_RETURN(auto generator, runtime::Generator::Create(
                                          model, {.precision = request.precision,
                                                  .threads = request.threads,
                                                  .window = static_cast<int64_t>(prompt.size()) +
                                                            request.options.tokens,
                                                  .engine = request.engine}));
  MP_RETURN_IF_ERROR(LoadBase(request, model, manifest.state(), *generator));
  const Wanted state = Select(*generator, /*base=*/false);
  MP_RETURN_IF_ERROR(reader.Read(manifest, state.tensors, state.targets));
  MP_RETURN_IF_ERROR(generator->FinishLoad());
  for (int32_t id : prompt) Print(id, bytes);
  MP_RETURN_IF_ERROR(
      generator->Generate(prompt, request.options, [bytes](int32_t id) { Print(id, bytes); }));
  std::putchar('\n');
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return absl::UnknownError("what was generated could not be written to stdout, or not all of it");
}

}  // namespace milepost::worker
