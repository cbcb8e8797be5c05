#include "worker/script/script_environment.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/utf8.h"

namespace milepost::worker {
namespace {

constexpr size_t kMostCauseBytes = 512;

// Its last line says most: of a traceback the exception.
std::string LastLine(absl::string_view text) {
  text = absl::StripTrailingAsciiWhitespace(text);
  const size_t newline = text.rfind('\n');
  if (newline != absl::string_view::npos) text.remove_prefix(newline + 1);
  return CutUtf8(std::string(absl::StripAsciiWhitespace(text)), kMostCauseBytes);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ScriptEnvironment(const v1::StartRank& start,
                                                                   const ScriptLayout& layout,
                                                                   const ScriptPlaces& places) {
  std::vector<std::pair<std::string, std::string>> environment;
  const auto& own = start.spec().script().environment();
  environment.assign(own.begin(), own.end());
  for (const auto& variable : places.position) {
    if (!own.contains(variable.first)) environment.push_back(variable);
  }
  for (const auto& variable : places.python) {
    std::erase_if(environment,
                  [&](const auto& own_one) { return own_one.first == variable.first; });
    environment.push_back(variable);
  }
  const auto set = [&](const char* name, auto value) {
    environment.emplace_back(name, absl::StrCat(value));
  };
  set("RANK", layout.rank);
  set("WORLD_SIZE", layout.world);
  set("LOCAL_RANK", layout.local_rank);
  set("LOCAL_WORLD_SIZE", layout.local_world);
  set("GROUP_RANK", layout.group_rank);
  set("GROUP_WORLD_SIZE", layout.group_world);
  set("ROLE_NAME", "default");
  set("ROLE_RANK", layout.rank);
  set("ROLE_WORLD_SIZE", layout.world);
  set("MASTER_ADDR", layout.master_address);
  set("MASTER_PORT", layout.master_port);
  set("TORCHELASTIC_RUN_ID", start.uid());
  set("TORCHELASTIC_RESTART_COUNT", start.generation() - 1);
  set("TORCHELASTIC_MAX_RESTARTS", start.spec().restart().max_failures());
  // Rank 0 of the script makes the store itself: there is no agent that has one.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", places.error_file);
  // All of the host's, so that device LOCAL_RANK is this rank's. Empty hides what is not the job's.
  set("CUDA_VISIBLE_DEVICES", absl::StrJoin(layout.local_gpus, ","));
  set("MILEPOST_JOB", start.job());
  set("MILEPOST_JOB_UID", start.uid());
  set("MILEPOST_ATTEMPT", start.generation());
  set("MILEPOST_SCRATCH", places.scratch);
  set("MILEPOST_URL", places.url);
  set("MILEPOST_TOKEN_FILE", places.token_file);
  set("MILEPOST_STOP_FILE", places.stop_file);
  if (!places.python_path.empty()) set("PYTHONPATH", places.python_path);
  // Where these are set, transformers' Trainer reports by itself.
  set("KUBEFLOW_TRAINER_SERVER_URL", absl::StrCat(places.url, "/progress"));
  set("KUBEFLOW_TRAINER_SERVER_TOKEN", places.token_file);
  set("KUBEFLOW_TRAINER_SERVER_CA_CERT", "");
  return environment;
}

std::string FirstCause(absl::string_view error_file) {
  const auto json = nlohmann::json::parse(error_file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) return "";
  const nlohmann::json* message = &json["message"];
  if (message->is_object()) {
    if (!message->contains("message")) return "";
    message = &(*message)["message"];
  }
  return message->is_string() ? LastLine(message->get_ref<const std::string&>()) : "";
}

}  // namespace milepost::worker
