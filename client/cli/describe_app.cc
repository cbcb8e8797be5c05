#include "client/cli/describe_app.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::client {
namespace {

// What lists the resources that a positional of that name takes; empty: nothing does.
std::string ListedBy(const std::string& positional) {
  for (const char* one : {"job", "checkpoint", "worker", "queue", "template"}) {
    const bool is_it = positional == one || positional == absl::StrCat(one, "s");
    if (is_it) return absl::StrCat(one, " list -o name --limit 200");
  }
  return "";
}

}  // namespace

CommandInfo DescribeApp(const CLI::App& app, const OptionValues& values,
                        const std::set<const CLI::Option*>& files) {
  CommandInfo info;
  info.name = app.get_name();
  info.aliases = app.get_aliases();
  info.help = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    const auto found = values.find(option);
    if (option->get_positional()) {
      if (found != values.end()) info.positional_values = found->second;
      info.takes_files = info.takes_files || files.count(option) > 0;
      if (info.listed_by.empty()) info.listed_by = ListedBy(option->get_name());
      continue;
    }
    FlagInfo flag;
    for (const auto& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const auto& name : option->get_lnames()) flag.names.push_back("--" + name);
    flag.help = option->get_description();
    flag.takes_value = option->get_expected_max() > 0;
    if (found != values.end()) flag.values = found->second;
    info.flags.push_back(std::move(flag));
  }
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    info.commands.push_back(DescribeApp(*child, values, files));
  }
  return info;
}

}  // namespace milepost::client
