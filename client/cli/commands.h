// The commands of the command line. Each command blocks until it is done, prints its output, and
// returns the process's exit code (common/exit_codes.h).
#ifndef MILEPOST_CLIENT_CLI_COMMANDS_H_
#define MILEPOST_CLIENT_CLI_COMMANDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/access.h"
#include "client/cli/fine_tuning.h"
#include "common/spec/parse.h"

namespace milepost::client {

struct RunOptions {
  std::string spec;               // or
  std::vector<std::string> set;   // "train.seed=2": overrides the spec's fields
  std::vector<std::string> jobs;  // jobs of the data directory, one after the other
  FineTuning tuning;              // where it has a model: what the spec is made of
  int workers = 1;
  bool fresh = false;
  double hang_seconds = 600;  // passed to milepost-worker
};
int RunCommand(const GlobalOptions& global, const RunOptions& options);

struct PlanOptions {
  std::string spec;
  std::vector<std::string> set;  // "train.seed=2"
  std::optional<int> ranks;
  std::string device;  // a built-in profile's name or a profile's file; empty: the spec's
  std::string draw;    // where a pipeline's schedule is drawn; empty: nowhere
  std::optional<int> hosts;
  double network = 0;  // Gb/s of a host; 0: the device's
  bool search = false;
};
int PlanCommand(const GlobalOptions& global, const PlanOptions& options);

struct BenchOptions {
  std::string name = "host";
  std::string output;  // empty: stdout
  int threads = 0;     // 0: all cores
  std::string device = "cpu";
  std::string disk;  // folder; empty: none is measured
};
int BenchDeviceCommand(const BenchOptions& options);

struct DoctorOptions {
  std::string data_set;  // measure how fast it is read; empty: not measured
  bool data_dir_given = false;
};
// Checks this host. Returns 1 when a check failed.
int DoctorCommand(const GlobalOptions& global, const DoctorOptions& options);

struct WebCommandOptions {
  std::string listen = "127.0.0.1:7080";
  std::string tls_dir;
  std::vector<std::string> allow_hosts;
};
// Serves until it is interrupted.
int WebCommand(const GlobalOptions& global, const WebCommandOptions& options);

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string output;
  std::string tokenizer = "bytes";
  double validation_fraction = 0;
  std::string validation_output;
  std::string separator;  // empty: the tokenizer's end-of-text
  // the text's field in JSON lines; empty: "text", in files named .jsonl or .ndjson
  std::string field;
  int64_t sequence_length = 0;  // of examples: 0: they are not packed
  std::string loss = "completions";
};
int TokenizeCommand(const TokenizeOptions& options);

struct GenerateOptions {
  std::string checkpoint;  // one of these two
  std::string job;
  std::string prompt;        // one of these three
  std::string prompt_ids;    // "1,2,3"
  std::string prompts_file;  // prompt_file.h
  int64_t parallel = 4;      // texts of the file side by side
  std::string tokenizer;     // empty: that of the job's initial weights, if it has one
  bool message = false;      // the prompt is a message of a chat
  std::string base;          // of adapters: the folder of what they adapt; empty: the job's
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;
  std::string precision = "fp32";
  std::string device = "cpu";
  bool trained_weights = false;  // not their average, where the checkpoint has one
};
int GenerateCommand(const GlobalOptions& global, const GenerateOptions& options);

struct ServeOptions {
  std::string checkpoint;  // one of these two
  std::string job;
  std::string tokenizer;  // as of GenerateOptions
  std::string base;
  bool trained_weights = false;
  std::string precision = "fp32";
  std::string device = "cpu";
  int64_t context = 8192;  // tokens of a prompt and its answer; at most the model's
  int64_t parallel = 4;    // texts side by side
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: a free one
  std::string tls_dir;
  std::string key_file;
  std::string model_name;  // empty: the checkpoint's name
};
// Serves until it is interrupted.
int ServeCommand(const GlobalOptions& global, const ServeOptions& options);

struct SubmitOptions {
  std::string spec;           // may be empty with a template
  std::string template_name;  // the spec is laid over it; empty: none
  bool validate_only = false;
  bool skip_files = false;  // the job's files on this machine are not checked
  bool wait = false;
  std::vector<std::string> set;     // "train.seed=2"
  std::vector<std::string> labels;  // "team=vision"
  std::vector<std::string> array;   // "train.seed=1,2"; empty: one job
  int max_parallel = 0;             // of an array; 0: all
};
// With `array` it prints the names of the array and of its jobs on stdout.
int JobSubmitCommand(const GlobalOptions& global, const SubmitOptions& options);

struct ForkOptions {
  std::string from;  // a checkpoint or a job
  bool validate_only = false;
  bool wait = false;
  std::vector<std::string> set;
  std::vector<std::string> labels;
};
int JobForkCommand(const GlobalOptions& global, const ForkOptions& options);

struct ListOptions {
  std::vector<std::string> states;
  std::vector<std::string> selectors;  // "team=vision,!old"
  std::string queue;
  std::string name_prefix;
  std::string array;
  std::string sort = "newest";  // or "loss", "validation": lowest first
  bool watch = false;           // repeats until Ctrl-C
};
int JobListCommand(const GlobalOptions& global, int limit, const ListOptions& options);
int JobDescribeCommand(const GlobalOptions& global, const std::vector<std::string>& jobs);

struct LogsOptions {
  std::vector<std::string> jobs;  // one after the other; with `follow` only one
  bool follow = false;
  std::optional<int> rank;
  std::optional<double> since_seconds;  // ago
  int tail = 0;
};
int JobLogsCommand(const GlobalOptions& global, const LogsOptions& options);

struct CurvesOptions {
  std::vector<std::string> jobs;    // plotted together
  std::vector<std::string> curves;  // "train_loss"; empty: the most important ones
  bool plot = false;
  std::optional<int> points;  // limit for each curve; 0: all
};
int JobCurvesCommand(const GlobalOptions& global, const CurvesOptions& options);

struct WaitOptions {
  std::vector<std::string> jobs;  // one after the other
  std::string array;              // instead of jobs: all jobs of this array
  std::optional<double> timeout_seconds;
};
int JobWaitCommand(const GlobalOptions& global, const WaitOptions& options);
int JobCancelCommand(const GlobalOptions& global, const std::vector<std::string>& jobs);
// Deletes jobs with their checkpoints and logs, for good.
int JobDeleteCommand(const GlobalOptions& global, const std::vector<std::string>& jobs);
int JobCancelArrayCommand(const GlobalOptions& global, const std::string& array);
int JobResumeCommand(const GlobalOptions& global, const std::vector<std::string>& jobs,
                     std::optional<int64_t> new_steps);
int JobSuspendCommand(const GlobalOptions& global, const std::vector<std::string>& jobs);

// Only the fields that are set are changed.
struct UpdateOptions {
  std::vector<std::string> jobs;
  std::optional<std::string> queue;
  std::optional<int> priority;
  std::optional<double> time_limit_seconds;
  std::vector<std::string> depends_on;
  bool independent = false;         // remove all dependencies
  std::vector<std::string> labels;  // "team=vision"; "team-" removes it
  std::optional<int> min_ranks;     // 0: as many as resources.ranks
  std::optional<int> max_ranks;     // 0: as many as resources.ranks
};
int JobUpdateCommand(const GlobalOptions& global, const UpdateOptions& options);

struct TemplateOptions {
  std::string name;
  std::string file;
  bool replace = false;  // an existing one may be replaced
  std::string etag;      // the etag that the existing one must have; empty: any
  bool validate_only = false;
};
int TemplateCreateCommand(const GlobalOptions& global, const TemplateOptions& options);
int TemplateListCommand(const GlobalOptions& global, int limit);
// Prints the template's text on stdout, in the form that `template create` takes.
int TemplateDescribeCommand(const GlobalOptions& global, const std::string& name);
int TemplateDeleteCommand(const GlobalOptions& global, const std::string& name);
// "gpt2" of the login's project, or "projects/p/templates/gpt2".
absl::StatusOr<SpecTemplate> FetchTemplate(const GlobalOptions& global, const std::string& typed);

int QueueListCommand(const GlobalOptions& global, int limit);
int QueueDescribeCommand(const GlobalOptions& global, const std::string& name);

// Only the fields that are set are changed. A new queue has defaults for the others.
struct QueueOptions {
  std::string name;
  std::optional<double> weight;
  std::vector<std::string> guaranteed;  // "cuda=8"
  std::vector<std::string> limits;      // "cuda=16", "cuda=none"
  std::optional<std::string> description;
};
int QueueCreateCommand(const GlobalOptions& global, const QueueOptions& options);
int QueueUpdateCommand(const GlobalOptions& global, const QueueOptions& options);
int QueueDeleteCommand(const GlobalOptions& global, const std::string& name);

// `deleted`: lists checkpoints that can be restored; otherwise those that are not deleted.
int CheckpointListCommand(const GlobalOptions& global, const std::string& job, bool deleted,
                          int limit);
int CheckpointDescribeCommand(const GlobalOptions& global, const std::vector<std::string>& names);
int CheckpointVerifyCommand(const GlobalOptions& global, const std::vector<std::string>& names);
int CheckpointPinCommand(const GlobalOptions& global, const std::vector<std::string>& names,
                         bool pinned);
// `purge`: deletes for good.
int CheckpointDeleteCommand(const GlobalOptions& global, const std::vector<std::string>& names,
                            bool purge);
int CheckpointRestoreCommand(const GlobalOptions& global, const std::vector<std::string>& names);

struct ExportOptions {
  std::vector<std::string> checkpoints;  // several get a folder each, named by number
  std::string format = "safetensors";
  std::string folder;
  std::string dtype = "fp32";
  std::string tokenizer;  // a folder; empty: that of the job's initial weights
  std::string base;       // of adapters: the folder of what they adapt; empty: the job's
  bool merge = false;
  bool trained_weights = false;  // as of GenerateOptions
};
int CheckpointExportCommand(const GlobalOptions& global, const ExportOptions& options);

int WorkerListCommand(const GlobalOptions& global, int limit);
int WorkerDescribeCommand(const GlobalOptions& global, const std::string& name);

struct DrainOptions {
  std::vector<std::string> workers;
  std::string reason;
  std::optional<double> deadline_seconds;  // from now
  bool monitor = false;                    // waits until it is drained
};
int WorkerDrainCommand(const GlobalOptions& global, const DrainOptions& options);
int WorkerResumeCommand(const GlobalOptions& global, const std::string& name);
int WorkerDeleteCommand(const GlobalOptions& global, const std::string& name);

inline constexpr double kDefaultJoinTtlSeconds = 3600;

struct JoinTokenOptions {
  std::string pool;
  std::optional<double> ttl_seconds;  // absent: kDefaultJoinTtlSeconds
  int uses = 1;                       // 0: any number
  std::string worker_pattern;
  std::vector<std::string> addresses;
  std::string service_account;
};
// Prints only the token, and the authority that a joining host is to trust, on stdout.
int JoinTokenCreateCommand(const GlobalOptions& global, const JoinTokenOptions& options);
int JoinTokenListCommand(const GlobalOptions& global, int limit);
int JoinTokenRevokeCommand(const GlobalOptions& global, const std::string& name);

// The exit code of a command that waited for a job and found it in this state.
int ExitCodeOfJob(v1::JobState state);

struct LoginOptions {
  std::string authority;   // --ca
  std::string token_file;  // empty: MILEPOST_TOKEN, or otherwise stdin
};
// Tries the token and stores it.
int AuthLoginCommand(const GlobalOptions& global, const LoginOptions& options);
int AuthWhoAmICommand(const GlobalOptions& global);

struct TokenOptions {
  std::string user;
  std::string role;
  std::vector<std::string> projects;  // empty: the login's
  std::optional<double> expires_seconds;
};
// Prints only the token on stdout.
int TokenCreateCommand(const GlobalOptions& global, const TokenOptions& options);
int TokenListCommand(const GlobalOptions& global, int limit);
int TokenRevokeCommand(const GlobalOptions& global, const std::string& name);

int VersionCommand(const GlobalOptions& global);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_COMMANDS_H_
