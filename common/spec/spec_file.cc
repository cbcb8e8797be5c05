// The part of parse.h that reads files.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/regular_file.h"
#include "common/spec/parse.h"
#include "common/spec/paths.h"
#include "common/spec/validate.h"
#include "common/spec/yaml_tree.h"
#include "common/status_macros.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

constexpr size_t kMaxPathProblems = 10;  // that one message tells of

namespace fs = std::filesystem;

constexpr size_t kLongestJobName = 63;

constexpr char kStandardInput[] = "-";

absl::StatusOr<std::string> ReadStandardInput() {
  std::string text(kMaxSpecBytes + 1, '\0');
  const size_t size = std::fread(text.data(), 1, text.size(), stdin);
  if (std::ferror(stdin) != 0) {
    return absl::InvalidArgumentError("job spec: standard input cannot be read");
  }
  if (size > kMaxSpecBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("job spec: more than ", kMaxSpecBytes, " bytes on standard input"));
  }
  text.resize(size);
  return text;
}

// An invalid argument whatever the reason: "not found" is about jobs.
absl::StatusOr<std::string> ReadBounded(const std::string& path) {
  if (path == kStandardInput) return ReadStandardInput();
  auto text = ReadRegularFile(path, kMaxSpecBytes);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat("job spec: ", text.status().message()));
}

// The file's name without its extension, as a valid job name.
std::string DefaultName(const fs::path& path) {
  if (path == kStandardInput) return "stdin";
  std::string name = path.stem().string().substr(0, kLongestJobName);
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') c = '-';
  }
  return name;
}

absl::Status MakePathsAbsolute(const std::string& file, v1::JobSpec* spec) {
  std::error_code error;
  const fs::path folder = fs::absolute(fs::path(file), error).parent_path();
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot resolve the folder of ", file, ": ", error.message()));
  }
  ForEachPath(spec, [&](absl::string_view, PathUse, std::string* path) {
    if (!path->empty()) *path = (folder / *path).lexically_normal().string();
  });
  return absl::OkStatus();
}

// A text that a spec is from.
struct Source {
  std::string name;
  FieldLines lines;
};

// Where a field was given, in the first source that has it; "train.batch" when train.batch.micro
// was never written: the nearest place that was.
std::string Place(std::string field, absl::Span<const Source> sources) {
  while (true) {
    for (const Source& source : sources) {
      const auto line = source.lines.find(field);
      if (line != source.lines.end()) return absl::StrCat(source.name, ":", line->second);
    }
    const size_t dot = field.rfind('.');
    if (dot == std::string::npos) return absl::StrCat(sources[0].name, ":1");
    field.resize(dot);
  }
}

absl::StatusOr<v1::JobSpec> Checked(v1::JobSpec spec, absl::Span<const SpecFiller> fillers,
                                    absl::Span<const Source> sources) {
  for (const SpecFiller& filler : fillers) {
    const absl::Status filled = filler.fill(&spec);
    if (filled.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Place(filler.field, sources), ": ", filler.field, ": ", filled.message()));
  }
  NormalizeJobSpec(&spec);
  std::vector<std::string> problems;
  for (const FieldViolation& violation : CheckJobSpec(spec)) {
    problems.push_back(absl::StrCat(Place(violation.field, sources), ": ", violation.field, ": ",
                                    violation.message));
  }
  if (problems.empty()) return spec;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

// Each text is read by itself first: what is wrong is told with its own name and line.
absl::StatusOr<v1::JobSpec> ReadOver(const SpecTemplate& base, const std::string& path,
                                     std::vector<Source>* sources) {
  v1::JobSpec alone;
  Source of_base = {absl::StrCat("template ", base.name), {}};
  MP_RETURN_IF_ERROR(ParseYamlMessage(base.yaml, of_base.name, &alone, &of_base.lines));
  if (path.empty()) {
    if (alone.name().empty()) alone.set_name(base.name);
    sources->push_back(std::move(of_base));
    return alone;
  }
  MP_ASSIGN_OR_RETURN(const std::string text, ReadBounded(path));
  Source of_file = {path, {}};
  v1::JobSpec spec;
  MP_RETURN_IF_ERROR(ParseYamlMessage(text, path, &spec, &of_file.lines));
  MP_ASSIGN_OR_RETURN(YamlNode merged, ParseYamlTree(base.yaml, of_base.name));
  MP_ASSIGN_OR_RETURN(YamlNode over, ParseYamlTree(text, path));
  LayOver(std::move(over), &merged);
  spec.Clear();
  MP_RETURN_IF_ERROR(
      FillMessage(merged, absl::StrCat(path, " over ", of_base.name), &spec, nullptr));
  MP_RETURN_IF_ERROR(MakePathsAbsolute(path, &spec));
  if (spec.name().empty()) spec.set_name(DefaultName(path));
  *sources = {std::move(of_file), std::move(of_base)};
  return spec;
}

}  // namespace

absl::StatusOr<v1::JobSpec> ReadJobSpecFile(const std::string& path, FieldLines* lines) {
  MP_ASSIGN_OR_RETURN(std::string text, ReadBounded(path));
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobSpecYaml(text, path, lines));
  MP_RETURN_IF_ERROR(MakePathsAbsolute(path, &spec));
  if (spec.name().empty()) spec.set_name(DefaultName(path));
  return spec;
}

absl::StatusOr<v1::JobSpec> LoadJobSpec(const std::string& path,
                                        absl::Span<const SpecFiller> fillers) {
  Source source = {path, {}};
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, ReadJobSpecFile(path, &source.lines));
  return Checked(std::move(spec), fillers, absl::MakeConstSpan(&source, 1));
}

absl::Status CheckSpecTemplate(absl::string_view yaml, absl::string_view filename) {
  if (yaml.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        filename, ": ", yaml.size(), " bytes; a template has at most ", kMaxTemplateBytes));
  }
  Source source = {std::string(filename), {}};
  v1::JobSpec spec;
  MP_RETURN_IF_ERROR(ParseYamlMessage(yaml, filename, &spec, &source.lines));
  std::vector<std::string> problems;
  ForEachPath(&spec, [&](absl::string_view field, PathUse, std::string* path) {
    if (path->empty() || path->front() == '/' || problems.size() >= kMaxPathProblems) return;
    problems.push_back(absl::StrCat(Place(std::string(field), absl::MakeConstSpan(&source, 1)),
                                    ": ", field,
                                    ": must begin with '/': a template is in no folder"));
  });
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

absl::StatusOr<std::string> ReadSpecTemplateFile(const std::string& path) {
  MP_ASSIGN_OR_RETURN(std::string text, ReadBounded(path));
  MP_RETURN_IF_ERROR(CheckSpecTemplate(text, path));
  return text;
}

absl::StatusOr<v1::JobSpec> ReadJobSpecOver(const SpecTemplate& base, const std::string& path) {
  std::vector<Source> sources;
  return ReadOver(base, path, &sources);
}

absl::StatusOr<v1::JobSpec> LoadJobSpecOver(const SpecTemplate& base, const std::string& path,
                                            absl::Span<const SpecFiller> fillers) {
  std::vector<Source> sources;
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, ReadOver(base, path, &sources));
  return Checked(std::move(spec), fillers, sources);
}

}  // namespace milepost
