// The Python environment of a script's requirements, on this host: made once, for all ranks and
// jobs that ask for the same. python/milepost/_environment.py makes it.
//
//   MP_ASSIGN_OR_RETURN(PythonEnvironment environment, PythonEnvironment::Make(options));
//   for (const auto& [name, value] : environment.Variables(path)) ...   // of the script
//
// INVALID_ARGUMENT: trying again would not help, such as requirements that pip refuses.
// UNAVAILABLE: it might, such as an index that did not answer, or `patience` has passed. CANCELLED:
// `give_up` returned true. INTERNAL: something on this host. Not thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_PYTHON_ENVIRONMENT_H_
#define MILEPOST_WORKER_SCRIPT_PYTHON_ENVIRONMENT_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost::worker {

// The longest time that it may take. pip may have gigabytes to fetch.
inline constexpr absl::Duration kEnvironmentPatience = absl::Minutes(30);

struct PythonEnvironmentOptions {
  std::string program;                                         // _environment.py
  std::string requirements;                                    // a file
  std::string wheels;                                          // a folder; empty: from pip's index
  std::string cache;                                           // where environments are kept
  std::vector<std::pair<std::string, std::string>> variables;  // for python3 and pip
  std::function<bool()> give_up;
  absl::Duration patience = kEnvironmentPatience;
};

// In the folder of temporary files, this user's own.
std::string PythonEnvironmentsPath(const std::string& temporary_files);

class PythonEnvironment {
 public:
  // Blocks until it is there. What pip says goes where this process's output goes.
  static absl::StatusOr<PythonEnvironment> Make(const PythonEnvironmentOptions& options);

  const std::string& path() const { return path_; }
  // For a script whose PATH would be `path`: its programs come first.
  std::vector<std::pair<std::string, std::string>> Variables(const std::string& path) const;

 private:
  PythonEnvironment(std::string path, UniqueFd in_use)
      : path_(std::move(path)), in_use_(std::move(in_use)) {}

  std::string path_;
  UniqueFd in_use_;  // it stays as long as this is open
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_PYTHON_ENVIRONMENT_H_
