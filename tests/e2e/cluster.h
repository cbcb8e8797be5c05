// For tests: a coordinator and workers as real processes on loopback, in a folder of their own.
//
//   Cluster cluster(folder, {.workers = 1, .slots = 2});
//   cluster.Start();
//   std::string job = cluster.Submit(SmallJob(folder));
//   v1::Job end = cluster.Await(job, [](const v1::Job& j) { return IsTerminal(j); });
//
// Nothing here returns an error. A failure ends the process with a message and the path of the
// folder, which has the logs. Not thread-safe.
#ifndef MILEPOST_TESTS_E2E_CLUSTER_H_
#define MILEPOST_TESTS_E2E_CLUSTER_H_

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rpc/coordinators.h"
#include "common/rpc/endpoint.h"
#include "common/subprocess.h"
#include "coordinator/election/etcd_process.h"
#include "milepost/v1/checkpoint.grpc.pb.h"
#include "milepost/v1/job.grpc.pb.h"

namespace milepost::e2e {

// Where a process of the cluster runs, when it does not simply run beside the test.
struct Placement {
  std::vector<std::string> enter;  // to put before its command line
  std::string address;             // where it listens and is reached
};

struct ClusterOptions {
  int workers = 1;
  int slots = 2;  // for each worker
  double lease_seconds = 5;
  double resize_seconds = 600;
  // The number of coordinators on one data directory. With several, one is active and the others
  // stand by. They elect through an etcd (HaveEtcd).
  int coordinators = 1;
  // Makes certificates in folder/pki. Coordinators listen on every address. They are reached at
  // this host's own address, which is not loopback if it has another. Calls are the admin's. etcd,
  // if there is one, also has TLS and demands a certificate.
  bool tls = false;
  // The places of "coordinator-0", "worker-1", "etcd"; needs `tls`. Empty: all run beside the test.
  std::function<Placement(const std::string& process)> place;
  // `env` is added to this process's environment for every process; `pki_env` for the one that
  // makes the certificates.
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::pair<std::string, std::string>> pki_env;
  // Coordinators that end by themselves are started again while calls wait, as after losing the
  // lease in etcd. A coordinator that a signal ends fails the test.
  bool start_again = false;
  std::vector<std::string> worker_flags;
};

class Cluster {
 public:
  Cluster(std::string folder, ClusterOptions options);
  ~Cluster();

  // Starts everything. Blocks until the coordinator answers.
  void Start();
  // Uses the same port as before. It listens when this returns.
  void StartCoordinator(int index = 0);
  void MakePki() const;
  // The address for command lines: HOST:PORT; several are separated by commas.
  const std::string& address() const { return address_; }
  void StartWorker(int index);
  void KillCoordinator(int index = 0);  // sends SIGKILL and waits for the end
  void SignalCoordinator(int index, int signal);
  // Waits until it ends by itself. Returns its exit code.
  int AwaitCoordinatorEnd(int index);
  bool CoordinatorRuns(int index);
  int CoordinatorPid(int index) const;
  // Starts the coordinators that ended by themselves. Fails if a signal ended one.
  void StartEndedCoordinators();
  // Runs one more coordinator, on a data directory of its own. Returns its exit code.
  int RunCoordinatorOn(const std::string& data_dir);
  // The index of the coordinator that answers, as soon as one other than `but` does.
  int ActiveCoordinator(int but = -1);
  void StartEtcd();  // on the same ports as before; it answers when this returns
  void KillEtcd();
  void SignalEtcd(int signal);
  void KillWorker(int index);
  void SignalWorker(int index, int signal);
  int WorkerPid(int index) const;
  // Fails when a worker has ended by itself, or a coordinator that no call waited for.
  void CheckAllRun();
  // Sends SIGKILL to one trainer: the `pick`-th, modulo their number. False: none runs.
  bool KillTrainer(uint64_t pick);
  // Sends the signals, all at once. Returns the exit code.
  int StopWorker(int index, std::initializer_list<int> signals = {SIGTERM});
  int StopCoordinator();

  std::string Submit(const v1::JobSpec& spec);
  void Cancel(const std::string& job);
  v1::Job Get(const std::string& job);
  // Returns the first state of the job that `done` accepts. Fails after `time`.
  v1::Job Await(const std::string& job, const std::function<bool(const v1::Job&)>& done,
                absl::Duration time = absl::Seconds(120));
  std::vector<v1::Checkpoint> Checkpoints(const std::string& job);
  std::vector<std::string> DamagedChunks(const std::string& checkpoint);
  // Flips a byte in the newest file that holds chunks, as a failing disk would.
  void FlipAByteOfTheNewestChunks() const;
  // Digests of every tensor's bytes, independent of how they were cut into chunks.
  std::map<std::string, uint64_t> TensorDigests(const std::string& checkpoint);

  std::vector<v1::LogLine> Logs(const std::string& job);
  // The first of its lines that contains the text. A job's last lines may be stored after its end.
  v1::LogLine AwaitLogLine(const std::string& job, const std::string& text);
  // True when the coordinator has files of an unfinished checkpoint.
  bool CheckpointBeingWritten() const;
  std::vector<int> TrainerPids() const;
  // Waits until no trainer has used the CPU for a second.
  void AwaitIdleTrainers() const;

 private:
  [[noreturn]] void Fail(const std::string& what) const;
  // `process` is named as in ClusterOptions::place; empty: one of the test's own tools.
  Subprocess Spawn(const std::string& process, std::vector<std::string> argv,
                   const std::string& log) const;
  // Where coordinator `index` listens when it may choose the port.
  std::string AnyPort(int index) const;
  // The address of coordinator `index` once it has listened; empty before.
  std::string AddressOf(int index) const;
  // Repeats the call until the answer is not UNAVAILABLE.
  template <typename Call>
  void Rpc(const std::string& name, Call call);

  const std::string folder_;
  const ClusterOptions options_;
  Endpoint Reached(const std::string& address) const;
  void Connect();  // connects the stubs for calls
  void InitStore() const;
  std::string EtcdIdentity() const;
  std::vector<std::string> CoordinatorCommand(const std::string& data_dir,
                                              const std::string& listen,
                                              const std::string& address_file) const;

  std::vector<std::string> listen_;  // by coordinator
  std::string host_ = "127.0.0.1";
  std::string address_;
  std::unique_ptr<coordinator::EtcdProcess> etcd_;
  std::vector<std::unique_ptr<Subprocess>> coordinators_;
  std::optional<CoordinatorChannel> channel_;
  std::vector<std::unique_ptr<Subprocess>> workers_;
  std::unique_ptr<v1::JobService::StubInterface> jobs_;
  std::unique_ptr<v1::CheckpointService::StubInterface> checkpoints_;
};

bool IsTerminal(const v1::Job& job);

// True when this machine has etcd (Debian's etcd-server).
bool HaveEtcd();

// Makes a folder under the system's temporary one.
std::string MakeFolder(const std::string& prefix);

// A byte-level model that trains in seconds, with its data files in `folder` (made once): 2 ranks,
// stage 1, fp32, a checkpoint every 10 steps. All checkpoints are kept.
v1::JobSpec SmallJob(const std::string& folder, int64_t steps = 200);

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_CLUSTER_H_
