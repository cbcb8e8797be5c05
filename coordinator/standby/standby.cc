#include "coordinator/standby/standby.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/exit_codes.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"
#include "coordinator/election/election.h"
#include "coordinator/rpc/standby_server.h"
#include "coordinator/standby/shared_store.h"
#include "coordinator/store/epochs.h"

namespace milepost::coordinator {
namespace {

// Also how late a standby notices that there is nobody active.
constexpr absl::Duration kPoll = absl::Milliseconds(200);
// For workers to notice that the coordinator they know is dead or stopped (common/rpc/status.cc).
constexpr absl::Duration kStartGrace = absl::Seconds(5);

absl::StatusOr<std::vector<Endpoint>> EtcdEndpoints(const StandbyOptions& options) {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (!options.etcd_tls_dir.empty()) {
    MP_ASSIGN_OR_RETURN(credentials, WorkerCredentials(options.etcd_tls_dir));
  }
  std::vector<Endpoint> endpoints;
  for (const std::string& address : options.etcd) {
    if (credentials == nullptr && !IsLoopback(address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--etcd: ", address, " is not on this host, and is talked to over TLS ",
                       "alone: give --etcd-tls DIR with ca.crt, tls.crt and tls.key"));
    }
    endpoints.push_back(Endpoint(address, credentials));
  }
  return endpoints;
}

// True when one of `signals` came within `time`.
bool Signalled(const sigset_t& signals, absl::Duration time) {
  const timespec wait = absl::ToTimespec(time);
  const int signal = sigtimedwait(&signals, nullptr, &wait);
  if (signal <= 0) return false;
  spdlog::info("stopping: {}", strsignal(signal));
  return true;
}

// Does something after a while, on a thread of its own, unless it is destroyed before.
class Later {
 public:
  Later(absl::Duration delay, std::function<void(const std::function<bool()>& stopping)> action)
      : thread_([this, delay, action = std::move(action)] {
          if (stopping_.WaitForNotificationWithTimeout(delay)) return;
          action([this] { return stopping_.HasBeenNotified(); });
        }) {}
  ~Later() {
    stopping_.Notify();
    thread_.join();
  }

 private:
  absl::Notification stopping_;
  std::thread thread_;
};

class ActiveStandby {
 public:
  ActiveStandby(EtcdClient* etcd, ServerOptions server, const StandbyOptions& options)
      : etcd_(etcd), server_(std::move(server)), options_(options), dir_(server_.store.dir) {}

  absl::Status Run(const sigset_t& signals,
                   const std::function<absl::Status(const std::string&)>& listening) {
    MP_ASSIGN_OR_RETURN(standby_, StandbyServer::Start(server_.listen, server_.tls_dir));
    // The same port when it is active.
    server_.listen = standby_->address();
    MP_RETURN_IF_ERROR(listening(standby_->address()));
    Election election(
        etcd_, {.key = options_.key,
                .value = options_.advertise.empty() ? standby_->address() : options_.advertise,
                .ttl = options_.ttl});
    MP_ASSIGN_OR_RETURN(const int64_t revision, AwaitElection(&election, signals));
    if (revision == 0) return absl::OkStatus();
    election.KeepRenewing([](const absl::Status& why) {
      spdlog::error("not the active coordinator any more: {}", std::string(why.message()));
      _exit(kExitNotActive);
    });
    const absl::Status status = Serve(&election, revision, signals);
    election.Resign();
    return status;
  }

 private:
  // The election that was won; 0: told to stop.
  absl::StatusOr<int64_t> AwaitElection(Election* election, const sigset_t& signals) {
    std::string active;
    bool complained = false, checked = false;
    while (true) {
      if (!checked) {
        const absl::Status status = CheckSharedStore(etcd_, options_.key, dir_).status();
        if (absl::IsFailedPrecondition(status)) return status;
        checked = status.ok();
      }
      const absl::StatusOr<Standing> standing = election->Try();
      if (standing.ok() && standing->revision > 0) return standing->revision;
      if (!standing.ok() && !std::exchange(complained, true)) {
        spdlog::warn("no election: {}; trying on", std::string(standing.status().message()));
      }
      if (standing.ok() && standing->active != active) {
        active = standing->active;
        complained = false;
        spdlog::info("standing by: the active coordinator is at {}", active);
        standby_->SetActive(active);
      }
      if (options_.standing_by) options_.standing_by(active);
      if (Signalled(signals, kPoll)) return 0;
    }
  }

  absl::Status Serve(Election* election, int64_t revision, const sigset_t& signals) {
    standby_->SetActive("");
    MP_ASSIGN_OR_RETURN(const bool known, CheckSharedStore(etcd_, options_.key, dir_));
    MP_ASSIGN_OR_RETURN(const int64_t newest, NewestEpoch(dir_));
    if (!known && newest > 0) {
      // Whoever was elected by what etcd has forgotten may act for as long yet.
      spdlog::warn("etcd has lost its data: waiting for {} until whoever was active has ended",
                   absl::FormatDuration(options_.ttl));
      if (Signalled(signals, options_.ttl)) return absl::OkStatus();
    }
    // After the wait: the next winner takes it as a sign that there is nobody to wait for.
    MP_RETURN_IF_ERROR(ClaimSharedStore(etcd_, options_.key, dir_));
    const absl::Time begin = absl::Now();
    const auto may_act = [election] { return election->MayAct(); };
    MP_ASSIGN_OR_RETURN(const Epoch epoch, TakeOver(dir_, may_act));
    absl::StatusOr<std::unique_ptr<CoordinatorServer>> server = ServeEpoch(epoch, may_act);
    if (!server.ok()) {
      // systemd will try again and again. A later one may be copying it already.
      const absl::Status removed = may_act().ok() ? Abandon(dir_, epoch) : absl::OkStatus();
      if (!removed.ok()) spdlog::warn("{}: {}", epoch.dir, std::string(removed.message()));
      return server.status();
    }
    spdlog::info("active: serving on {}, data in {}, {:.2f} s after election {}",
                 (*server)->address(), epoch.dir, absl::ToDoubleSeconds(absl::Now() - begin),
                 revision);
    Later cleaner(options_.keep_older_epochs, [&](const std::function<bool()>& stopping) {
      if (options_.before_cleaning) options_.before_cleaning();
      absl::Status status = election->MayAct();
      if (status.ok()) status = RemoveOlderEpochs(dir_, epoch.number, stopping);
      if (!status.ok()) spdlog::warn("older epochs: {}", std::string(status.message()));
    });
    while (!Signalled(signals, absl::Hours(1))) continue;
    (*server)->Stop();
    server->reset();
    // The next one need not wait for the cleaner, which touches older epochs alone.
    election->Resign();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<CoordinatorServer>> ServeEpoch(
      const Epoch& epoch, std::function<absl::Status()> may_act) {
    if (server_.audit_path.empty() && !server_.tls_dir.empty()) {
      server_.audit_path = absl::StrCat(dir_, "/audit.log");
    }
    server_.store.dir = epoch.dir;
    server_.store.shared = true;
    server_.coordinator.may_act = std::move(may_act);
    server_.coordinator.start_grace = kStartGrace;
    server_.before_listening = [this] { standby_.reset(); };
    return CoordinatorServer::Start(server_);
  }

  EtcdClient* const etcd_;
  ServerOptions server_;
  const StandbyOptions options_;
  const std::string dir_;
  std::unique_ptr<StandbyServer> standby_;
};

}  // namespace

absl::Status RunWithStandby(ServerOptions server, const StandbyOptions& options,
                            const sigset_t& signals,
                            const std::function<absl::Status(const std::string&)>& listening) {
  MP_ASSIGN_OR_RETURN(std::vector<Endpoint> endpoints, EtcdEndpoints(options));
  EtcdClient etcd(std::move(endpoints));
  return ActiveStandby(&etcd, std::move(server), options).Run(signals, listening);
}

}  // namespace milepost::coordinator
