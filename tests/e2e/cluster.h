// A coordinator and workers as real processes on loopback, in a folder of their own, for tests.
//
//   Cluster cluster(folder, {.workers = 1, .slots = 2});
//   cluster.Start();
//   std::string job = cluster.Submit(SmallJob(folder));
//   v1::Job end = cluster.Await(job, [](const v1::Job& j) { return IsTerminal(j); });
//
// Nothing here returns an error: what goes wrong ends the process with a message and the folder's
// path (the logs are there). Not thread-safe.
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

// Where a process of the cluster runs, when it is not simply beside the test.
struct Placement {
  std::vector<std::string> enter;  // what goes before its command line
  std::string address;             // what it listens on and is reached at
};

struct ClusterOptions {
  int workers = 1;
  int slots = 2;  // of each worker
  double lease_seconds = 5;
  double resize_seconds = 600;
  // How many there are on one data directory. Of several one is active and the others stand by;
  // they elect through an etcd (HaveEtcd).
  int coordinators = 1;
  // Certificates in folder/pki, listening on every address, reached at this host's own, which is
  // not loopback where it has another; calls are the admin's. etcd, where there is one, has TLS and
  // asks for a certificate, too.
  bool tls = false;
  // Of "coordinator-0", "worker-1", "etcd"; with `tls`. Empty: all are beside the test.
  std::function<Placement(const std::string& process)> place;
  // Of every process, on top of this one's. `pki_env`: of the one that makes the certificates.
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::pair<std::string, std::string>> pki_env;
  // A coordinator that ends by itself, as one does that loses its lease in etcd, is started again
  // while calls wait; one that a signal ends fails the test.
  bool start_again = false;
  std::vector<std::string> worker_flags;
};

class Cluster {
 public:
  Cluster(std::string folder, ClusterOptions options);
  ~Cluster();

  // Of everything; waits until the coordinator answers.
  void Start();
  // On the same port as before; listening when it returns.
  void StartCoordinator(int index = 0);
  void MakePki() const;
  // Of a command line that is to reach the coordinator: HOST:PORT; of several, with commas between.
  const std::string& address() const { return address_; }
  void StartWorker(int index);
  void KillCoordinator(int index = 0);  // SIGKILL, and waits for the end
  void SignalCoordinator(int index, int signal);
  // Waits until it ends by itself; its exit code.
  int AwaitCoordinatorEnd(int index);
  bool CoordinatorRuns(int index);
  int CoordinatorPid(int index) const;
  // Those that ended by themselves; fails where a signal did it.
  void StartEndedCoordinators();
  // The exit code of one more coordinator, on a data directory of its own.
  int RunCoordinatorOn(const std::string& data_dir);
  // The one that answers, as soon as one of those other than `but` does.
  int ActiveCoordinator(int but = -1);
  void StartEtcd();  // on the same ports as before; answering when it returns
  void KillEtcd();
  void SignalEtcd(int signal);
  void KillWorker(int index);
  void SignalWorker(int index, int signal);
  int WorkerPid(int index) const;
  // Fails when a worker, or a coordinator that no call waited for, has ended by itself.
  void CheckAllRun();
  // SIGKILLs one trainer, the `pick`-th modulo their number. False: none runs.
  bool KillTrainer(uint64_t pick);
  // Sends the signals, all at once; the exit code.
  int StopWorker(int index, std::initializer_list<int> signals = {SIGTERM});
  int StopCoordinator();

  std::string Submit(const v1::JobSpec& spec);
  void Cancel(const std::string& job);
  v1::Job Get(const std::string& job);
  // The first state of the job that `done` accepts; fails after `time`.
  v1::Job Await(const std::string& job, const std::function<bool(const v1::Job&)>& done,
                absl::Duration time = absl::Seconds(120));
  std::vector<v1::Checkpoint> Checkpoints(const std::string& job);
  std::vector<std::string> DamagedChunks(const std::string& checkpoint);
  // In the newest file that holds chunks, as a failing disk would.
  void FlipAByteOfTheNewestChunks() const;
  // Over the bytes of every tensor, independent of how they were cut into chunks.
  std::map<std::string, uint64_t> TensorDigests(const std::string& checkpoint);

  std::vector<v1::LogLine> Logs(const std::string& job);
  // Whether the coordinator has files of an unfinished checkpoint.
  bool CheckpointBeingWritten() const;
  std::vector<int> TrainerPids() const;
  // Until no trainer has used the CPU for a second.
  void AwaitIdleTrainers() const;

 private:
  [[noreturn]] void Fail(const std::string& what) const;
  // `process`: as in ClusterOptions::place; empty: a tool of the test's own.
  Subprocess Spawn(const std::string& process, std::vector<std::string> argv,
                   const std::string& log) const;
  // Where coordinator `index` listens when it may choose the port.
  std::string AnyPort(int index) const;
  // Of coordinator `index` once it has listened; empty before.
  std::string AddressOf(int index) const;
  // Calls until the answer is not UNAVAILABLE.
  template <typename Call>
  void Rpc(const std::string& name, Call call);

  const std::string folder_;
  const ClusterOptions options_;
  Endpoint Reached(const std::string& address) const;
  void Connect();  // what calls are made with
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

// Whether this machine has etcd (Debian's etcd-server).
bool HaveEtcd();

// A folder under the system's temporary one.
std::string MakeFolder(const std::string& prefix);

// A byte-level model that trains in seconds, with its data files in `folder` (made once): 2 ranks,
// stage 1, fp32, a checkpoint every 10 steps, all of them kept.
v1::JobSpec SmallJob(const std::string& folder, int64_t steps = 200);

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_CLUSTER_H_
