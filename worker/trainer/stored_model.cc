#include "worker/trainer/stored_model.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "common/spec/model_sizes.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "engine/state/layout.h"
#include "worker/trainer/checkpoint_reader.h"
#include "worker/trainer/initial_weights.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);

CheckpointReader ReaderOf(const ModelSource& source) {
  return CheckpointReader(source.coordinator, kPatience, [] { return false; });
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

}  // namespace

absl::StatusOr<StoredModel> StoredModel::Open(ModelSource source) {
  CheckpointReader reader = ReaderOf(source);
  MP_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, reader.Manifest(source.checkpoint));
  if (manifest.model_yaml().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(source.checkpoint,
                     " is of a script, whose model Milepost does not know; `milepost "
                     "checkpoint export` writes its tensors"));
  }
  StoredModel stored(std::move(source), std::move(manifest));
  MP_RETURN_IF_ERROR(ParseYamlMessage(stored.manifest_.model_yaml(),
                                      stored.source_.checkpoint + " model", &stored.model_));
  MP_RETURN_IF_ERROR(runtime::CheckGeneratesText(stored.model_));
  const ModelSizes sizes = SizesOf(stored.model_);
  stored.vocabulary_ = sizes.vocabulary;
  stored.context_ = sizes.context;
  return stored;
}

absl::Status StoredModel::LoadBase(runtime::Generator& generator) const {
  const Wanted base = Select(generator, /*base=*/true);
  if (base.tensors.empty()) return absl::OkStatus();
  if (source_.base.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_.checkpoint, " has adapters alone: name the folder of the model that ",
                     "they adapt with --base FOLDER"));
  }
  const auto weights = InitialWeights::Open(source_.base, model_, base.tensors);
  if (!weights.ok()) {
    return Annotate(weights.status(), "the model that was adapted (--base FOLDER names it)");
  }
  const uint64_t adapted = manifest_.state().base();
  if (adapted != 0 && adapted != weights->Fingerprint()) {
    return absl::FailedPreconditionError(
        absl::StrCat(source_.base, " holds another model than the one that ", source_.checkpoint,
                     " adapts: name that one's folder with --base"));
  }
  return weights->Read(base.targets);
}

absl::StatusOr<std::unique_ptr<runtime::Generator>> StoredModel::Load(const TextRoom& room) const {
  MP_ASSIGN_OR_RETURN(auto generator,
                      runtime::Generator::Create(model_, {.precision = source_.precision,
                                                          .threads = source_.threads,
                                                          .window = room.window,
                                                          .scores = room.scores,
                                                          .texts = room.texts,
                                                          .engine = source_.engine}));
  MP_RETURN_IF_ERROR(LoadBase(*generator));
  Wanted wanted = Select(*generator, /*base=*/false);
  // What has no average is read as it is.
  for (v1::TensorInfo& tensor : wanted.tensors) {
    if (!source_.trained_weights) tensor.set_kind(state::kAverageKind);
  }
  CheckpointReader reader = ReaderOf(source_);
  MP_RETURN_IF_ERROR(reader.Read(manifest_, wanted.tensors, wanted.targets));
  MP_RETURN_IF_ERROR(generator->FinishLoad());
  return generator;
}

}  // namespace milepost::worker
