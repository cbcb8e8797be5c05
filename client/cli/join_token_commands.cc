// milepost worker token ...
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "common/exit_codes.h"
#include "common/proto_time.h"

namespace milepost::client {
namespace {

bool AsMessage(const GlobalOptions& global) {
  return global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
}

std::string UsesText(const v1::JoinToken& token) {
  return token.uses() == 0 ? absl::StrCat(token.used())
                           : absl::StrCat(token.used(), "/", token.uses());
}

// "any host" or whom it is bound to.
std::string WhoJoins(const v1::JoinToken& token) {
  std::string who = token.worker_pattern().empty() ? "any host" : token.worker_pattern();
  if (!token.service_account().empty()) {
    absl::StrAppend(&who, " by service account ", token.service_account());
  }
  if (!token.addresses().empty()) {
    absl::StrAppend(&who, " from ", absl::StrJoin(token.addresses(), ", "));
  }
  return who;
}

std::string DescribeToken(const v1::JoinToken& token) {
  const std::string uses = token.uses() == 0   ? "any number of hosts"
                           : token.uses() == 1 ? "one host"
                                               : absl::StrCat(token.uses(), " hosts");
  return absl::StrCat(token.name(), ": ", uses, " may join", " pool ", Printable(token.pool()),
                      " until ", TimeText(token.expire_time()), " (", WhoJoins(token), ")",
                      token.service_account().empty() ? "; shown this once" : "");
}

}  // namespace

int JoinTokenCreateCommand(const GlobalOptions& global, const JoinTokenOptions& options) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  v1::CreateJoinTokenRequest request;
  request.set_pool(options.pool);
  request.set_uses(options.uses);
  request.set_worker_pattern(options.worker_pattern);
  request.set_service_account(options.service_account);
  request.mutable_addresses()->Assign(options.addresses.begin(), options.addresses.end());
  *request.mutable_expire_time() =
      ToProto(absl::Now() + absl::Seconds(options.ttl_seconds.value_or(kDefaultJoinTtlSeconds)));
  const auto made = access->join_tokens().Create(request);
  if (!made.ok()) return Fail(made.status());
  const bool has_secret = !made->secret().empty();
  Print(AsMessage(global) ? RenderMessage(*made, global.output)
        : has_secret      ? absl::StrCat(made->secret(), "\n", made->authority())
                          : made->authority());
  Note(DescribeToken(made->token()));
  if (!has_secret) {
    Hint(
        "in each pod: milepost-worker --join-token-file the token that the cluster projects, "
        "--join-authority what was printed (docs/operate/kubernetes.md)");
    return kExitOk;
  }
  Hint(absl::StrCat("on each host, with what was printed in a file: milepost-worker --coordinator ",
                    access->address(), " --data-dir DIR --join-token-file FILE"));
  return kExitOk;
}

int JoinTokenListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto tokens = access->join_tokens().List(limit);
  if (!tokens.ok()) return Fail(tokens.status());
  if (AsMessage(global)) {
    Print(RenderMessages(*tokens, global.output));
    return kExitOk;
  }
  Table table({"NAME", "POOL", "WHO", "USED", "CREATED", "EXPIRES", "LAST USE", "REVOKED"});
  std::string names;
  for (const v1::JoinToken& token : *tokens) {
    absl::StrAppend(&names, token.name(), "\n");
    table.Add({token.name(), token.pool(), WhoJoins(token), UsesText(token),
               TimeText(token.create_time()), TimeText(token.expire_time()),
               TimeText(token.last_use_time()), TimeText(token.revoke_time())});
  }
  Print(global.output == OutputFormat::kName ? names : table.ToString());
  return kExitOk;
}

int JoinTokenRevokeCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto token = access->join_tokens().Revoke(FullName("joinTokens", name));
  if (!token.ok()) return Fail(token.status());
  if (AsMessage(global)) Print(RenderMessage(*token, global.output));
  if (global.output == OutputFormat::kName) Print(token->name() + "\n");
  Note(absl::StrCat("revoked ", token->name(), "; the ", token->used(),
                    token->used() == 1 ? " host that has" : " hosts that have",
                    " joined with it stay"));
  return kExitOk;
}

}  // namespace milepost::client
