// Which coordinator a command talks to.
#ifndef MILEPOST_CLIENT_CLI_ACCESS_H_
#define MILEPOST_CLIENT_CLI_ACCESS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/clients.h"
#include "client/cli/local_coordinator.h"
#include "client/cli/login.h"
#include "client/cli/output.h"

namespace milepost::client {

inline constexpr char kDefaultDataDir[] = ".milepost";

struct GlobalOptions {
  std::string coordinator;  // --coordinator or MILEPOST_COORDINATOR; empty: find it
  std::string data_dir = kDefaultDataDir;
  bool data_dir_given = false;  // --data-dir, also of the usual one
  std::string project;          // --project; empty: the environment's or the login's
  OutputFormat output = OutputFormat::kTable;
};

inline constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";

enum class WhenStopped {
  kFail,
  // Start one on the data directory of a run that has ended, for the length of the command.
  kServeDataDir,
};

// A command's connection. Movable; not thread-safe, what it hands out is.
class Access {
 public:
  // In this order: options.coordinator; the coordinator of a `milepost run` on the data directory;
  // the one that the user last logged in to, or else kDefaultCoordinator where one listens, unless
  // the user named a data directory; the data directory's data, with kServeDataDir;
  // kDefaultCoordinator again, with the same exception. Credentials are those of login.h but for
  // the coordinators of a data directory. Does not wait for the coordinator to answer.
  // FAILED_PRECONDITION, saying what starts one, where it is known that none serves.
  static absl::StatusOr<Access> Open(const GlobalOptions& options, WhenStopped when_stopped);

  const std::shared_ptr<Connection>& connection() const { return connection_; }
  const std::string& address() const { return connection_->address(); }
  // What is read is the store of a run that is over: nothing runs its jobs.
  bool stored() const { return temporary_ != nullptr; }
  // As it is connected with.
  const Login& login() const { return login_; }
  // With the login's project for new jobs.
  JobClient jobs() const;
  AuthClient auth() const { return AuthClient(connection_); }
  CheckpointClient checkpoints() const { return CheckpointClient(connection_); }
  WorkerClient workers() const { return WorkerClient(connection_); }
  JoinTokenClient join_tokens() const { return JoinTokenClient(connection_); }
  QueueClient queues() const { return QueueClient(connection_); }
  TemplateClient templates() const { return TemplateClient(connection_); }

 private:
  std::unique_ptr<TemporaryCoordinator> temporary_;  // outlives connection_'s calls
  Login login_;
  std::shared_ptr<Connection> connection_;
};

// The full name of what a user typed: "jobs/7" and "7" as they are, else the one job whose spec has
// that name (INVALID_ARGUMENT listing them when there are several; NOT_FOUND with the nearest
// name).
absl::StatusOr<std::string> ResolveJob(JobClient jobs, const std::string& typed);

// What a command needs to find the same run; empty where it is the usual one, unless the user has
// logged in somewhere: then commands go there. Reads the login.
std::string DataDirFlag(const std::string& data_dir);

// For errors: the port of a coordinator that nobody has named says nothing. Pure.
std::string CoordinatorOf(const std::string& data_dir);

// "checkpoints/4" or "4"; "workers/a" or "a". Pure.
std::string FullName(const std::string& collection, const std::string& typed);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_ACCESS_H_
