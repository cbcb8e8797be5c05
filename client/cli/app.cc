#include "client/cli/app.h"

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/command_tree.h"
#include "client/cli/output.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/spec/nearest.h"

namespace milepost::client {
namespace {

// The innermost command that the arguments named.
const CLI::App* Innermost(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string FullCommand(const CLI::App* app) {
  return app->get_parent() == nullptr
             ? app->get_name()
             : absl::StrCat(FullCommand(app->get_parent()), " ", app->get_name());
}

std::vector<std::string> NamesIn(const CLI::App* app, bool flags) {
  std::vector<std::string> names;
  if (flags) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  for (const CLI::App* child : app->get_subcommands([](const CLI::App*) { return true; })) {
    // Without a name it is a group of this one's options.
    const bool group = child->get_name().empty();
    if (!flags && !group) names.push_back(child->get_name());
    if (!flags || !group) continue;
    for (std::string& name : NamesIn(child, flags)) names.push_back(std::move(name));
  }
  return names;
}

// What is wrong with the command line, for stderr.
std::string Explain(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* command = Innermost(&root);
  std::vector<std::string> extras = command->remaining();
  if (extras.empty()) extras = root.remaining(true);
  if (extras.empty()) return error.what();
  const std::string& first = extras.front();
  const bool is_flag = absl::StartsWith(first, "-");
  const std::vector<std::string> names = NamesIn(command, is_flag);
  const std::string typed = first.substr(0, first.find('='));
  const std::string hint = DidYouMean(typed, names);
  if (is_flag) return absl::StrCat("unknown flag ", typed, hint);
  if (names.empty()) return absl::StrCat("unexpected argument '", first, "'");
  return absl::StrCat("unknown command '", first, "'",
                      hint.empty() ? "; expected one of " + absl::StrJoin(names, ", ") : hint);
}

}  // namespace

CommandInfo DescribeCommands() {
  CommandTree tree;
  return tree.Describe();
}

int Main(int argc, const char* const* argv) {
  CommandTree tree;
  if (argc <= 1) {
    Print(tree.app().help());
    return kExitOk;
  }
  // CLI11 reports by throwing; nothing of it leaves this function.
  try {
    tree.app().parse(argc, argv);
  } catch (const CLI::Success& success) {
    return tree.app().exit(success);
  } catch (const CLI::ParseError& error) {
    Note(absl::StrCat("milepost: ", Explain(tree.app(), error)));
    Hint(absl::StrCat(FullCommand(Innermost(&tree.app())), " --help"));
    return kExitUsage;
  }
  if (absl::Status status = CheckWallClock(absl::Now()); !status.ok()) {
    Note(absl::StrCat("milepost: ", status.message()));
    return kExitError;
  }
  const int exit_code = tree.chosen()();
  // That of a run is its job's, whoever reads of it.
  const bool run = Innermost(&tree.app())->get_name() == "run";
  return run ? exit_code : FinishOutput(exit_code);
}

}  // namespace milepost::client
