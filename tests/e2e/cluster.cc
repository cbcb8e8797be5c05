#include "tests/e2e/cluster.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "common/unique_fd.h"

namespace milepost::e2e {

namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::Duration kPause = absl::Milliseconds(10);

std::string Binary(const std::string& name) {
  const char* folder = getenv("MILEPOST_BIN_DIR");
  return folder != nullptr ? absl::StrCat(folder, "/", name)
                           : absl::StrCat(SiblingBinary("../../bin/"), name);
}

}  // namespace

bool IsTerminal(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_SUCCEEDED || job.state() == v1::JOB_STATE_FAILED ||
         job.state() == v1::JOB_STATE_CANCELLED;
}

bool HaveEtcd() { return coordinator::EtcdProcess::Available(); }

// This host's address on some network; 127.0.0.1 when it is on none.
static std::string OwnAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "127.0.0.1";
  std::string found = "127.0.0.1";
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text,
              sizeof text);
    found = text;
  }
  freeifaddrs(all);
  return found;
}

std::string MakeFolder(const std::string& prefix) {
  std::string path =
      (std::filesystem::temp_directory_path() / absl::StrCat(prefix, "_XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr) abort();
  return path;
}

Cluster::Cluster(std::string folder, ClusterOptions options)
    : folder_(std::move(folder)), options_(options) {
  if (options.tls) host_ = OwnAddress();
  for (int i = 0; i < options.coordinators; ++i) listen_.push_back(AnyPort(i));
  coordinators_.resize(listen_.size());
  workers_.resize(static_cast<size_t>(options.workers));
}

Cluster::~Cluster() = default;

void Cluster::Fail(const std::string& what) const {
  std::fprintf(stderr, "FAILED: %s\nlogs are in %s\n", what.c_str(), folder_.c_str());
  std::exit(1);
}

std::string Cluster::AnyPort(int index) const {
  if (options_.place) {
    return options_.place(absl::StrCat("coordinator-", index)).address + ":0";
  }
  return options_.tls ? "0.0.0.0:0" : "127.0.0.1:0";
}

std::string Cluster::AddressOf(int index) const {
  const std::string& listen = listen_[static_cast<size_t>(index)];
  if (listen == AnyPort(index)) return "";
  return options_.place ? listen : host_ + listen.substr(listen.rfind(':'));
}

Subprocess Cluster::Spawn(const std::string& process, std::vector<std::string> argv,
                          const std::string& log) const {
  SpawnOptions options;
  options.argv = std::move(argv);
  options.env = process.empty() ? options_.pki_env : options_.env;
  if (options_.place && !process.empty()) {
    const std::vector<std::string> enter = options_.place(process).enter;
    options.argv.insert(options.argv.begin(), enter.begin(), enter.end());
  }
  options.out = Redirect::File(absl::StrCat(folder_, "/", log));
  options.err = Redirect::File(absl::StrCat(folder_, "/", log));
  absl::StatusOr<Subprocess> started = Subprocess::Spawn(std::move(options));
  if (!started.ok()) Fail(std::string(started.status().message()));
  return *std::move(started);
}

// Whatever the coordinator's certificate says, renewed.
void Cluster::MakePki() const {
  std::vector<std::string> argv = {Binary("milepost-coordinator"), "init-pki", folder_ + "/pki"};
  if (options_.place) {
    argv.insert(argv.end(), {"--host", options_.place("etcd").address});
    for (int i = 0; i < options_.coordinators; ++i) {
      const std::string process = absl::StrCat("coordinator-", i);
      argv.insert(argv.end(), {"--host", options_.place(process).address});
    }
  } else {
    argv.insert(argv.end(), {"--host", host_});
  }
  for (int i = 0; i < options_.workers; ++i) {
    argv.insert(argv.end(), {"--worker", absl::StrCat("worker-", i)});
  }
  Subprocess made = Spawn("", std::move(argv), "pki.log");
  const auto end = made.Wait(absl::Now() + kPatience);
  if (!end.ok() || !end->success()) Fail("init-pki fails");
}

void Cluster::InitStore() const {
  Subprocess made = Spawn(
      "", {Binary("milepost-coordinator"), "init-store", folder_ + "/coordinator"}, "init.log");
  const auto end = made.Wait(absl::Now() + kPatience);
  if (!end.ok() || !end->success()) Fail("init-store fails");
}

Endpoint Cluster::Reached(const std::string& address) const {
  if (!options_.tls) return Endpoint(address);
  std::string token;
  std::ifstream(folder_ + "/pki/client/admin-token") >> token;
  auto credentials = UserCredentials(folder_ + "/pki/client/ca.crt", token);
  if (!credentials.ok()) Fail(credentials.status().ToString());
  return Endpoint(address, *std::move(credentials));
}

void Cluster::Connect() {
  jobs_ = v1::JobService::NewStub(channel_->Get());
  checkpoints_ = v1::CheckpointService::NewStub(channel_->Get());
}

void Cluster::Start() {
  if (options_.tls) MakePki();
  if (options_.coordinators > 1) {
    StartEtcd();
    InitStore();
  }
  for (int i = 0; i < options_.coordinators; ++i) StartCoordinator(i);
  for (int i = 0; i < options_.workers; ++i) StartWorker(i);
}

std::vector<std::string> Cluster::CoordinatorCommand(const std::string& data_dir,
                                                     const std::string& listen,
                                                     const std::string& address_file) const {
  std::vector<std::string> argv = {Binary("milepost-coordinator"), "--data-dir", data_dir,
                                   "--listen", listen, "--address-file", address_file,
                                   "--lease-seconds", absl::StrCat(options_.lease_seconds),
                                   "--resize-seconds", absl::StrCat(options_.resize_seconds),
                                   // Hosts are made to fail here more often than in years.
                                   "--exclude-after", "0"};
  if (options_.tls) {
    argv.insert(argv.end(),
                {"--tls", folder_ + "/pki/coordinator", "--worker-authority", folder_ + "/pki/ca"});
  }
  if (options_.coordinators == 1) return argv;
  argv.insert(argv.end(), {"--etcd", etcd_->address()});
  if (options_.tls) argv.insert(argv.end(), {"--etcd-tls", EtcdIdentity()});
  return argv;
}

int Cluster::RunCoordinatorOn(const std::string& data_dir) {
  Subprocess process =
      Spawn("coordinator-0",
            CoordinatorCommand(data_dir, "127.0.0.1:0", folder_ + "/other-address"), "other.log");
  auto end = process.Wait(absl::Now() + kPatience);
  if (!end.ok()) Fail("the coordinator does not end");
  return end->exit_code;
}

void Cluster::StartCoordinator(int index) {
  const size_t slot = static_cast<size_t>(index);
  const std::string suffix = index == 0 ? "" : absl::StrCat("-", index);
  const std::string address_file = folder_ + "/address" + suffix;
  std::filesystem::remove(address_file);
  std::vector<std::string> argv =
      CoordinatorCommand(folder_ + "/coordinator", listen_[slot], address_file);
  coordinators_[slot] =
      std::make_unique<Subprocess>(Spawn(absl::StrCat("coordinator-", index), std::move(argv),
                                         absl::StrCat("coordinator", suffix, ".log")));
  const absl::Time deadline = absl::Now() + kPatience;
  while (!std::filesystem::exists(address_file)) {
    if (!CoordinatorRuns(index)) Fail("the coordinator ended at its start");
    if (absl::Now() > deadline) Fail("the coordinator does not serve");
    absl::SleepFor(kPause);
  }
  std::ifstream(address_file) >> listen_[slot];
  address_.clear();
  for (int i = 0; i < options_.coordinators; ++i) {
    const std::string one = AddressOf(i);
    if (!one.empty()) absl::StrAppend(&address_, address_.empty() ? "" : ",", one);
  }
  channel_.emplace(Reached(address_));
  Connect();
}

void Cluster::StartEtcd() {
  if (etcd_ == nullptr) {
    coordinator::EtcdProcess::Options options;
    options.folder = folder_;
    if (options_.tls) options.tls_dir = folder_ + "/pki/coordinator";
    if (options_.tls) options.client_tls_dir = EtcdIdentity();
    if (options_.place) {
      const Placement place = options_.place("etcd");
      options.address = place.address + ":2379";
      options.enter = place.enter;
    }
    etcd_ = std::make_unique<coordinator::EtcdProcess>(std::move(options));
  }
  const absl::Status status = etcd_->Start();
  if (!status.ok()) Fail(status.ToString());
}

void Cluster::KillEtcd() { etcd_->Kill(); }

// Any certificate that the authority has signed for a client.
std::string Cluster::EtcdIdentity() const { return folder_ + "/pki/workers/worker-0"; }

void Cluster::SignalEtcd(int signal) { etcd_->Signal(signal); }

void Cluster::StartWorker(int index) {
  const std::string name = absl::StrCat("worker-", index);
  std::vector<std::string> argv = {Binary("milepost-worker"),
                                   "--coordinator",
                                   address_,
                                   "--data-dir",
                                   absl::StrCat(folder_, "/", name),
                                   "--slots",
                                   absl::StrCat(options_.slots),
                                   "--memory-dir",
                                   absl::StrCat(folder_, "/memory/", index)};
  if (options_.tls) argv.insert(argv.end(), {"--tls", folder_ + "/pki/workers/" + name});
  argv.insert(argv.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  workers_[static_cast<size_t>(index)] =
      std::make_unique<Subprocess>(Spawn(name, std::move(argv), name + ".log"));
}

void Cluster::KillCoordinator(int index) {
  SignalCoordinator(index, SIGKILL);
  (void)coordinators_[static_cast<size_t>(index)]->Wait();
}

void Cluster::SignalCoordinator(int index, int signal) {
  (void)coordinators_[static_cast<size_t>(index)]->Signal(signal);
}

int Cluster::AwaitCoordinatorEnd(int index) {
  auto end = coordinators_[static_cast<size_t>(index)]->Wait(absl::Now() + kPatience);
  if (!end.ok()) Fail("the coordinator does not end");
  return end->exit_code;
}

bool Cluster::CoordinatorRuns(int index) {
  return !coordinators_[static_cast<size_t>(index)]->Wait(absl::InfinitePast()).ok();
}

int Cluster::CoordinatorPid(int index) const {
  return coordinators_[static_cast<size_t>(index)]->pid();
}

void Cluster::StartEndedCoordinators() {
  for (int i = 0; i < options_.coordinators; ++i) {
    const auto end = coordinators_[static_cast<size_t>(i)]->Wait(absl::InfinitePast());
    if (!end.ok()) continue;
    if (end->signal != 0) Fail(absl::StrCat("coordinator ", i, " ended: ", end->ToString()));
    StartCoordinator(i);
  }
}

int Cluster::ActiveCoordinator(int but) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    if (options_.start_again) StartEndedCoordinators();
    for (int i = 0; i < options_.coordinators; ++i) {
      if (i == but) continue;
      auto jobs = v1::JobService::NewStub(MakeChannel(Reached(AddressOf(i))));
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
      v1::ListJobsResponse response;
      if (jobs->ListJobs(&context, {}, &response).ok()) return i;
    }
    absl::SleepFor(kPause);
  }
  Fail("no coordinator is active");
}

void Cluster::SignalWorker(int index, int signal) {
  if (!workers_[static_cast<size_t>(index)]->Signal(signal).ok()) Fail("no worker to signal");
}

int Cluster::WorkerPid(int index) const { return workers_[static_cast<size_t>(index)]->pid(); }

void Cluster::CheckAllRun() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    const auto end = workers_[i]->Wait(absl::InfinitePast());
    if (end.ok()) Fail(absl::StrCat("worker ", i, " ended by itself: ", end->ToString()));
  }
  if (options_.start_again) return StartEndedCoordinators();
  for (size_t i = 0; i < coordinators_.size(); ++i) {
    const auto end = coordinators_[i]->Wait(absl::InfinitePast());
    if (end.ok()) Fail(absl::StrCat("coordinator ", i, " ended by itself: ", end->ToString()));
  }
}

void Cluster::KillWorker(int index) {
  Subprocess& worker = *workers_[static_cast<size_t>(index)];
  (void)worker.Signal(SIGKILL);
  (void)worker.Wait();
}

int Cluster::StopWorker(int index, std::initializer_list<int> signals) {
  Subprocess& worker = *workers_[static_cast<size_t>(index)];
  for (const int signal : signals) (void)worker.Signal(signal);
  auto end = worker.Wait(absl::Now() + kPatience);
  if (!end.ok()) Fail("the worker does not stop");
  return end->exit_code;
}

int Cluster::StopCoordinator() {
  SignalCoordinator(0, SIGTERM);
  return AwaitCoordinatorEnd(0);
}

}  // namespace milepost::e2e
