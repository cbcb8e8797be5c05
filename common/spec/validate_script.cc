// The checks of a spec's script.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/checker.h"
#include "common/spec/script.h"

namespace milepost {
namespace {

constexpr int kMostArguments = 1024;
constexpr size_t kMostArgumentBytes = 32 << 10;  // together
constexpr size_t kMostPathBytes = 1024;
constexpr int kMostVariables = 256;
constexpr size_t kMostVariableBytes = 32 << 10;  // together

std::string Shown(const std::string& text) { return absl::CHexEscape(text.substr(0, 64)); }

void CheckCommand(const v1::ScriptSpec& script, Checker* check) {
  if (script.command().empty() || script.command(0).empty()) {
    return check->Add("script.command",
                      "required: the program and its arguments, such as [python3, train.py]");
  }
  if (script.command_size() > kMostArguments) {
    check->Add("script.command",
               absl::StrCat("has ", script.command_size(), " parts; at most ", kMostArguments));
  }
  size_t bytes = 0;
  for (const std::string& part : script.command()) {
    bytes += part.size() + 1;
    if (absl::StrContains(part, '\0')) {
      check->Add("script.command", absl::StrCat("'", Shown(part), "' holds a zero byte"));
    }
  }
  if (bytes > kMostArgumentBytes) {
    check->Add("script.command", absl::StrCat("has ", bytes, " bytes; at most ", kMostArgumentBytes,
                                              ": put long values into a file"));
  }
}

bool IsVariableName(const std::string& name) {
  if (name.empty() || name.size() > 128 || absl::ascii_isdigit(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_') return false;
  }
  return true;
}

void CheckEnvironment(const v1::ScriptSpec& script, Checker* check) {
  size_t bytes = 0;
  for (const auto& [name, value] : script.environment()) {
    const std::string field = absl::StrCat("script.environment.", name.substr(0, 64));
    bytes += name.size() + value.size() + 2;
    if (!IsVariableName(name)) {
      check->Add(
          "script.environment",
          absl::StrCat("'", Shown(name), "' is no variable's name: letters, digits and '_'"));
    } else if (IsSetForScripts(name)) {
      check->Add(field, "is set by Milepost for each rank: remove it");
    } else if (absl::StrContains(value, '\0')) {
      check->Add(field, "holds a zero byte");
    }
  }
  if (script.environment_size() > kMostVariables) {
    check->Add("script.environment", absl::StrCat("has ", script.environment_size(),
                                                  " variables; at most ", kMostVariables));
  }
  if (bytes > kMostVariableBytes) {
    check->Add("script.environment",
               absl::StrCat("has ", bytes, " bytes; at most ", kMostVariableBytes));
  }
}

void CheckFiles(const v1::ScriptSpec& script, Checker* check) {
  if (!script.files().empty()) {
    check->Add("script.files",
               "only a spec's file has it, for the program `milepost` to send the folder");
  }
  if (!script.has_sent_files()) return;
  if (!script.folder().empty()) {
    check->Add("script.folder", "the files that are sent along are where it runs: remove one");
  }
  const v1::SentFiles& sent = script.sent_files();
  if (!IsSha256Hex(sent.sha256())) {
    check->Add("script.sent_files.sha256", "expected 64 hexadecimal digits in lower case");
  }
  if (sent.bytes() < 1 || sent.bytes() > kMostSentBytes) {
    check->Add("script.sent_files.bytes",
               absl::StrCat("must be 1 to ", kMostSentBytes, ", not ", sent.bytes()));
  }
}

// In the folder where the command runs, so that a job's requirements are part of what it was given.
void CheckRequirements(const v1::ScriptSpec& script, Checker* check) {
  const std::string& file = script.requirements();
  if (file.empty()) {
    if (!script.wheels().empty()) {
      check->Add("script.wheels", "is for script.requirements, which the job has not");
    }
    return;
  }
  if (script.folder().empty() && !script.has_sent_files()) {
    check->Add("script.requirements",
               "is a file in script.files or script.folder: the job needs one of them");
  }
  const std::vector<std::string> parts = absl::StrSplit(file, '/');
  const bool leaves = std::find(parts.begin(), parts.end(), "..") != parts.end();
  if (file[0] == '/' || leaves || file.size() > kMostPathBytes || absl::StrContains(file, '\0')) {
    check->Add("script.requirements", absl::StrCat("'", Shown(file),
                                                   "' must be a path within the "
                                                   "folder, such as requirements.txt"));
  }
}

}  // namespace

bool IsSha256Hex(absl::string_view text) {
  if (text.size() != 64) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(c) && (c < 'a' || c > 'f')) return false;
  }
  return true;
}

bool IsSetForScripts(absl::string_view name) {
  for (const absl::string_view own :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES"}) {
    if (name == own) return true;
  }
  return absl::StartsWith(name, "TORCHELASTIC_") || absl::StartsWith(name, "MILEPOST_") ||
         absl::StartsWith(name, "KUBEFLOW_TRAINER_SERVER_");
}

void CheckScript(const v1::JobSpec& spec, Checker* check) {
  const auto none = [&](bool given, const char* field) {
    if (given) check->Add(field, "a job with `script` has none: the script sees to it");
  };
  none(spec.has_model(), "model");
  none(spec.has_data(), "data");
  none(spec.has_train(), "train");
  none(spec.checkpoint().has_every(), "checkpoint.every");
  check->Int("checkpoint.redundancy", spec.checkpoint().redundancy(), 0, 1);
  none(spec.checkpoint().has_keep_best(), "checkpoint.keep_best");
  CheckKeptCheckpoints(spec.checkpoint(), check);
  none(!spec.report().tensorboard().empty(), "report.tensorboard");
  none(spec.restart().replace_stragglers(), "restart.replace_stragglers");
  CheckCommand(spec.script(), check);
  CheckEnvironment(spec.script(), check);
  const std::string& folder = spec.script().folder();
  if (!folder.empty()) CheckPath("script.folder", folder, check);
  const std::string& wheels = spec.script().wheels();
  if (!wheels.empty()) CheckPath("script.wheels", wheels, check);
  CheckFiles(spec.script(), check);
  CheckRequirements(spec.script(), check);
  CheckContainer(spec.script(), check);
}

}  // namespace milepost
