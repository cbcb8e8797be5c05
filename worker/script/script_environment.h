// The environment of a script's rank: torchrun's, so that a script written for it runs as it is.
// https://pytorch.org/docs/stable/elastic/run.html#environment-variables
//
//   spawn.env = ScriptEnvironment(start, layout, places);
//
// Pure.
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_ENVIRONMENT_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_ENVIRONMENT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "milepost/v1/worker.pb.h"
#include "worker/script/script_layout.h"

namespace milepost::worker {

struct ScriptPlaces {
  std::string scratch;     // an empty folder of the rank's own
  std::string error_file;  // where the script may say why it failed
  // Where it talks to Milepost, and with what: rank_endpoint.h.
  std::string url;
  std::string token_file;
  std::string stop_file;    // stop_page.h
  std::string python_path;  // empty: no Python package is there
  // For rank_position.h: variables that the spec may set otherwise.
  std::vector<std::pair<std::string, std::string>> position;
  // Of python_environment.h, which has the spec's PATH at its end; empty: there is none.
  std::vector<std::pair<std::string, std::string>> python;
};

// What the spec adds, then what Milepost sets.
std::vector<std::pair<std::string, std::string>> ScriptEnvironment(const v1::StartRank& start,
                                                                   const ScriptLayout& layout,
                                                                   const ScriptPlaces& places);

// Why a script failed, by what it wrote to TORCHELASTIC_ERROR_FILE (a JSON object with `message`,
// which is a text or has one): one line. Empty: it says nothing. Any bytes are safe.
std::string FirstCause(absl::string_view error_file);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_ENVIRONMENT_H_
