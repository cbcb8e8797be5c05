// milepost template ...
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "common/exit_codes.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr char kDefaultProject[] = "default";

std::string ProjectOf(const Access& access) {
  const std::string& project = access.login().project;
  return project.empty() ? kDefaultProject : project;
}

// "gpt2" of the login's project, or a whole name.
std::string FullTemplateName(const Access& access, const std::string& typed) {
  if (absl::StartsWith(typed, "projects/")) return typed;
  return absl::StrCat("projects/", ProjectOf(access), "/templates/", typed);
}

int PrintTemplate(const GlobalOptions& global, const v1::Template& one) {
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(one, global.output) : one.name() + "\n");
  return kExitOk;
}

std::string PrintableLines(absl::string_view text) {
  std::string printable;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    printable += Printable(line) + "\n";
  }
  return printable;
}

}  // namespace

absl::StatusOr<SpecTemplate> FetchTemplate(const GlobalOptions& global, const std::string& typed) {
  MP_ASSIGN_OR_RETURN(const Access access, Access::Open(global, WhenStopped::kFail));
  MP_ASSIGN_OR_RETURN(v1::Template found, access.templates().Get(FullTemplateName(access, typed)));
  const std::string& name = found.name();
  return SpecTemplate{name.substr(name.rfind('/') + 1), std::move(*found.mutable_spec_yaml())};
}

int TemplateCreateCommand(const GlobalOptions& global, const TemplateOptions& options) {
  auto text = ReadSpecTemplateFile(options.file);
  if (!text.ok()) return Fail(text.status());
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  v1::Template wanted;
  wanted.set_name(FullTemplateName(*access, options.name));
  wanted.set_spec_yaml(*std::move(text));
  wanted.set_etag(options.etag);
  const auto made = access->templates().Put(wanted, options.replace, options.validate_only);
  if (!made.ok()) return Fail(made.status());
  if (options.validate_only) {
    Note(absl::StrCat(options.file, " is a valid template; nothing was stored"));
    return kExitOk;
  }
  Note(absl::StrCat("stored ", made->name(), ", etag ", made->etag()));
  PrintTemplate(global, *made);
  Hint(absl::StrCat("milepost job submit --template ", options.name));
  return kExitOk;
}

int TemplateListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto templates = access->templates().List(access->login().project, limit);
  if (!templates.ok()) return Fail(templates.status());
  Print(RenderTemplates(*templates, global.output, absl::Now()));
  const std::string& project = access->login().project;
  if (templates->empty() && !project.empty()) {
    Hint(absl::StrCat("project ", Printable(project), " has no templates, or you may not see it"));
  } else if (templates->empty()) {
    Hint("no templates yet: milepost template create NAME FILE");
  }
  return kExitOk;
}

int TemplateDescribeCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto found = access->templates().Get(FullTemplateName(*access, typed));
  if (!found.ok()) return Fail(found.status());
  const bool for_people =
      global.output == OutputFormat::kTable || global.output == OutputFormat::kWide;
  if (!for_people) return PrintTemplate(global, *found);
  Note(absl::StrCat(found->name(), ", etag ", found->etag(), ", changed ",
                    AgeText(found->update_time(), absl::Now()), " ago"));
  if (isatty(STDOUT_FILENO) == 0) {  // as it was written, for a file
    Print(found->spec_yaml());
    return kExitOk;
  }
  Print(PrintableLines(found->spec_yaml()));
  return kExitOk;
}

int TemplateDeleteCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const std::string name = FullTemplateName(*access, typed);
  if (absl::Status status = access->templates().Delete(name); !status.ok()) return Fail(status);
  Note(absl::StrCat("deleted ", name));
  return kExitOk;
}

}  // namespace milepost::client
