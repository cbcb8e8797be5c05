// Decides which coordinator a command talks to.
#ifndef MILEPOST_CLIENT_CLI_ACCESS_H_
#define MILEPOST_CLIENT_CLI_ACCESS_H_

#include <memory>
#include <string>
#include <vector>

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
  bool data_dir_given = false;  // --data-dir was given, even with the default value
  std::string project;          // --project; empty: that of the environment or the login
  OutputFormat output = OutputFormat::kTable;
};

inline constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";

enum class WhenStopped {
  kFail,
  // Start a coordinator on the data directory of an ended run, for the length of the command.
  kServeDataDir,
};

// A command's connection. Movable; not thread-safe. What it returns is thread-safe.
class Access {
 public:
  // Chooses the first of these coordinators that applies:
  // - options.coordinator
  // - the coordinator of a `milepost run` on the data directory
  // - the one that the user last logged in to, unless the user named a data directory
  // - kDefaultCoordinator if one listens there, with the same exception
  // - with kServeDataDir, a new one that serves the data directory's data
  // - kDefaultCoordinator even if none listens, with the same exception
  //
  // Credentials are those of login.h, except for coordinators of a data directory. Does not wait
  // for the coordinator to answer. FAILED_PRECONDITION: it is known that none serves; the message
  // says what starts one.
  static absl::StatusOr<Access> Open(const GlobalOptions& options, WhenStopped when_stopped);

  const std::shared_ptr<Connection>& connection() const { return connection_; }
  const std::string& address() const { return connection_->address(); }
  // True when the command reads the store of a run that is over. Nothing runs its jobs.
  bool stored() const { return temporary_ != nullptr; }
  // The login that the connection uses.
  const Login& login() const { return login_; }
  // New jobs get the login's project.
  JobClient jobs() const;
  AuthClient auth() const { return AuthClient(connection_); }
  CheckpointClient checkpoints() const { return CheckpointClient(connection_); }
  WorkerClient workers() const { return WorkerClient(connection_); }
  JoinTokenClient join_tokens() const { return JoinTokenClient(connection_); }
  QueueClient queues() const { return QueueClient(connection_); }
  TemplateClient templates() const { return TemplateClient(connection_); }

 private:
  std::unique_ptr<TemporaryCoordinator> temporary_;  // must outlive connection_'s calls
  Login login_;
  std::shared_ptr<Connection> connection_;
};

// The full name of the job that a user typed. "jobs/7" and "7" count as names. Any other text must
// be the name in exactly one job's spec. INVALID_ARGUMENT: several jobs have it; the message lists
// them. NOT_FOUND: none has it; the message has the nearest name.
absl::StatusOr<std::string> ResolveJob(JobClient jobs, const std::string& typed);
// All of them before anything is done with one: then what is typed for another may mean a third.
absl::StatusOr<std::vector<std::string>> ResolveJobs(JobClient jobs,
                                                     const std::vector<std::string>& typed);

// The flag that lets another command find the same run. Empty for the default directory, unless the
// user has logged in somewhere, where commands would go instead. Reads the login.
std::string DataDirFlag(const std::string& data_dir);

// How errors call the coordinator of a data directory: nobody chose its port, so the port would
// tell nothing. Pure.
std::string CoordinatorOf(const std::string& data_dir);

// The full name for "checkpoints/4" or "4", "workers/a" or "a". Pure.
std::string FullName(const std::string& collection, const std::string& typed);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_ACCESS_H_
