// milepost checkpoint ...
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

std::string TensorTable(const v1::CheckpointManifest& manifest) {
  Table table({"TENSOR", "KIND", "DTYPE", "SHAPE"});
  for (const v1::TensorInfo& tensor : manifest.tensors()) {
    table.Add({tensor.name(), tensor.kind(), tensor.dtype(),
               absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]")});
  }
  return table.ToString();
}

std::string ManifestText(const v1::CheckpointManifest& manifest, absl::Time now) {
  std::string text = RenderCheckpoints({manifest.checkpoint()}, OutputFormat::kWide, now);
  const v1::TrainerState& state = manifest.state();
  // Of a script no more is known than its step.
  if (manifest.model_yaml().empty()) {
    return absl::StrCat(text, "\n", TensorTable(manifest));
  }
  absl::StrAppend(
      &text, "\n",
      absl::StrFormat("step %d, %d samples seen, seed %d, train loss %s", state.step(),
                      state.samples_consumed(), state.seed(), LossText(state.train_loss())),
      state.validation_step() > 0
          ? absl::StrFormat(", validation loss %s @%d", LossText(state.validation_loss()),
                            state.validation_step())
          : "",
      "\n\n");
  return absl::StrCat(text, TensorTable(manifest), "\n", manifest.model_yaml());
}

absl::StatusOr<bool> VerifyOne(const GlobalOptions& global, const Access& access,
                               const std::string& typed) {
  MP_ASSIGN_OR_RETURN(const v1::VerifyCheckpointResponse response,
                      access.checkpoints().Verify(FullName("checkpoints", typed)));
  const bool good = response.damaged_chunks().empty() && !response.checkpoint().damaged();
  if (global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml) {
    Print(RenderMessage(response, global.output));
    return good;
  }
  Print(absl::StrFormat("%s %s: %d chunks, %s\n", response.checkpoint().name(),
                        good ? "OK" : "DAMAGED", response.chunks_checked(),
                        HumanBytes(response.checkpoint().bytes())));
  for (const std::string& chunk : response.damaged_chunks()) {
    Print(absl::StrCat("  damaged: ", Printable(chunk), "\n"));
  }
  return good;
}

}  // namespace

int CheckpointListCommand(const GlobalOptions& global, const std::string& job, bool deleted,
                          int limit) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  std::string name;
  if (!job.empty()) {
    const auto resolved = ResolveJob(access->jobs(), job);
    if (!resolved.ok()) return Fail(resolved.status());
    name = *resolved;
  }
  const auto checkpoints = access->checkpoints().List(name, limit, deleted);
  if (!checkpoints.ok()) return Fail(checkpoints.status());
  Print(RenderCheckpoints(*checkpoints, global.output, absl::Now()));
  if (deleted && checkpoints->empty()) Hint("no checkpoint is deleted that could be restored");
  if (!deleted && checkpoints->empty()) {
    Hint("no checkpoints yet; checkpoint.every in the spec takes them");
  }
  return kExitOk;
}

int CheckpointDescribeCommand(const GlobalOptions& global, const std::vector<std::string>& names) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  for (const std::string& typed : names) {
    const auto manifest = access->checkpoints().Get(FullName("checkpoints", typed));
    if (!manifest.ok()) return Fail(manifest.status());
    switch (global.output) {
      case OutputFormat::kName:
        Print(manifest->checkpoint().name() + "\n");
        break;
      case OutputFormat::kJson:
      case OutputFormat::kYaml:
        Print(RenderMessage(*manifest, global.output));
        break;
      default:
        Print(ManifestText(*manifest, absl::Now()));
    }
  }
  return kExitOk;
}

int CheckpointVerifyCommand(const GlobalOptions& global, const std::vector<std::string>& names) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  int exit_code = kExitOk;
  for (const std::string& name : names) {
    const auto good = VerifyOne(global, *access, name);
    if (!good.ok()) return Fail(good.status());
    if (*good) continue;
    exit_code = kExitError;
    Hint("a damaged checkpoint is never resumed from; the job falls back to the one before it");
  }
  return exit_code;
}

int CheckpointPinCommand(const GlobalOptions& global, const std::vector<std::string>& names,
                         bool pinned) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  for (const std::string& name : names) {
    const auto checkpoint = access->checkpoints().Pin(FullName("checkpoints", name), pinned);
    if (!checkpoint.ok()) return Fail(checkpoint.status());
    Print(whole ? RenderMessage(*checkpoint, global.output) : checkpoint->name() + "\n");
    Note(absl::StrCat(checkpoint->name(), pinned ? " is kept until it is unpinned"
                                                 : " follows the job's retention again"));
  }
  return kExitOk;
}

int CheckpointDeleteCommand(const GlobalOptions& global, const std::vector<std::string>& names,
                            bool purge) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  for (const std::string& typed : names) {
    const std::string name = FullName("checkpoints", typed);
    const absl::Status status = access->checkpoints().Delete(name, purge);
    if (!status.ok()) return Fail(status);
    Print(name + "\n");
    Note(absl::StrCat("deleted ", name, purge ? " for good" : ""));
    if (!purge) Hint(absl::StrCat("milepost checkpoint restore ", name, " has it back"));
  }
  return kExitOk;
}

int CheckpointRestoreCommand(const GlobalOptions& global, const std::vector<std::string>& names) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  for (const std::string& typed : names) {
    const auto restored = access->checkpoints().Restore(FullName("checkpoints", typed));
    if (!restored.ok()) return Fail(restored.status());
    Print(whole ? RenderMessage(*restored, global.output) : restored->name() + "\n");
    Note(absl::StrCat("restored ", restored->name(), ", step ", restored->step(), " of ",
                      restored->job(), "; pin it, or its job's retention may delete it"));
  }
  return kExitOk;
}

}  // namespace milepost::client
