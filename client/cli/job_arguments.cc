#include "client/cli/job_arguments.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/api/clients.h"
#include "client/cli/hugging_face_model.h"
#include "client/cli/script_files.h"
#include "common/spec/labels.h"
#include "common/spec/nearest.h"
#include "common/spec/parse.h"
#include "common/spec/paths.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr size_t kMostElements = 1000;

// Goes along a text, and knows what is within brackets, braces and quotes.
class Nesting {
 public:
  // True: `c` is outside of them, and is none of them.
  bool IsOutside(char c) {
    if (quote_ != 0) {
      quote_ = c == quote_ ? 0 : quote_;
    } else if (c == '"' || c == '\'') {
      quote_ = c;
    } else if (c == '[' || c == '{') {
      ++depth_;
    } else if (c == ']' || c == '}') {
      --depth_;
    } else {
      return depth_ == 0;
    }
    return false;
  }

 private:
  int depth_ = 0;
  char quote_ = 0;
};

// `text` cut at `separator`, but for those within brackets, braces and quotes.
std::vector<std::string> SplitOutside(absl::string_view text, char separator) {
  std::vector<std::string> parts(1);
  Nesting nesting;
  for (const char c : text) {
    if (nesting.IsOutside(c) && c == separator) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

void SetKeyAndValue(absl::string_view key, absl::string_view value, v1::LabelRequirement* one) {
  one->set_key(std::string(key));
  one->set_value(std::string(value));
}

absl::StatusOr<v1::LabelRequirement> ParseRequirement(absl::string_view text) {
  v1::LabelRequirement one;
  const std::string shown(text);
  if (absl::ConsumePrefix(&text, "!")) {
    one.set_operator_(v1::LabelRequirement::OPERATOR_ABSENT);
    one.set_key(std::string(text));
  } else if (const size_t at = text.find("!="); at != absl::string_view::npos) {
    one.set_operator_(v1::LabelRequirement::OPERATOR_NOT_EQUALS);
    SetKeyAndValue(text.substr(0, at), text.substr(at + 2), &one);
  } else if (const size_t equals = text.find('='); equals != absl::string_view::npos) {
    one.set_operator_(v1::LabelRequirement::OPERATOR_EQUALS);
    SetKeyAndValue(text.substr(0, equals), text.substr(equals + 1), &one);
  } else {
    one.set_operator_(v1::LabelRequirement::OPERATOR_EXISTS);
    one.set_key(std::string(text));
  }
  if (IsLabelKey(one.key()) && IsLabelValue(one.value())) return one;
  return absl::InvalidArgumentError(
      absl::StrCat("expected key=value, key!=value, key or !key of a label, got '", shown, "'"));
}

struct Axis {
  std::string path;
  std::vector<std::string> values;
};

absl::StatusOr<Axis> ParseAxis(const std::string& text) {
  MP_ASSIGN_OR_RETURN(const v1::SpecOverride all, ParseOverride(text));
  Axis axis = {all.path(), SplitOutside(all.value(), ',')};
  for (std::string& value : axis.values) {
    value = std::string(absl::StripAsciiWhitespace(value));
    if (!value.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--array: ", axis.path, ": expected values with commas between, got '", all.value(), "'"));
  }
  return axis;
}

// Those of the spec's file are absolute: what is typed in a shell is relative to where that is.
void MakeTypedPathsAbsolute(v1::JobSpec* spec) {
  ForEachPath(spec, [](absl::string_view field, PathUse use, std::string* path) {
    std::error_code error;
    if (!path->empty() && path->front() != '/') {
      *path = std::filesystem::absolute(*path, error).lexically_normal().string();
    }
  });
}

}  // namespace

absl::StatusOr<std::pair<std::string, std::string>> ParseLabel(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos) {
    std::pair<std::string, std::string> label = {text.substr(0, equals), text.substr(equals + 1)};
    if (IsLabelKey(label.first) && IsLabelValue(label.second)) return label;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a label such as team=vision (letters, digits, '-', '_' and '.'), got '", text,
      "'"));
}

absl::Status ChangeLabels(const std::vector<std::string>& texts,
                          google::protobuf::Map<std::string, std::string>* labels) {
  for (const std::string& text : texts) {
    if (absl::EndsWith(text, "-") && !absl::StrContains(text, '=')) {
      labels->erase(text.substr(0, text.size() - 1));
      continue;
    }
    MP_ASSIGN_OR_RETURN(const auto label, ParseLabel(text));
    (*labels)[label.first] = label.second;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::LabelRequirement>> ParseSelector(const std::string& text) {
  std::vector<v1::LabelRequirement> all;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    MP_ASSIGN_OR_RETURN(all.emplace_back(), ParseRequirement(absl::StripAsciiWhitespace(part)));
  }
  return all;
}

std::vector<std::string> JobStateNames() {
  std::vector<std::string> names = {"active", "ended"};
  const auto* type = v1::JobState_descriptor();
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() == v1::JOB_STATE_UNSPECIFIED) continue;
    names.push_back(absl::AsciiStrToLower(EnumYamlName(*type->value(i))));
  }
  return names;
}

void SortJobs(const std::string& order, std::vector<v1::Job>* jobs) {
  if (order == "newest") return;
  const auto loss = [&](const v1::Job& job) {
    const v1::Progress& progress = job.progress();
    const bool validation = order == "validation";
    const bool known = (validation ? progress.validation_step() : progress.step()) > 0;
    const double value = validation ? progress.validation_loss() : progress.train_loss();
    return known && !std::isnan(value) ? value : std::numeric_limits<double>::infinity();
  };
  std::stable_sort(jobs->begin(), jobs->end(),
                   [&](const v1::Job& a, const v1::Job& b) { return loss(a) < loss(b); });
}

absl::StatusOr<std::vector<v1::JobState>> ParseState(const std::string& text) {
  const std::string wanted = absl::AsciiStrToLower(text);
  std::vector<v1::JobState> states;
  const std::vector<std::string> names = JobStateNames();
  const auto* type = v1::JobState_descriptor();
  for (int i = 0; i < type->value_count(); ++i) {
    const auto state = static_cast<v1::JobState>(type->value(i)->number());
    if (state == v1::JOB_STATE_UNSPECIFIED) continue;
    const bool named = absl::AsciiStrToLower(EnumYamlName(*type->value(i))) == wanted ||
                       (wanted == "ended" && IsTerminal(state)) ||
                       (wanted == "active" && !IsTerminal(state));
    if (named) states.push_back(state);
  }
  if (!states.empty()) return states;
  return absl::InvalidArgumentError(absl::StrCat("expected a state (", absl::StrJoin(names, ", "),
                                                 "), got '", text, "'", DidYouMean(wanted, names)));
}

absl::StatusOr<std::vector<v1::ArrayElement>> ExpandArray(const std::vector<std::string>& texts) {
  std::vector<v1::ArrayElement> elements(1);
  std::set<std::string> seen;
  for (const std::string& text : texts) {
    for (const std::string& part : SplitOutside(text, ' ')) {
      if (absl::StripAsciiWhitespace(part).empty()) continue;
      MP_ASSIGN_OR_RETURN(const Axis axis, ParseAxis(part));
      if (!seen.insert(axis.path).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("--array: ", axis.path, " is given twice: give all its values at once"));
      }
      if (elements.size() * axis.values.size() > kMostElements) {
        return absl::InvalidArgumentError(
            absl::StrCat("--array: more than ", kMostElements, " jobs: submit several arrays"));
      }
      if (std::set<std::string>(axis.values.begin(), axis.values.end()).size() <
          axis.values.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--array: ", axis.path, " has a value twice: the jobs would be the same"));
      }
      std::vector<v1::ArrayElement> longer;
      for (const v1::ArrayElement& element : elements) {
        for (const std::string& value : axis.values) {
          v1::SpecOverride* one = longer.emplace_back(element).add_overrides();
          one->set_path(axis.path);
          one->set_value(value);
        }
      }
      elements = std::move(longer);
    }
  }
  if (!seen.empty()) return elements;
  return absl::InvalidArgumentError(
      "--array: expected paths with their values such as 'train.seed=1,2 train.optimizer.lr=1e-4'");
}

absl::StatusOr<Overrides> ParseOverrides(const std::vector<std::string>& texts) {
  Overrides overrides;
  for (const std::string& text : texts) {
    auto one = ParseOverride(text);
    if (!one.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--set: ", one.status().message()));
    }
    *overrides.Add() = *std::move(one);
  }
  return overrides;
}

namespace {

std::vector<SpecFiller> FillersFor(ScriptFiles* files) {
  return {HuggingFaceModel(), files->Filler()};
}

}  // namespace

absl::StatusOr<v1::JobSpec> ReadSpec(const SpecSource& source, ScriptFiles* files) {
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, source.base ? ReadJobSpecOver(*source.base, source.path)
                                                    : ReadJobSpecFile(source.path));
  MP_ASSIGN_OR_RETURN(const Overrides parsed, ParseOverrides(source.overrides));
  MP_RETURN_IF_ERROR(ApplyOverrides(parsed, "--set", &spec));
  if (!parsed.empty()) MakeTypedPathsAbsolute(&spec);
  ScriptFiles own;
  for (const SpecFiller& filler : FillersFor(files == nullptr ? &own : files)) {
    const absl::Status filled = filler.fill(&spec);
    if (filled.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(filler.field, ": ", filled.message()));
  }
  return spec;
}

absl::StatusOr<v1::JobSpec> LoadSpec(const SpecSource& source, ScriptFiles* files) {
  // With the places of what is wrong, where all is in texts.
  if (source.overrides.empty()) {
    ScriptFiles own;
    const std::vector<SpecFiller> fillers = FillersFor(files == nullptr ? &own : files);
    return source.base ? LoadJobSpecOver(*source.base, source.path, fillers)
                       : LoadJobSpec(source.path, fillers);
  }
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, ReadSpec(source, files));
  NormalizeJobSpec(&spec);
  const absl::Status valid = ValidateJobSpec(spec);
  if (valid.ok()) return spec;
  return absl::Status(valid.code(), absl::StrCat(valid.message(), " (--set can be repeated)"));
}

}  // namespace milepost::client
