#include "client/cli/command_tree.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/exit_codes.h"
#include "common/spec/duration.h"
#include "common/spec/nearest.h"
#include "common/version.h"

namespace milepost::client {
namespace {

const std::map<std::string, OutputFormat> kFormats = {{"table", OutputFormat::kTable},
                                                      {"wide", OutputFormat::kWide},
                                                      {"json", OutputFormat::kJson},
                                                      {"yaml", OutputFormat::kYaml},
                                                      {"name", OutputFormat::kName}};

}  // namespace

CommandTree::CommandTree()
    : app_("Milepost: distributed training that says what it needs and loses nothing.") {
  app_.name("milepost");
  app_.set_version_flag("--version", std::string("milepost ") + kVersion);
  app_.require_subcommand(1);
  app_.footer("`milepost COMMAND --help` explains a command. Start with: milepost run SPEC");
  AddRun();
  AddPlan();
  AddBench();
  AddDoctor();
  AddDataset();
  AddGenerate();
  AddServe();
  AddJob();
  AddTemplate();
  AddQueue();
  AddCheckpoint();
  AddWorker();
  AddAuth();
  AddWeb();
  AddVersionAndCompletion();
}

void CommandTree::OneOf(CLI::Option* option, std::vector<std::string> values) {
  option->check(CLI::Validator(
      [values](std::string& given) {
        for (const std::string& value : values) {
          if (given == value) return std::string();
        }
        return absl::StrCat("expected one of ", absl::StrJoin(values, ", "), ", got '", given, "'",
                            DidYouMean(given, values));
      },
      absl::StrJoin(values, "|")));
  values_[option] = std::move(values);
}

CLI::App* CommandTree::Command(CLI::App* parent, const std::string& name, const std::string& help,
                               std::function<int()> run) {
  CLI::App* command = parent->add_subcommand(name, help);
  command->callback([this, run = std::move(run)] { chosen_ = run; });
  if (name == "list") command->alias("ls");
  return command;
}

CLI::App* CommandTree::Group(const std::string& name, const std::string& help) {
  CLI::App* group = app_.add_subcommand(name, help);
  group->require_subcommand(1);
  return group;
}

void CommandTree::AddOutput(CLI::App* command, std::vector<std::string> formats) {
  OneOf(command->add_option_function<std::string>(
            "-o,--output", [this](const std::string& name) { global_.output = kFormats.at(name); },
            "what stdout holds (default: table)"),
        std::move(formats));
}

void CommandTree::AddDataDir(CLI::App* command) {
  command->add_option("--data-dir", global_.data_dir, "where `milepost run` keeps everything")
      ->each([this](const std::string&) { global_.data_dir_given = true; })
      ->capture_default_str();
}

CLI::App* CommandTree::Connected(CLI::App* command, std::vector<std::string> formats) {
  AddOutput(command, std::move(formats));
  return AddCoordinator(command);
}

CLI::App* CommandTree::AddCoordinator(CLI::App* command) {
  command
      ->add_option(
          "--coordinator", global_.coordinator,
          "HOST:PORT, or several with commas between (default: that of `milepost run` here, "
          "else 127.0.0.1:7070)")
      ->envname("MILEPOST_COORDINATOR");
  AddDataDir(command);
  return command;
}

CLI::App* CommandTree::InProject(CLI::App* command) {
  command->add_option("--project", global_.project,
                      "whose jobs (default: MILEPOST_PROJECT, else the login's)");
  return command;
}

CLI::Option* CommandTree::File(CLI::Option* option) {
  files_.insert(option);
  return option;
}

CLI::Option* CommandTree::Spec(CLI::App* command, std::string* spec) {
  return File(command->add_option("spec", *spec, "the job spec, a YAML file; -: standard input")
                  ->required());
}

CLI::Option* CommandTree::JobNames(CLI::App* command, std::vector<std::string>* jobs) {
  return command->add_option("jobs", *jobs, "jobs/7, 7, or the spec's name when it is unique")
      ->required();
}

int CommandTree::ForEachName(int (*run)(const GlobalOptions&, const std::string&)) {
  int exit_code = kExitOk;
  for (size_t i = 0; i < names_.size() && exit_code == kExitOk; ++i) {
    exit_code = run(global_, names_[i]);
  }
  return exit_code;
}

CLI::Option* CommandTree::Seconds(CLI::App* command, const std::string& name,
                                  std::optional<double>* seconds, const std::string& help) {
  return command
      ->add_option_function<std::string>(
          name, [seconds](const std::string& text) { *seconds = ParseSeconds(text); }, help)
      ->check([](const std::string& text) {
        return ParseSeconds(text) ? std::string()
                                  : "expected a length of time such as 30s, 5m or 1h";
      });
}

CLI::Option* CommandTree::Many(CLI::App* command, const std::string& name,
                               std::vector<std::string>* values, const std::string& help) {
  return command->add_option(name, *values, help + "; may be repeated")->allow_extra_args(false);
}

void CommandTree::Limit(CLI::App* command) {
  command->add_option("--limit", limit_, "at most this many, the newest")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
}

}  // namespace milepost::client
