#include "tests/e2e/cluster.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "common/rpc/status.h"
#include "common/spec/validate.h"
#include "common/unique_fd.h"
#include "engine/data/npy.h"

namespace milepost::e2e {

namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::Duration kPause = absl::Milliseconds(10);
constexpr char kEtcd[] = "/usr/bin/etcd";

std::string Binary(const std::string& name) {
  const char* folder = getenv("MILEPOST_BIN_DIR");
  return folder != nullptr ? absl::StrCat(folder, "/", name)
                           : absl::StrCat(SiblingBinary("../../bin/"), name);
}

std::vector<int> ChildrenOf(pid_t pid) {
  std::vector<int> children;
  std::error_code error;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    std::ifstream file(task.path() / "children");
    int child;
    while (file >> child) children.push_back(child);
  }
  return children;
}

// CPU time used so far, in clock ticks; 0 when it is gone.
int64_t CpuTicks(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text, ')');  // the name may hold spaces
  std::string word;
  for (int i = 0; i < 11; ++i) file >> word;
  int64_t user = 0, system = 0;
  file >> user >> system;
  return user + system;
}

}  // namespace

bool IsTerminal(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_SUCCEEDED || job.state() == v1::JOB_STATE_FAILED ||
         job.state() == v1::JOB_STATE_CANCELLED;
}

bool HaveEtcd() { return access(kEtcd, X_OK) == 0; }

// Of a port that nobody had a moment ago.
static std::string FreeAddress() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  auto* generic = reinterpret_cast<sockaddr*>(&name);
  if (bind(fd.get(), generic, size) != 0 || getsockname(fd.get(), generic, &size) != 0) abort();
  return absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
}

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
  listen_.assign(static_cast<size_t>(options.coordinators),
                 options.tls ? "0.0.0.0:0" : "127.0.0.1:0");
  coordinators_.resize(listen_.size());
  workers_.resize(static_cast<size_t>(options.workers));
}

Cluster::~Cluster() = default;

void Cluster::Fail(const std::string& what) const {
  std::fprintf(stderr, "FAILED: %s\nlogs are in %s\n", what.c_str(), folder_.c_str());
  std::exit(1);
}

Subprocess Cluster::Spawn(std::vector<std::string> argv, const std::string& log) const {
  SpawnOptions options;
  options.argv = std::move(argv);
  options.out = Redirect::File(absl::StrCat(folder_, "/", log));
  options.err = Redirect::File(absl::StrCat(folder_, "/", log));
  absl::StatusOr<Subprocess> process = Subprocess::Spawn(std::move(options));
  if (!process.ok()) Fail(std::string(process.status().message()));
  return *std::move(process);
}

// Whatever the coordinator's certificate says, renewed.
void Cluster::MakePki() const {
  std::vector<std::string> argv = {Binary("milepost-coordinator"), "init-pki", folder_ + "/pki",
                                   "--host", host_};
  for (int i = 0; i < options_.workers; ++i) {
    argv.insert(argv.end(), {"--worker", absl::StrCat("worker-", i)});
  }
  Subprocess made = Spawn(std::move(argv), "pki.log");
  const auto end = made.Wait(absl::Now() + kPatience);
  if (!end.ok() || !end->success()) Fail("init-pki fails");
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
  if (options_.coordinators > 1) StartEtcd();
  for (int i = 0; i < options_.coordinators; ++i) StartCoordinator(i);
  for (int i = 0; i < options_.workers; ++i) StartWorker(i);
}

std::vector<std::string> Cluster::CoordinatorCommand(const std::string& data_dir,
                                                     const std::string& listen,
                                                     const std::string& address_file) const {
  std::vector<std::string> argv = {Binary("milepost-coordinator"),
                                   "--data-dir",
                                   data_dir,
                                   "--listen",
                                   listen,
                                   "--address-file",
                                   address_file,
                                   "--lease-seconds",
                                   absl::StrCat(options_.lease_seconds),
                                   "--resize-seconds",
                                   absl::StrCat(options_.resize_seconds)};
  if (options_.tls) argv.insert(argv.end(), {"--tls", folder_ + "/pki/coordinator"});
  if (options_.coordinators > 1) argv.insert(argv.end(), {"--etcd", etcd_});
  return argv;
}

int Cluster::RunCoordinatorOn(const std::string& data_dir) {
  Subprocess process =
      Spawn(CoordinatorCommand(data_dir, "127.0.0.1:0", folder_ + "/other-address"), "other.log");
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
  coordinators_[slot] = std::make_unique<Subprocess>(
      Spawn(std::move(argv), absl::StrCat("coordinator", suffix, ".log")));
  const absl::Time deadline = absl::Now() + kPatience;
  while (!std::filesystem::exists(address_file)) {
    if (!CoordinatorRuns(index)) Fail("the coordinator ended at its start");
    if (absl::Now() > deadline) Fail("the coordinator does not serve");
    absl::SleepFor(kPause);
  }
  std::ifstream(address_file) >> listen_[slot];
  address_.clear();
  for (const std::string& listen : listen_) {
    if (listen.substr(listen.rfind(':')) == ":0") continue;
    absl::StrAppend(&address_, address_.empty() ? "" : ",", host_,
                    listen.substr(listen.rfind(':')));
  }
  channel_.emplace(Reached(address_));
  Connect();
}

void Cluster::StartEtcd() {
  if (etcd_.empty()) {
    etcd_ = FreeAddress();
    etcd_peer_ = FreeAddress();
  }
  const std::string client = "http://" + etcd_, peer = "http://" + etcd_peer_;
  etcd_process_ = std::make_unique<Subprocess>(
      Spawn({kEtcd, "--data-dir", folder_ + "/etcd", "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
             "--logger", "zap"},
            "etcd.log"));
  auto channel = MakeChannel(Endpoint(etcd_));
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kPatience))) {
    Fail("etcd does not answer");
  }
}

void Cluster::KillEtcd() {
  (void)etcd_process_->Signal(SIGKILL);
  (void)etcd_process_->Wait();
}

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
  workers_[static_cast<size_t>(index)] =
      std::make_unique<Subprocess>(Spawn(std::move(argv), name + ".log"));
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

int Cluster::ActiveCoordinator(int but) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    for (int i = 0; i < options_.coordinators; ++i) {
      if (i == but) continue;
      const std::string& listen = listen_[static_cast<size_t>(i)];
      auto jobs =
          v1::JobService::NewStub(MakeChannel(Reached(host_ + listen.substr(listen.rfind(':')))));
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

void Cluster::KillWorker(int index) {
  Subprocess& worker = *workers_[static_cast<size_t>(index)];
  (void)worker.Signal(SIGKILL);
  (void)worker.Wait();
}

std::vector<int> Cluster::TrainerPids() const {
  std::vector<int> pids;
  for (const auto& worker : workers_) {
    for (int pid : ChildrenOf(worker->pid())) pids.push_back(pid);
  }
  return pids;
}

bool Cluster::KillTrainer(uint64_t pick) {
  const std::vector<int> pids = TrainerPids();
  if (pids.empty()) return false;
  kill(pids[pick % pids.size()], SIGKILL);
  return true;
}

void Cluster::AwaitIdleTrainers() const {
  const absl::Time deadline = absl::Now() + kPatience;
  int64_t before = -1000;
  while (absl::Now() < deadline) {
    int64_t now = 0;
    for (int pid : TrainerPids()) now += CpuTicks(pid);
    if (now <= before + 3) return;  // retrying takes a little
    before = now;
    absl::SleepFor(absl::Seconds(1));
  }
  Fail("the trainers do not come to rest");
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

template <typename Call>
void Cluster::Rpc(const std::string& name, Call call) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    const grpc::Status status = call(&context);
    if (status.ok()) return;
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || absl::Now() > deadline) {
      Fail(absl::StrCat(name, ": ", status.error_message()));
    }
    channel_->Failed(channel_->Get());
    Connect();
    absl::SleepFor(kPause);
  }
}

std::string Cluster::Submit(const v1::JobSpec& spec) {
  absl::BitGen bits;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(absl::StrFormat("%08x-0000-4000-8000-%012x", absl::Uniform<uint32_t>(bits),
                                         absl::Uniform<uint64_t>(bits) >> 16));
  v1::Job job;
  Rpc("SubmitJob",
      [&](grpc::ClientContext* context) { return jobs_->SubmitJob(context, request, &job); });
  return job.name();
}

void Cluster::Cancel(const std::string& name) {
  v1::CancelJobRequest request;
  request.set_name(name);
  v1::Job job;
  Rpc("CancelJob",
      [&](grpc::ClientContext* context) { return jobs_->CancelJob(context, request, &job); });
}

std::vector<v1::LogLine> Cluster::Logs(const std::string& job) {
  v1::StreamLogsRequest request;
  request.set_name(job);
  std::vector<v1::LogLine> lines;
  Rpc("StreamLogs", [&](grpc::ClientContext* context) {
    lines.clear();
    auto stream = jobs_->StreamLogs(context, request);
    v1::LogLine line;
    while (stream->Read(&line)) lines.push_back(line);
    return stream->Finish();
  });
  return lines;
}

v1::Job Cluster::Get(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::Job job;
  Rpc("GetJob",
      [&](grpc::ClientContext* context) { return jobs_->GetJob(context, request, &job); });
  return job;
}

v1::Job Cluster::Await(const std::string& name, const std::function<bool(const v1::Job&)>& done,
                       absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  while (true) {
    v1::Job job = Get(name);
    if (done(job)) return job;
    if (absl::Now() > deadline) Fail(absl::StrCat("waited in vain for ", job.ShortDebugString()));
    absl::SleepFor(kPause);
  }
}

std::vector<v1::Checkpoint> Cluster::Checkpoints(const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  request.set_page_size(1000);
  v1::ListCheckpointsResponse response;
  Rpc("ListCheckpoints", [&](grpc::ClientContext* context) {
    return checkpoints_->ListCheckpoints(context, request, &response);
  });
  return {response.checkpoints().begin(), response.checkpoints().end()};
}

std::vector<std::string> Cluster::DamagedChunks(const std::string& checkpoint) {
  v1::VerifyCheckpointRequest request;
  request.set_name(checkpoint);
  v1::VerifyCheckpointResponse response;
  Rpc("VerifyCheckpoint", [&](grpc::ClientContext* context) {
    return checkpoints_->VerifyCheckpoint(context, request, &response);
  });
  return {response.damaged_chunks().begin(), response.damaged_chunks().end()};
}

void Cluster::FlipAByteOfTheNewestChunks() const {
  constexpr uintmax_t kManifestBytes = 64 << 10;  // the files that hold no chunks are smaller
  std::filesystem::path newest;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder_ + "/coordinator")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < kManifestBytes) continue;
    // Named by a number that grows.
    if (newest.empty() || entry.path().filename() > newest.filename()) newest = entry.path();
  }
  if (newest.empty()) Fail("there is no file with chunks");
  std::fstream file(newest, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(1000);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(1000);
  file.put(byte);
  file.close();
  if (!file) Fail(absl::StrCat("cannot damage ", newest.string()));
}

std::map<std::string, uint64_t> Cluster::TensorDigests(const std::string& checkpoint) {
  v1::GetCheckpointRequest get;
  get.set_name(checkpoint);
  v1::CheckpointManifest manifest;
  Rpc("GetCheckpoint", [&](grpc::ClientContext* context) {
    return checkpoints_->GetCheckpoint(context, get, &manifest);
  });
  std::vector<std::map<int64_t, std::string>> pieces(static_cast<size_t>(manifest.tensors_size()));
  Rpc("ReadChunks", [&](grpc::ClientContext* context) {
    v1::ReadChunksRequest request;
    request.set_name(checkpoint);
    auto stream = checkpoints_->ReadChunks(context, request);
    v1::Chunk chunk;
    while (stream->Read(&chunk)) {
      pieces[static_cast<size_t>(chunk.tensor())][chunk.begin()] = chunk.data();
    }
    return stream->Finish();
  });
  std::map<std::string, uint64_t> digests;
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    std::string bytes;
    for (const auto& [begin, data] : pieces[static_cast<size_t>(i)]) bytes += data;
    const v1::TensorInfo& tensor = manifest.tensors(i);
    digests[absl::StrCat(tensor.name(), " ", tensor.kind())] = Xxh3(bytes);
  }
  return digests;
}

bool Cluster::CheckpointBeingWritten() const {
  std::error_code error;
  return std::filesystem::directory_iterator(folder_ + "/coordinator/staging", error) !=
         std::filesystem::directory_iterator();
}

v1::JobSpec SmallJob(const std::string& folder, int64_t steps) {
  v1::JobSpec spec;
  spec.set_name("small");
  for (const char* name : {"train", "validation"}) {
    const std::string path = absl::StrCat(folder, "/", name, ".npy");
    (name[0] == 't' ? *spec.mutable_data()->mutable_train()
                    : *spec.mutable_data()->mutable_validation()) = path;
    if (std::filesystem::exists(path)) continue;
    auto writer = data::NpyWriter::Create(path, data::TokenType::kUint8);
    std::vector<uint32_t> tokens;
    uint64_t state = name[0] == 't' ? 1 : 2;
    for (int i = 0; i < 40000; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      // Runs of letters: something to learn.
      tokens.push_back(static_cast<uint32_t>('a' + (i + (state >> 61)) % 26));
    }
    if (!writer.ok() || !(*writer)->Append(tokens).ok() || !(*writer)->Finish().ok()) abort();
  }
  v1::Gpt2Spec& model = *spec.mutable_model()->mutable_gpt2();
  model.set_layers(2);
  model.set_width(64);
  model.set_heads(2);
  model.set_context(64);
  model.set_vocabulary(256);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_precision(v1::PRECISION_FP32);
  spec.mutable_train()->mutable_batch()->set_global(8);
  spec.mutable_train()->mutable_batch()->set_micro(4);
  spec.mutable_train()->mutable_validation()->set_samples(16);
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_checkpoint()->set_every(10);
  spec.mutable_checkpoint()->set_keep_last(1000);
  spec.mutable_restart()->set_backoff_seconds(0.05);
  NormalizeJobSpec(&spec);
  return spec;
}

}  // namespace milepost::e2e
