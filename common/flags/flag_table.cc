#include "common/flags/flag_table.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/exit_codes.h"
#include "common/regular_file.h"
#include "common/spec/nearest.h"
#include "common/spec/yaml_tree.h"
#include "common/status_macros.h"
#include "common/version.h"

namespace milepost {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxProblems = 10;
constexpr size_t kMaxShownBytes = 40;
constexpr char kLiveGroup[] = "Flags that SIGHUP changes too, from --config";

std::string FieldOf(const CLI::Option& option) { return option.get_lnames().front(); }

std::string Shown(absl::string_view text) {
  std::string shown(text.substr(0, kMaxShownBytes));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return text.size() > kMaxShownBytes ? shown + "..." : shown;
}

std::string ShownNode(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMapping:
      return "a mapping";
    case YamlNode::Kind::kScalar:
      break;
  }
  return absl::StrCat("'", Shown(node.scalar), "'");
}

// "FLOAT:FLOAT in [0.2 - 3600]" of an option.
std::string Expected(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const absl::string_view name = absl::string_view(type).substr(0, type.find(':'));
  if (name == "INT" || name == "UINT") return "a whole number";
  if (name == "FLOAT") return "a number";
  return name == "TEXT" ? "text" : type;
}

// Gives the option these values and has it check them. CLI11 throws; nothing of it leaves this.
absl::Status Give(CLI::Option* option, const std::vector<std::string>& values) {
  try {
    option->clear();
    for (const std::string& value : values) option->add_result(value);
    option->run_callback();
  } catch (const CLI::ConversionError&) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", Expected(*option), ", got '",
                                                   Shown(absl::StrJoin(values, ",")), "'"));
  } catch (const CLI::Error& error) {
    const std::string what = error.what();
    return absl::InvalidArgumentError(
        absl::StripPrefix(what, absl::StrCat(option->get_name(), ": ")));
  }
  return absl::OkStatus();
}

// A --config file's fields, given to the options that they name.
class FileReader {
 public:
  FileReader(absl::string_view filename, const std::vector<CLI::Option*>& options,
             const std::set<CLI::Option*>& once)
      : filename_(filename), once_(once) {
    for (CLI::Option* option : options) {
      options_[FieldOf(*option)] = option;
      if (once.contains(option)) continue;
      names_.push_back(FieldOf(*option));
    }
  }

  absl::Status Read(const YamlNode& root) {
    if (root.kind == YamlNode::Kind::kNull) return absl::OkStatus();  // all is commented out
    if (root.kind != YamlNode::Kind::kMapping) {
      Problem(root.line, "the file", absl::StrCat("expected fields, got ", ShownNode(root)));
    }
    std::set<std::string> seen;
    for (const auto& [key, value] : root.fields) {
      if (key.kind != YamlNode::Kind::kScalar) {
        Problem(key.line, "the file",
                absl::StrCat("expected a field's name, got ", ShownNode(key)));
      } else if (!seen.insert(key.scalar).second) {
        Problem(key.line, Shown(key.scalar), "given twice: keep one");
      } else {
        ReadField(key, value);
      }
    }
    if (count_ > kMaxProblems) {
      absl::StrAppend(&problems_.emplace_back(), filename_, ": and ", count_ - kMaxProblems,
                      " more");
    }
    return count_ == 0 ? absl::OkStatus()
                       : absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Problem(int line, absl::string_view field, absl::string_view problem) {
    if (++count_ > kMaxProblems) return;
    problems_.push_back(
        absl::StrCat(filename_, ":", std::max(line, 1), ": ", field, ": ", problem));
  }

  void ReadField(const YamlNode& key, const YamlNode& value) {
    const auto found = options_.find(key.scalar);
    if (found == options_.end()) {
      const std::string hint = DidYouMean(key.scalar, names_);
      return Problem(key.line, Shown(key.scalar),
                     absl::StrCat("unknown field", hint.empty() ? "; expected one of " : hint,
                                  hint.empty() ? absl::StrJoin(names_, ", ") : ""));
    }
    if (once_.contains(found->second)) {
      return Problem(key.line, key.scalar,
                     absl::StrCat("is true of one start alone: give it as ",
                                  found->second->get_name(), " on the command line"));
    }
    const std::optional<std::vector<std::string>> values = ValuesOf(*found->second, value);
    if (!values.has_value()) return;
    const absl::Status given = Give(found->second, *values);
    if (!given.ok()) Problem(value.line, key.scalar, given.message());
  }

  // Nothing: there was a problem.
  std::optional<std::vector<std::string>> ValuesOf(const CLI::Option& option,
                                                   const YamlNode& value) {
    const bool many = option.get_items_expected_max() > 1;
    const bool is_switch = option.get_items_expected_max() == 0;
    std::vector<std::string> values;
    if (many && value.kind == YamlNode::Kind::kSequence) {
      for (const YamlNode& item : value.items) {
        if (item.kind == YamlNode::Kind::kScalar) {
          values.push_back(item.scalar);
          continue;
        }
        Problem(item.line, FieldOf(option), absl::StrCat("expected texts, got ", ShownNode(item)));
        return std::nullopt;
      }
      if (!values.empty()) return values;
      Problem(value.line, FieldOf(option), "an empty list: leave the field out");
      return std::nullopt;
    }
    const bool is_bool = !value.quoted && (value.scalar == "true" || value.scalar == "false");
    if (value.kind == YamlNode::Kind::kScalar && (is_bool || !is_switch)) {
      return std::vector<std::string>{value.scalar};
    }
    const char* wanted = is_switch ? "true or false" : many ? "a list" : "a value";
    Problem(value.line, FieldOf(option),
            absl::StrCat("expected ", wanted, ", got ", ShownNode(value)));
    return std::nullopt;
  }

  const std::string filename_;
  const std::set<CLI::Option*>& once_;
  std::map<std::string, CLI::Option*> options_;
  std::vector<std::string> names_;
  std::vector<std::string> problems_;
  size_t count_ = 0;
};

}  // namespace

FlagTable::FlagTable(const std::string& description, const std::string& name)
    : app_(description, name) {
  app_.set_version_flag("--version", kVersion);
  app_.add_option("--config", config_,
                  "YAML file with flags, under the same names without dashes; those given here win "
                  "over it");
}

CLI::Option* FlagTable::Required(CLI::Option* option) {
  required_.insert(option->required());
  return option;
}

CLI::Option* FlagTable::Live(CLI::Option* option) {
  live_.insert(option->group(kLiveGroup));
  return option;
}

CLI::Option* FlagTable::Once(CLI::Option* option) {
  once_.insert(option);
  return option;
}

std::vector<CLI::Option*> FlagTable::Fields() {
  std::vector<CLI::Option*> fields;
  for (CLI::Option* option : app_.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : FieldOf(*option);
    if (name.empty() || name == "help" || name == "version" || name == "config") continue;
    fields.push_back(option);
  }
  return fields;
}

// Throws what CLI11 does. What is required may be in the file.
void FlagTable::ParseCommandLine(std::vector<std::string> args) {
  struct Relaxed {
    explicit Relaxed(const std::set<CLI::Option*>& its_options) : options(its_options) {
      for (CLI::Option* option : options) option->required(false);
    }
    ~Relaxed() {
      for (CLI::Option* option : options) option->required(true);
    }
    const std::set<CLI::Option*>& options;
  } relaxed(required_);
  std::reverse(args.begin(), args.end());  // as CLI11 wants it
  app_.parse(std::move(args));
}

absl::Status FlagTable::CheckRequired() const {
  for (const CLI::Option* option : required_) {
    if (option->count() > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        option->get_name(), " is required",
        config_.empty() ? "" : absl::StrCat(", here or as '", FieldOf(*option), "' in ", config_)));
  }
  return absl::OkStatus();
}

absl::Status FlagTable::ReadFile(absl::string_view text, absl::string_view filename) {
  MP_ASSIGN_OR_RETURN(const YamlNode root, ParseYamlTree(text, filename));
  // All of the file is checked, also what the command line wins over.
  std::map<CLI::Option*, std::vector<std::string>> given;
  for (CLI::Option* option : Fields()) {
    if (option->count() > 0) given[option] = option->results();
  }
  MP_RETURN_IF_ERROR(FileReader(filename, Fields(), once_).Read(root));
  for (const auto& [option, values] : given) MP_RETURN_IF_ERROR(Give(option, values));
  return absl::OkStatus();
}

absl::Status FlagTable::ReadCommandLine(const std::vector<std::string>& args) {
  try {
    ParseCommandLine(args);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return absl::OkStatus();
}

absl::Status FlagTable::ReadWith(const std::vector<std::string>& args, absl::string_view text,
                                 absl::string_view filename) {
  MP_RETURN_IF_ERROR(ReadCommandLine(args));
  MP_RETURN_IF_ERROR(ReadFile(text, filename));
  return CheckRequired();
}

absl::Status FlagTable::Read(const std::vector<std::string>& args) {
  MP_RETURN_IF_ERROR(ReadCommandLine(args));
  if (config_.empty()) return CheckRequired();
  const absl::StatusOr<std::string> text = ReadRegularFile(config_, kMaxConfigBytes);
  // Bad usage whatever the reason is.
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--config: ", text.status().message()));
  }
  MP_RETURN_IF_ERROR(ReadFile(*text, config_));
  return CheckRequired();
}

std::optional<int> FlagTable::Parse(int argc, const char* const* argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    ParseCommandLine(args);
  } catch (const CLI::ParseError& error) {
    return app_.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const absl::Status status = Read(args);
  if (status.ok()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    std::fprintf(stderr, "%s: %s\n", app_.get_name().c_str(), std::string(line).c_str());
  }
  return kExitUsage;
}

FlagTable::Changes FlagTable::ChangesSince(FlagTable& before) {
  const auto value = [](const CLI::Option& option) {
    return option.count() > 0 ? option.results()
                              : std::vector<std::string>{option.get_default_str()};
  };
  std::map<std::string, std::vector<std::string>> old;
  for (const CLI::Option* option : before.Fields()) old[FieldOf(*option)] = value(*option);
  Changes changes;
  for (CLI::Option* option : Fields()) {
    if (old[FieldOf(*option)] == value(*option)) continue;
    auto& list = live_.contains(option) ? changes.live : changes.fixed;
    list.push_back(FieldOf(*option));
  }
  return changes;
}

}  // namespace milepost
