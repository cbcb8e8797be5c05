#include "client/cli/completion.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace milepost::client {
namespace {

// Every command with the words that lead to it ("job submit"; "" for the root).
void Walk(const CommandInfo& command, const std::string& path,
          const std::function<void(const CommandInfo&, const std::string&)>& visit) {
  visit(command, path);
  for (const CommandInfo& child : command.commands) {
    std::vector<std::string> names = child.aliases;
    names.insert(names.begin(), child.name);
    for (const std::string& name : names) {
      Walk(child, path.empty() ? name : absl::StrCat(path, " ", name), visit);
    }
  }
}

// What may come next after the command's words: commands and flags.
std::vector<std::string> NextWords(const CommandInfo& command) {
  std::vector<std::string> words = command.positional_values;
  for (const CommandInfo& child : command.commands) words.push_back(child.name);
  for (const FlagInfo& flag : command.flags) {
    words.insert(words.end(), flag.names.begin(), flag.names.end());
  }
  return words;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// bash, and zsh through its bash emulation: a case per command, and one per flag with known values.
std::string BashBody(const CommandInfo& root) {
  std::string words;
  std::string values;
  std::string commands;
  Walk(root, "", [&](const CommandInfo& command, const std::string& path) {
    absl::StrAppend(
        &words, "    ", Quoted(path), ") words=", Quoted(absl::StrJoin(NextWords(command), " ")),
        command.takes_files ? " files=1" : "",
        command.listed_by.empty() ? "" : " names=" + Quoted(command.listed_by), " ;;\n");
    if (!path.empty()) absl::StrAppend(&commands, commands.empty() ? "" : "|", Quoted(path));
    for (const FlagInfo& flag : command.flags) {
      if (!flag.takes_value) continue;
      for (const std::string& name : flag.names) {
        absl::StrAppend(&values, "    ", Quoted(absl::StrCat(path, " ", name)),
                        ") words=", Quoted(absl::StrJoin(flag.values, " ")),
                        flag.values.empty() ? " files=1" : "", " value=1 ;;\n");
      }
    }
  });
  return absl::StrCat(R"(_milepost() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
  local path='' candidate words='' files='' value='' names='' given=() i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --coordinator|--data-dir) given+=("${COMP_WORDS[i]}" "${COMP_WORDS[i+1]}") ;;
    esac
    candidate="${path:+$path }${COMP_WORDS[i]}"
    case $candidate in
    )",
                      commands, R"() path=$candidate ;;
    esac
  done
  case "$path $previous" in
)",
                      values, R"(  esac
  if [[ -z $value ]]; then
    case $path in
)",
                      words, R"(    esac
  fi
  # Of plain names alone: compgen -W runs what stands in $( ).
  if [[ -n $names && $current != -* ]]; then
    names=$(timeout 2 milepost $names "${given[@]}" 2>/dev/null | grep -xE '[A-Za-z0-9/._-]+')
    words+=" $names"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ -n $files ]]; then
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}
)");
}

std::string FishScript(const CommandInfo& root) {
  std::string script = R"(# milepost completion for fish: milepost completion fish | source
function __milepost_path
  set -l path
  for word in (commandline -opc)[2..-1]
    switch "$path $word"
)";
  std::string cases;
  Walk(root, "", [&](const CommandInfo&, const std::string& path) {
    if (path.empty()) return;
    const size_t space = path.rfind(' ');
    // `$path $word`: at the root $path is empty, which leaves a leading space.
    absl::StrAppend(&cases, " ", Quoted(space == std::string::npos ? " " + path : path));
  });
  absl::StrAppend(&script, "      case", cases, R"(
        set path (string trim "$path $word")
    end
  end
  echo "$path"
end
function __milepost_at
  test (__milepost_path) = "$argv[1]"
end
complete -c milepost -f
)");
  Walk(root, "", [&](const CommandInfo& command, const std::string& path) {
    const std::string line = absl::StrCat("complete -c milepost -n ",
                                          Quoted(absl::StrCat("__milepost_at '", path, "'")));
    for (const CommandInfo& child : command.commands) {
      absl::StrAppend(&script, line, " -a ", Quoted(child.name), " -d ", Quoted(child.help), "\n");
    }
    for (const std::string& value : command.positional_values) {
      absl::StrAppend(&script, line, " -a ", Quoted(value), "\n");
    }
    if (command.takes_files) absl::StrAppend(&script, line, " -F\n");
    if (!command.listed_by.empty()) {
      absl::StrAppend(&script, line, " -a '(timeout 2 milepost ", command.listed_by,
                      " 2>/dev/null)'\n");
    }
    for (const FlagInfo& flag : command.flags) {
      absl::StrAppend(&script, line);
      for (const std::string& name : flag.names) {
        const bool is_long = name.rfind("--", 0) == 0;
        absl::StrAppend(&script, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
      }
      if (flag.takes_value) absl::StrAppend(&script, " -r");
      if (!flag.values.empty()) {
        absl::StrAppend(&script, " -f -a ", Quoted(absl::StrJoin(flag.values, " ")));
      } else if (flag.takes_value) {
        absl::StrAppend(&script, " -F");
      }
      absl::StrAppend(&script, " -d ", Quoted(flag.help), "\n");
    }
  });
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CommandInfo& root, const std::string& shell) {
  if (shell == "bash") {
    return absl::StrCat("# milepost completion for bash: source <(milepost completion bash)\n",
                        BashBody(root), "complete -o filenames -F _milepost milepost\n");
  }
  if (shell == "zsh") {
    return absl::StrCat("# milepost completion for zsh: source <(milepost completion zsh)\n",
                        "autoload -U +X bashcompinit && bashcompinit\n", BashBody(root),
                        "complete -F _milepost milepost\n");
  }
  if (shell == "fish") return FishScript(root);
  return absl::InvalidArgumentError(
      absl::StrCat("no completion for '", shell, "'; expected bash, zsh or fish"));
}

}  // namespace milepost::client
