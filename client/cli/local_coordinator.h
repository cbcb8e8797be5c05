// A coordinator on this machine's loopback: the pieces that `milepost run` and the commands that
// read a stopped run's data share.
#ifndef MILEPOST_CLIENT_CLI_LOCAL_COORDINATOR_H_
#define MILEPOST_CLIENT_CLI_LOCAL_COORDINATOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"

namespace milepost::client {

// Where things are in a data directory of `milepost run`.
struct DataDir {
  explicit DataDir(const std::string& path);  // made absolute

  std::string path;
  std::string coordinator() const { return path + "/coordinator"; }
  std::string address_file() const { return path + "/coordinator.address"; }
  std::string worker(int index) const { return path + "/worker-" + std::to_string(index); }
  std::string logs() const { return path + "/logs"; }
  std::string log(const std::string& process) const { return logs() + "/" + process + ".log"; }
  std::string lock() const { return path + "/run.lock"; }
};

// FAILED_PRECONDITION when the directory belongs to another user than `file`, which this process
// has made there: what it writes the other could not read. Not for who may not tell users apart
// there (file systems that give all files one owner).
absl::Status CheckOwner(const std::string& dir, const std::string& file);

// One `milepost run` at a time on a data directory, or one command that reads what a stopped run
// has left. The lock is also held by every child that was given fd(), so that it is free only once
// all processes of a run have ended.
class RunLock {
 public:
  enum class Use { kRun, kRead };
  // FAILED_PRECONDITION naming the process that holds it, or as CheckOwner. Waits until `deadline`
  // for who only reads, and for the children of a `run` that is dead.
  static absl::StatusOr<RunLock> Acquire(const DataDir& dir, Use use, absl::Time deadline);
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// Whether a `milepost run`, or a process of it, still has the lock: what its coordinator noted may
// be out of date otherwise. Who only reads is no run. Does not block.
bool RunIsOn(const DataDir& dir);

// Keeps a free loopback port for a server that binds it with SO_REUSEADDR, as gRPC does: nobody
// else is given the port meanwhile, also while the server is restarted.
class HeldPort {
 public:
  static absl::StatusOr<HeldPort> Take();
  std::string address() const;  // "127.0.0.1:PORT"

 private:
  UniqueFd fd_;
  int port_ = 0;
};

// True when something accepts TCP connections at "HOST:PORT" (numeric or localhost). Blocks for a
// moment at most on loopback, up to a second otherwise.
bool Accepts(const std::string& address);

// Creates the directory and its parents.
absl::Status MakeDir(const std::string& path);

// The last `count` lines of a text file; empty when it cannot be read.
std::vector<std::string> LastLines(const std::string& path, size_t count);

// What a process of ours said last, of its log: without RocksDB's warnings, which say nothing to
// who reads why it ended, unless there is nothing else.
std::vector<std::string> LastWords(const std::string& path, size_t count);

// Keeps a log file below `limit` bytes: its contents move to PATH.1 (replacing that one). The
// writer goes on at the beginning of the emptied file (it must append).
void BoundLog(const std::string& path, int64_t limit);

// For the first coordinator that has a RunLock: no process of an earlier run is alive, and the jobs
// that they ran are not to blame.
inline constexpr char kEarlierRunIsOver[] = "--workers-gone";

std::vector<std::string> CoordinatorArgv(const DataDir& dir, const std::string& address,
                                         bool write_address_file);

// A coordinator that serves a stopped run's data for as long as this object lives.
class TemporaryCoordinator {
 public:
  // Blocks until it serves: some 100 ms, and until others that read have ended.
  // FAILED_PRECONDITION: the directory is in use. The message of another failure holds the log's
  // last line.
  static absl::StatusOr<std::unique_ptr<TemporaryCoordinator>> Start(const DataDir& dir);
  ~TemporaryCoordinator();  // SIGTERM, then waits

  std::string address() const { return port_.address(); }

 private:
  TemporaryCoordinator(RunLock lock, HeldPort port, Subprocess process);
  RunLock lock_;
  HeldPort port_;
  Subprocess process_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOCAL_COORDINATOR_H_
