// milepost auth ...
#include <termios.h>
#include <unistd.h>

#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "common/exit_codes.h"
#include "common/proto_time.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr size_t kMostTokenFileBytes = 1 << 16;

constexpr size_t kMostTokenBytes = 4096;

std::string RoleText(v1::Role role) {
  const std::string name = v1::Role_Name(role);  // "ROLE_VIEWER"
  return absl::AsciiStrToLower(name.substr(std::min<size_t>(5, name.size())));
}

std::string GrantsText(const google::protobuf::RepeatedPtrField<v1::Grant>& grants) {
  return absl::StrJoin(grants, ", ", [](std::string* out, const v1::Grant& grant) {
    absl::StrAppend(out, RoleText(grant.role()), " of ",
                    grant.project() == "*" ? "everything" : grant.project());
  });
}

// A line from the terminal, which does not show it.
std::string AskSecretly() {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  termios before = {};
  if (terminal && tcgetattr(STDIN_FILENO, &before) == 0) {
    Note("token:");
    termios silent = before;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
  }
  std::string line;
  std::getline(std::cin, line);
  if (terminal) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
  return line;
}

absl::StatusOr<std::string> TokenFrom(const LoginOptions& options, const Login& known) {
  std::string text = known.token;  // the environment's
  if (!options.token_file.empty()) {
    auto file = ReadRegularFile(options.token_file, kMostTokenFileBytes);
    if (!file.ok()) return Annotate(file.status(), "--token-file");
    text = file->substr(0, file->find('\n'));
  } else if (text.empty()) {
    text = AskSecretly();
  }
  text = std::string(absl::StripAsciiWhitespace(text)).substr(0, kMostTokenBytes);
  if (!text.empty()) return text;
  return absl::InvalidArgumentError("no token: give --token-file, or MILEPOST_TOKEN");
}

absl::StatusOr<Login> TryLogin(const GlobalOptions& global, const LoginOptions& options,
                               v1::Principal* principal) {
  if (global.coordinator.empty()) {
    return absl::InvalidArgumentError("--coordinator HOST:PORT says where to log in");
  }
  Login login = WithEnvironment({global.coordinator, "", "", ""});
  if (!options.authority.empty()) login.authority = options.authority;
  if (!global.project.empty()) login.project = global.project;
  MP_ASSIGN_OR_RETURN(login.token, TokenFrom(options, login));
  MP_ASSIGN_OR_RETURN(const Endpoint endpoint, EndpointOf(login));
  MP_ASSIGN_OR_RETURN(*principal, AuthClient(Connection::To(endpoint)).WhoAmI());
  return login;
}

bool Whole(const GlobalOptions& global) {
  return global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
}

}  // namespace

int AuthLoginCommand(const GlobalOptions& global, const LoginOptions& options) {
  v1::Principal principal;
  const auto login = TryLogin(global, options, &principal);
  if (!login.ok()) return Fail(login.status());
  if (absl::Status status = SaveLogin(*login); !status.ok()) return Fail(status);
  Note(absl::StrCat("logged in to ", login->coordinator, " as ", principal.name(),
                    principal.user().empty() ? "" : " (" + Printable(principal.user()) + ")", ": ",
                    GrantsText(principal.grants())));
  return kExitOk;
}

int AuthWhoAmICommand(const GlobalOptions& global) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto principal = access->auth().WhoAmI();
  if (!principal.ok()) return Fail(principal.status());
  if (Whole(global)) {
    Print(RenderMessage(*principal, global.output));
  } else if (global.output == OutputFormat::kName) {
    Print(principal->name() + "\n");
  } else {
    Print(absl::StrCat(principal->name(),
                       principal->user().empty() ? "" : " (" + Printable(principal->user()) + ")",
                       " at ", access->address(), ": ", GrantsText(principal->grants()),
                       IsSet(principal->expire_time())
                           ? absl::StrCat("; until ", TimeText(principal->expire_time()))
                           : "",
                       "\n"));
  }
  return kExitOk;
}

int TokenCreateCommand(const GlobalOptions& global, const TokenOptions& options) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  v1::CreateTokenRequest request;
  request.set_user(options.user);
  std::vector<std::string> projects = options.projects;
  if (projects.empty()) {
    projects.push_back(access->login().project.empty() ? "default" : access->login().project);
  }
  for (const std::string& project : projects) {
    v1::Grant* grant = request.add_grants();
    grant->set_project(project);
    grant->set_role(options.role == "viewer"      ? v1::ROLE_VIEWER
                    : options.role == "submitter" ? v1::ROLE_SUBMITTER
                                                  : v1::ROLE_ADMIN);
  }
  if (options.expires_seconds) {
    *request.mutable_expire_time() = ToProto(absl::Now() + absl::Seconds(*options.expires_seconds));
  }
  const auto made = access->auth().Create(request);
  if (!made.ok()) return Fail(made.status());
  Print(Whole(global) ? RenderMessage(*made, global.output) : made->secret() + "\n");
  Note(absl::StrCat(made->token().name(), ": ", GrantsText(made->token().grants()),
                    "; shown this once"));
  return kExitOk;
}

int TokenListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto tokens = access->auth().List(limit);
  if (!tokens.ok()) return Fail(tokens.status());
  if (Whole(global)) {
    Print(RenderMessages(*tokens, global.output));
    return kExitOk;
  }
  Table table({"NAME", "USER", "GRANTS", "CREATED", "EXPIRES", "LAST USE", "REVOKED"});
  std::string names;
  for (const v1::Token& token : *tokens) {
    absl::StrAppend(&names, token.name(), "\n");
    table.Add({token.name(), token.user(), GrantsText(token.grants()),
               TimeText(token.create_time()), TimeText(token.expire_time()),
               TimeText(token.last_use_time()), TimeText(token.revoke_time())});
  }
  Print(global.output == OutputFormat::kName ? names : table.ToString());
  return kExitOk;
}

int TokenRevokeCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto token = access->auth().Revoke(FullName("tokens", name));
  if (!token.ok()) return Fail(token.status());
  if (Whole(global)) Print(RenderMessage(*token, global.output));
  if (global.output == OutputFormat::kName) Print(token->name() + "\n");
  Note(absl::StrCat("revoked ", token->name(), " (", Printable(token->user()), ")"));
  return kExitOk;
}

}  // namespace milepost::client
