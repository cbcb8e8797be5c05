// milepost doctor: checked by milepost-worker, which knows of GPUs.
#include <filesystem>

#include "client/cli/commands.h"
#include "common/subprocess.h"

namespace milepost::client {
namespace {

// Longer than all checks together may take.
constexpr absl::Duration kPatience = absl::Minutes(4);

// The folder, or that of its parents which is there: the disk is the same.
std::string NearestFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path.string();
}

}  // namespace

int DoctorCommand(const GlobalOptions& global, const DoctorOptions& options) {
  SpawnOptions spawn;
  spawn.argv = {SiblingBinary("milepost-worker"), "doctor", "--data-dir",
                options.data_dir_given ? global.data_dir : NearestFolder(global.data_dir)};
  if (!global.coordinator.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--coordinator", global.coordinator});
  }
  if (!options.data_set.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--dataset", options.data_set});
  }
  spawn.argv.insert(spawn.argv.end(),
                    {"--output", global.output == OutputFormat::kJson ? "json" : "table"});
  spawn.own_process_group = false;
  auto doctor = Subprocess::Spawn(std::move(spawn));
  if (!doctor.ok()) return Fail(doctor.status());
  const auto end = doctor->Wait(absl::Now() + kPatience);
  if (!end.ok()) return Fail(end.status());
  if (end->signal == 0) return end->exit_code;
  return Fail(absl::InternalError("milepost-worker doctor: " + end->ToString()));
}

}  // namespace milepost::client
