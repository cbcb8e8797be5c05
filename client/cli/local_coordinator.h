// A coordinator on this machine's loopback. `milepost run` shares these parts with the commands
// that read a stopped run's data.
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

// The paths in a data directory of `milepost run`.
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

// FAILED_PRECONDITION: the directory does not belong to the owner of `file`, which this process has
// made there. The directory's owner could not read what this process writes. File systems that give
// all files one owner never cause this error.
absl::Status CheckOwner(const std::string& dir, const std::string& file);

// Allows one `milepost run` at a time on a data directory, or one command that reads a stopped
// run's data. Every child that was given fd() holds the lock too. So the lock is free only once all
// processes of a run have ended.
class RunLock {
 public:
  enum class Use { kRun, kRead };
  // FAILED_PRECONDITION names the process that holds the lock, or is CheckOwner's error. Waits
  // until `deadline` for commands that only read, and for the children of a dead `run`.
  static absl::StatusOr<RunLock> Acquire(const DataDir& dir, Use use, absl::Time deadline);
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// True while a `milepost run`, or a process of it, holds the lock. Otherwise what its coordinator
// noted may be out of date. A command that only reads does not count. Does not block.
bool RunIsOn(const DataDir& dir);

// Reserves a free loopback port for a server that binds it with SO_REUSEADDR, as gRPC does. Nobody
// else gets the port meanwhile, even while the server restarts.
class HeldPort {
 public:
  static absl::StatusOr<HeldPort> Take();
  std::string address() const;  // "127.0.0.1:PORT"

 private:
  UniqueFd fd_;
  int port_ = 0;
};

// True when something accepts TCP connections at "HOST:PORT" (numeric or localhost). Blocks for a
// moment at most on loopback, and for up to a second otherwise.
bool Accepts(const std::string& address);

// Creates the directory and its parents.
absl::Status MakeDir(const std::string& path);

// The last `count` lines of a text file; empty when it cannot be read.
std::vector<std::string> LastLines(const std::string& path, size_t count);

// The last words of one of our processes: the last lines of its log without RocksDB's warnings,
// which do not tell why it ended. With nothing but such warnings it returns them.
std::vector<std::string> LastWords(const std::string& path, size_t count);

// Keeps a log file below `limit` bytes: moves its contents to PATH.1, replacing that file. The
// writer must append; it goes on at the beginning of the emptied file.
void BoundLog(const std::string& path, int64_t limit);

// A flag for the first coordinator that has a RunLock. It says that no process of an earlier run is
// alive, and that the jobs that they ran are not to blame.
inline constexpr char kEarlierRunIsOver[] = "--workers-gone";

std::vector<std::string> CoordinatorArgv(const DataDir& dir, const std::string& address,
                                         bool write_address_file);

// Serves a stopped run's data as long as this object lives.
class TemporaryCoordinator {
 public:
  // Blocks until it serves: about 100 ms, plus the time until other readers have ended.
  // FAILED_PRECONDITION: the directory is in use. Other errors quote the last line of the log.
  static absl::StatusOr<std::unique_ptr<TemporaryCoordinator>> Start(const DataDir& dir);
  ~TemporaryCoordinator();  // sends SIGTERM, then waits

  std::string address() const { return port_.address(); }

 private:
  TemporaryCoordinator(RunLock lock, HeldPort port, Subprocess process);
  RunLock lock_;
  HeldPort port_;
  Subprocess process_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOCAL_COORDINATOR_H_
