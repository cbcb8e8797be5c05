// milepost web
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/api/clients.h"
#include "client/cli/access.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/output.h"
#include "client/cli/plan_json.h"
#include "client/web/web_server.h"
#include "common/exit_codes.h"
#include "common/systemd/service.h"

namespace milepost::client {
namespace {

// Pages say so too, but whoever starts this looks here.
void SayWhetherItAnswers(const std::shared_ptr<Connection>& coordinator) {
  const absl::Status status = AuthClient(coordinator).WhoAmI().status();
  // Without a token a coordinator with TLS says no more than that.
  if (status.ok() || absl::IsUnauthenticated(status) || absl::IsCancelled(status)) return;
  Note(absl::StrCat("pages cannot show anything yet: ", status.message()));
}

}  // namespace

int WebCommand(const GlobalOptions& global, const WebCommandOptions& options) {
  absl::Notification interrupted;
  const InterruptGuard guard([&] {
    if (!interrupted.HasBeenNotified()) interrupted.Notify();
  });
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  Login login = access->login();
  login.token.clear();  // visitors show their own
  const auto coordinator = EndpointOf(login);
  if (!coordinator.ok()) return Fail(coordinator.status());
  WebOptions web;
  web.listen = options.listen;
  web.tls_dir = options.tls_dir;
  web.allow_hosts = options.allow_hosts;
  web.coordinator = *coordinator;
  web.plan = PlanJsonOn;
  const auto server = WebServer::Start(std::move(web));
  if (!server.ok()) return Fail(server.status());
  Print(absl::StrCat((*server)->url(), "\n"));
  const std::string said = absl::StrCat("the page of the coordinator at ", login.coordinator);
  Note(StdoutIsTerminal() ? absl::StrCat(said, "; Ctrl-C ends it") : said);
  Service service;
  service.Ready(said);
  const auto connection = Connection::To(*coordinator);
  std::thread asks([&] { SayWhetherItAnswers(connection); });
  interrupted.WaitForNotification();
  connection->Cancel();
  asks.join();
  return kExitOk;
}

}  // namespace milepost::client
