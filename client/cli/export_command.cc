// milepost checkpoint export
#include <filesystem>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "client/cli/checkpoint_export.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/interrupt.h"
#include "client/cli/tokenizer_folder.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

// Of --dtype, which the command line has checked.
DType DTypeOf(const std::string& name) {
  return name == "bf16" ? DType::kBf16 : name == "fp16" ? DType::kF16 : DType::kF32;
}

absl::StatusOr<ExportReport> Export(const Access& access, const std::string& checkpoint,
                                    const std::string& folder, const ExportOptions& options,
                                    const InterruptGuard& guard) {
  MP_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, access.checkpoints().Get(checkpoint));
  const auto read = [&](const v1::ReadChunksRequest& request,
                        const std::function<bool(const v1::Chunk&)>& on_chunk) {
    return access.checkpoints().Read(request, on_chunk);
  };
  return ExportCheckpoint(
      manifest, read,
      {.folder = folder,
       .dtype = DTypeOf(options.dtype),
       .tokenizer = options.tokenizer.empty() ? TokenizerOf(access, manifest.checkpoint().job())
                                              : options.tokenizer,
       .tokenizer_if_readable = options.tokenizer.empty(),
       .base = options.base.empty() ? InitialFolderOf(access, manifest.checkpoint().job())
                                    : options.base,
       .merge = options.merge,
       .trained_weights = options.trained_weights,
       .interrupted = [&guard] { return guard.interrupted(); }});
}

}  // namespace

int CheckpointExportCommand(const GlobalOptions& global, const ExportOptions& options) {
  // Made before the connection, whose threads inherit the blocked signals; a half-written folder is
  // removed on the way out.
  std::mutex mutex;
  std::shared_ptr<Connection> connection;
  InterruptGuard guard([&] {
    const std::lock_guard lock(mutex);
    if (connection != nullptr) connection->Cancel();
  });
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  {
    const std::lock_guard lock(mutex);
    connection = access->connection();
  }
  const bool several = options.checkpoints.size() > 1;
  if (several) {
    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    if (error) return Fail(absl::ErrnoToStatus(error.value(), options.folder));
  }
  for (const std::string& typed : options.checkpoints) {
    if (guard.interrupted()) return kExitInterrupted;
    const std::string name = FullName("checkpoints", typed);
    const std::string folder =
        several ? absl::StrCat(options.folder, name.substr(name.rfind('/'))) : options.folder;
    const auto report = Export(*access, name, folder, options, guard);
    if (guard.interrupted() && !report.ok()) return kExitInterrupted;
    if (!report.ok()) return Fail(report.status());
    Print(folder + "\n");
    if (!report->tokenizer_problem.empty()) {
      Note(absl::StrCat("without a tokenizer, which --tokenizer names: ",
                        report->tokenizer_problem));
    }
    Note(absl::StrCat("wrote ", report->tensors, " tensors, ", HumanBytes(report->bytes), ", in ",
                      report->files == 1 ? "one file" : absl::StrCat(report->files, " files"),
                      " and ", report->others));
  }
  return kExitOk;
}

}  // namespace milepost::client
