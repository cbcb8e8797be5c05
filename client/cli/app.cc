#include "client/cli/app.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/describe_app.h"
#include "client/cli/job_arguments.h"
#include "client/cli/output.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/flags/number_range.h"
#include "common/spec/duration.h"
#include "common/spec/nearest.h"
#include "common/version.h"

namespace milepost::client {
namespace {

const std::map<std::string, OutputFormat> kFormats = {{"table", OutputFormat::kTable},
                                                      {"wide", OutputFormat::kWide},
                                                      {"json", OutputFormat::kJson},
                                                      {"yaml", OutputFormat::kYaml},
                                                      {"name", OutputFormat::kName}};

// Builds the CLI11 tree. The commands' option structs live here, for as long as the tree.
class Tree {
 public:
  Tree() : app_("Milepost: distributed training that says what it needs and loses nothing.") {
    app_.name("milepost");
    app_.set_version_flag("--version", std::string("milepost ") + kVersion);
    app_.require_subcommand(1);
    app_.footer("`milepost COMMAND --help` explains a command. Start with: milepost run SPEC");
    AddRun();
    AddPlan();
    AddBench();
    AddDoctor();
    AddDataset();
    AddGenerate();
    AddJob();
    AddTemplate();
    AddQueue();
    AddCheckpoint();
    AddWorker();
    AddAuth();
    AddWeb();
    AddVersionAndCompletion();
  }

  CLI::App& app() { return app_; }
  // What the parsed command line asks for.
  const std::function<int()>& chosen() const { return chosen_; }

  CommandInfo Describe() const { return DescribeApp(app_, values_, files_); }

 private:
  void OneOf(CLI::Option* option, std::vector<std::string> values) {
    option->check(CLI::Validator(
        [values](std::string& given) {
          for (const std::string& value : values) {
            if (given == value) return std::string();
          }
          return absl::StrCat("expected one of ", absl::StrJoin(values, ", "), ", got '", given,
                              "'", DidYouMean(given, values));
        },
        absl::StrJoin(values, "|")));
    values_[option] = std::move(values);
  }

  CLI::App* Command(CLI::App* parent, const std::string& name, const std::string& help,
                    std::function<int()> run) {
    CLI::App* command = parent->add_subcommand(name, help);
    command->callback([this, run = std::move(run)] { chosen_ = run; });
    if (name == "list") command->alias("ls");
    return command;
  }

  CLI::App* Group(const std::string& name, const std::string& help) {
    CLI::App* group = app_.add_subcommand(name, help);
    group->require_subcommand(1);
    return group;
  }

  void AddOutput(CLI::App* command, std::vector<std::string> formats) {
    OneOf(
        command->add_option_function<std::string>(
            "-o,--output", [this](const std::string& name) { global_.output = kFormats.at(name); },
            "what stdout holds (default: table)"),
        std::move(formats));
  }

  void AddDataDir(CLI::App* command) {
    command->add_option("--data-dir", global_.data_dir, "where `milepost run` keeps everything")
        ->each([this](const std::string&) { global_.data_dir_given = true; })
        ->capture_default_str();
  }

  // The flags of commands that talk to a coordinator.
  CLI::App* Connected(CLI::App* command, std::vector<std::string> formats = {
                                             "table", "wide", "json", "yaml", "name"}) {
    AddOutput(command, std::move(formats));
    return AddCoordinator(command);
  }
  CLI::App* AddCoordinator(CLI::App* command) {
    command
        ->add_option(
            "--coordinator", global_.coordinator,
            "HOST:PORT, or several with commas between (default: that of `milepost run` here, "
            "else 127.0.0.1:7070)")
        ->envname("MILEPOST_COORDINATOR");
    AddDataDir(command);
    return command;
  }
  // Of commands about a project's jobs. The environment counts in login.h.
  CLI::App* InProject(CLI::App* command) {
    command->add_option("--project", global_.project,
                        "whose jobs (default: MILEPOST_PROJECT, else the login's)");
    return command;
  }

  CLI::Option* File(CLI::Option* option) {
    files_.insert(option);
    return option;
  }
  CLI::Option* Spec(CLI::App* command, std::string* spec) {
    return File(command->add_option("spec", *spec, "the job spec, a YAML file; -: standard input")
                    ->required());
  }
  CLI::Option* JobNames(CLI::App* command, std::vector<std::string>* jobs) {
    return command->add_option("jobs", *jobs, "jobs/7, 7, or the spec's name when it is unique")
        ->required();
  }
  // Until one fails.
  int ForEachName(int (*run)(const GlobalOptions&, const std::string&)) {
    int exit_code = kExitOk;
    for (size_t i = 0; i < names_.size() && exit_code == kExitOk; ++i) {
      exit_code = run(global_, names_[i]);
    }
    return exit_code;
  }
  CLI::Option* Seconds(CLI::App* command, const std::string& name, std::optional<double>* seconds,
                       const std::string& help) {
    return command
        ->add_option_function<std::string>(
            name, [seconds](const std::string& text) { *seconds = ParseSeconds(text); }, help)
        ->check([](const std::string& text) {
          return ParseSeconds(text) ? std::string()
                                    : "expected a length of time such as 30s, 5m or 1h";
        });
  }
  CLI::Option* Many(CLI::App* command, const std::string& name, std::vector<std::string>* values,
                    const std::string& help) {
    return command->add_option(name, *values, help + "; may be repeated")->allow_extra_args(false);
  }
  void Limit(CLI::App* command) {
    command->add_option("--limit", limit_, "at most this many, the newest")
        ->check(CLI::Range(1, 10'000))
        ->capture_default_str();
  }

  void AddRun();
  void AddPlan();
  void AddBench();
  void AddDoctor();
  void AddDataset();
  void AddGenerate();
  void AddJob();
  void AddJobCurves(CLI::App* group);
  void AddJobFork(CLI::App* group);
  void AddJobList(CLI::App* group);
  void AddJobControl(CLI::App* group);
  void AddJobUpdate(CLI::App* group);
  void AddTemplate();
  void AddQueue();
  void AddQueueFields(CLI::App* command);
  void AddCheckpoint();
  void AddWorker();
  void AddAuth();
  void AddWeb();
  void AddVersionAndCompletion();

  CLI::App app_;
  std::function<int()> chosen_;
  OptionValues values_;
  std::set<const CLI::Option*> files_;

  GlobalOptions global_;
  RunOptions run_;
  PlanOptions plan_;
  BenchOptions bench_;
  DoctorOptions doctor_;
  TokenizeOptions tokenize_;
  GenerateOptions generate_;
  SubmitOptions submit_;
  ForkOptions fork_;
  ListOptions list_;
  LogsOptions logs_;
  CurvesOptions curves_;
  WaitOptions wait_;
  UpdateOptions update_;
  TemplateOptions template_;
  QueueOptions queue_;
  DrainOptions drain_;
  LoginOptions login_;
  WebCommandOptions web_;
  TokenOptions token_;
  JoinTokenOptions join_;
  ExportOptions export_;
  std::vector<std::string> names_;
  std::string job_filter_;
  std::string array_;
  bool deleted_ = false;
  std::optional<int64_t> new_steps_;
  std::string shell_;
  int limit_ = 100;
};

void Tree::AddRun() {
  CLI::App* run = Command(&app_, "run", "Train a spec on this machine, all in one: no setup",
                          [this] { return RunCommand(global_, run_); });
  CLI::Option* spec =
      File(run->add_option("spec", run_.spec, "the job spec, a YAML file; -: standard input"));
  Many(run, "--job", &run_.jobs, "go on with this job of the data directory instead: jobs/7 or 7")
      ->excludes(spec);
  Many(run, "--set", &run_.set, "a field instead of the file's: train.optimizer.lr=1e-4")
      ->needs(spec);
  AddOutput(run, {"table", "json"});
  AddDataDir(run);
  run->add_option("--workers", run_.workers, "worker processes; the ranks are divided among them")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  run->add_option("--hang-seconds", run_.hang_seconds,
                  "a rank whose micro-step, or wait for data, takes longer has failed; 0: never")
      ->check(NumberRange(0, kMostFlagSeconds))
      ->capture_default_str();
  run->add_flag("--fresh", run_.fresh,
                "a new job from new parameters, where there is one of this spec; that one's "
                "checkpoints are deleted, and can be restored for some days")
      ->needs(spec);
}

void Tree::AddPlan() {
  CLI::App* plan = Command(&app_, "plan", "Say what a spec needs: memory, FLOPs, bytes on the wire",
                           [this] { return PlanCommand(global_, plan_); });
  Spec(plan, &plan_.spec);
  Many(plan, "--set", &plan_.set, "a field instead of the file's: train.optimizer.lr=1e-4");
  AddOutput(plan, {"table", "wide", "json", "yaml"});
  plan->add_option("--ranks", plan_.ranks, "plan for this many ranks instead of the spec's")
      ->check(CLI::Range(1, 4096));
  File(plan->add_option("--device", plan_.device,
                        "expect its times and memory: a100, cpu, h100, h200, rtx4090, or a file "
                        "that `milepost bench device` made"));
}

void Tree::AddBench() {
  CLI::App* group = Group("bench", "Measure what a machine can do");
  CLI::App* device = Command(group, "device", "Measure this machine's cores for `milepost plan`",
                             [this] { return BenchDeviceCommand(bench_); });
  device->add_option("--out", bench_.output, "the JSON file to make (default: stdout)");
  device->add_option("--device", bench_.device, "cpu, or cuda: the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  device->add_option("--disk", bench_.disk,
                     "also measure the disk of this folder (train.offload.path)");
  device->add_option("--name", bench_.name, "what plans call it")->capture_default_str();
  device->add_option("--threads", bench_.threads, "how many to measure with; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void Tree::AddDoctor() {
  CLI::App* doctor = Command(&app_, "doctor", "Check this host for training and say what to change",
                             [this] { return DoctorCommand(global_, doctor_); });
  AddOutput(doctor, {"table", "json"});
  doctor
      ->add_option("--coordinator", global_.coordinator,
                   "HOST:PORT: does it answer, and over which interface")
      ->envname("MILEPOST_COORDINATOR");
  doctor->add_option_function<std::string>(
      "--data-dir",
      [this](const std::string& folder) {
        global_.data_dir = folder;
        doctor_.data_dir_given = true;
      },
      "measure the disk of this folder (default: where `milepost run` keeps everything)");
  File(doctor->add_option("--dataset", doctor_.data_set,
                          "measure how fast this file or folder is read"));
}

void Tree::AddDataset() {
  CLI::App* group = Group("dataset", "Make the token files that jobs train on");
  CLI::App* tokenize = Command(group, "tokenize", "Turn UTF-8 text into a token file",
                               [this] { return TokenizeCommand(tokenize_); });
  File(tokenize->add_option("--input", tokenize_.inputs, "text files, in order")->required());
  tokenize->add_option("--output", tokenize_.output, "the .npy file to make")->required();
  tokenize
      ->add_option("--tokenizer", tokenize_.tokenizer,
                   "`bytes`, or a Hugging Face tokenizer.json (needs Python's tokenizers)")
      ->capture_default_str();
  tokenize->add_option("--separator", tokenize_.separator,
                       "the tokenizer's token between documents (default: its end-of-text)");
  tokenize->add_option("--field", tokenize_.field,
                       "inputs are lines of JSON, each a document with its text in this field "
                       "(default: text, in files named .jsonl or .ndjson)");
  tokenize->add_option("--validation-fraction", tokenize_.validation_fraction,
                       "this part of the text, its end, is kept for validation");
  tokenize->add_option("--validation-output", tokenize_.validation_output,
                       "the .npy file for validation");
}

void Tree::AddGenerate() {
  CLI::App* generate = Command(&app_, "generate", "Print text that a trained model continues",
                               [this] { return GenerateCommand(global_, generate_); });
  CLI::Option* checkpoint =
      generate->add_option("--checkpoint", generate_.checkpoint, "checkpoints/4 or 4");
  generate
      ->add_option("--job", generate_.job,
                   "use this job's newest checkpoint (default: the newest job's)")
      ->excludes(checkpoint);
  CLI::App* prompt = generate->add_option_group("prompt");
  prompt->add_option("--prompt", generate_.prompt, "the text to continue, for a byte-level model");
  prompt->add_option("--prompt-ids", generate_.prompt_ids, "token ids to continue: 1,2,3");
  prompt->require_option(1);
  generate->add_option("--tokens", generate_.tokens, "how many to add")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  generate->add_option("--temperature", generate_.temperature, "0: always the likeliest token")
      ->check(NumberRange(0.0, 100.0))
      ->capture_default_str();
  generate->add_option("--top-k", generate_.top_k, "choose among the K likeliest; 0: among all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  generate
      ->add_option("--top-p", generate_.top_p,
                   "choose among the likeliest tokens whose probabilities reach this sum")
      ->check(NumberRange(1e-9, 1.0))
      ->capture_default_str();
  generate->add_option("--seed", generate_.seed, "the same seed gives the same text")
      ->capture_default_str();
  generate
      ->add_option("--precision", generate_.precision,
                   "what the weights are rounded to; half the bytes are twice the speed")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  generate->add_option("--device", generate_.device, "cpu, or cuda: the first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  generate->add_option("--coordinator", global_.coordinator, "HOST:PORT")
      ->envname("MILEPOST_COORDINATOR");
  AddDataDir(generate);
}

void Tree::AddJob() {
  CLI::App* group = Group("job", "Submit, watch and control jobs");
  CLI::App* submit =
      InProject(Connected(Command(group, "submit", "Check a spec and queue it",
                                  [this] { return JobSubmitCommand(global_, submit_); })));
  File(submit->add_option("spec", submit_.spec, "the job spec, a YAML file; -: standard input"));
  submit->add_option("--template", submit_.template_name,
                     "gpt2: a stored template, over which the spec is laid; may stand alone");
  submit->add_flag("--validate-only", submit_.validate_only, "only check, also on the coordinator");
  submit->add_flag("--skip-files", submit_.skip_files,
                   "do not look at the data and weights that this machine has");
  submit->add_flag("--wait", submit_.wait, "then wait for it, as `job wait` does");
  Many(submit, "--set", &submit_.set, "a field instead of the file's: train.optimizer.lr=1e-4");
  Many(submit, "--label", &submit_.labels, "team=vision: for lists and filters");
  CLI::Option* array =
      Many(submit, "--array", &submit_.array,
           "a job for each combination of values: 'train.optimizer.lr=1e-4,3e-4 train.seed=1,2'");
  submit->add_option("--max-parallel", submit_.max_parallel, "jobs of the array that run at a time")
      ->check(CLI::Range(1, 1000))
      ->needs(array);
  AddJobFork(group);
  AddJobList(group);
  JobNames(Connected(Command(group, "describe", "One job: state, reason, progress, failure",
                             [this] { return JobDescribeCommand(global_, names_); })),
           &names_);
  CLI::App* logs = Connected(Command(group, "logs", "What the job's ranks printed",
                                     [this] { return JobLogsCommand(global_, logs_); }),
                             {"table", "json"});
  JobNames(logs, &logs_.jobs);
  logs->add_flag("-f,--follow", logs_.follow, "go on until the job ends; Ctrl-C only detaches");
  logs->add_option("--rank", logs_.rank, "only this rank")->check(CLI::Range(0, 4095));
  Seconds(logs, "--since", &logs_.since_seconds, "only lines of the last 10m, 1h, ...");
  logs->add_option("--tail", logs_.tail, "only the last N lines")->check(CLI::Range(1, 1'000'000));
  AddJobCurves(group);
  AddJobControl(group);
}

void Tree::AddJobCurves(CLI::App* group) {
  CLI::App* curves =
      Connected(Command(group, "curves", "Losses, learning rate and the like over a job's steps",
                        [this] { return JobCurvesCommand(global_, curves_); }),
                {"table", "wide", "json", "yaml"});
  JobNames(curves, &curves_.jobs);
  Many(curves, "--curve", &curves_.curves,
       "only this one: train_loss, validation_accuracy/lm, mfu (-o json: which there are)");
  curves->add_flag("--plot", curves_.plot, "draw them; several jobs in one plot");
  curves
      ->add_option("--points", curves_.points,
                   "at most so many of each curve; 0: all (default: 20 rows of a table)")
      ->check(CLI::Range(0, 100'000));
}

void Tree::AddJobFork(CLI::App* group) {
  CLI::App* fork = InProject(
      Connected(Command(group, "fork", "Queue a new job that begins with a checkpoint of another",
                        [this] { return JobForkCommand(global_, fork_); })));
  fork->add_option("--from", fork_.from, "checkpoints/4, or a job: its newest checkpoint")
      ->required();
  Many(fork, "--set", &fork_.set, "a field instead of that job's: train.optimizer.lr=1e-4");
  Many(fork, "--label", &fork_.labels, "team=vision: besides the labels of that job");
  fork->add_flag("--validate-only", fork_.validate_only, "only check");
  fork->add_flag("--wait", fork_.wait, "then wait for it, as `job wait` does");
}

void Tree::AddJobList(CLI::App* group) {
  CLI::App* list = InProject(Connected(Command(group, "list", "Jobs, the newest first", [this] {
    return JobListCommand(global_, limit_, list_);
  })));
  Limit(list);
  values_[Many(list, "--state", &list_.states, "only in this one: running, ...; active, ended")] =
      JobStateNames();
  Many(list, "-l,--label", &list_.selectors, "only with team=vision, team!=vision, team or !team");
  list->add_option("--queue", list_.queue, "only of this queue");
  list->add_option("--name", list_.name_prefix, "only whose spec's name begins like this");
  list->add_option("--array", list_.array, "only of this array: arrays/7 or 7");
  OneOf(list->add_option("--sort", list_.sort, "of those listed: by training or validation loss")
            ->capture_default_str(),
        {"newest", "loss", "validation"});
  list->add_flag("-w,--watch", list_.watch, "again every 2 s, until Ctrl-C");
}

void Tree::AddJobControl(CLI::App* group) {
  CLI::App* wait = Connected(Command(
      group, "wait", "Wait until a job ends: exit code 0, 100 failed, 103 cancelled, 101 neither",
      [this] { return JobWaitCommand(global_, wait_); }));
  CLI::App* waited = wait->add_option_group("which");
  waited->add_option("jobs", wait_.jobs, "jobs/7, 7, or the spec's name when it is unique");
  waited->add_option("--array", wait_.array, "all jobs of arrays/7 instead");
  waited->require_option(1);
  Seconds(wait, "--timeout", &wait_.timeout_seconds, "give up after 30s, 5m, ...");
  CLI::App* cancel =
      Connected(Command(group, "cancel", "Stop a job; its checkpoints are kept", [this] {
        return array_.empty() ? JobCancelCommand(global_, names_)
                              : JobCancelArrayCommand(global_, array_);
      }));
  CLI::App* which = cancel->add_option_group("which");
  which->add_option("jobs", names_, "jobs/7, 7, or the spec's name when it is unique");
  which->add_option("--array", array_, "all jobs of arrays/7 instead");
  which->require_option(1);
  CLI::App* resume = Connected(
      Command(group, "resume", "Queue a suspended or ended job, from its newest checkpoint",
              [this] { return JobResumeCommand(global_, names_, new_steps_); }));
  JobNames(resume, &names_);
  resume->add_option("--steps", new_steps_, "replaces train.steps: extends a finished job")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  JobNames(Connected(Command(group, "suspend", "Have a job save a checkpoint and wait for `resume`",
                             [this] { return JobSuspendCommand(global_, names_); })),
           &names_);
  JobNames(Connected(Command(group, "delete",
                             "Delete jobs that have ended, with checkpoints and logs, for good",
                             [this] { return JobDeleteCommand(global_, names_); }),
                     {"table", "name"}),
           &names_);
  AddJobUpdate(group);
}

void Tree::AddJobUpdate(CLI::App* group) {
  CLI::App* update =
      Connected(Command(group, "update", "Change labels, or when and how many slots it gets",
                        [this] { return JobUpdateCommand(global_, update_); }));
  JobNames(update, &update_.jobs);
  CLI::App* fields = update->add_option_group("changes");
  fields->add_option("--queue", update_.queue, "the queue whose share it uses");
  fields->add_option("--priority", update_.priority, "among the jobs of its queue, higher first")
      ->check(CLI::Range(-1000, 1000));
  Seconds(fields, "--time-limit", &update_.time_limit_seconds,
          "how long it may hold slots in all: 90m, 12h; 0: no limit");
  CLI::Option* depends = fields
                             ->add_option("--depends-on", update_.depends_on,
                                          "it starts when this job has succeeded; may be repeated")
                             ->allow_extra_args(false);
  fields->add_flag("--independent", update_.independent, "it depends on no job any more")
      ->excludes(depends);
  Many(fields, "--label", &update_.labels, "team=vision; team-: it has this label no more");
  fields
      ->add_option("--min-ranks", update_.min_ranks,
                   "it may go on with as few; 0: no fewer than resources.ranks")
      ->check(CLI::Range(0, 4096));
  fields
      ->add_option("--max-ranks", update_.max_ranks,
                   "it may grow to as many; 0: no more than resources.ranks")
      ->check(CLI::Range(0, 4096));
  fields->require_option(1, 0);
}

void Tree::AddTemplate() {
  CLI::App* group = Group("template", "Keep parts of specs for `job submit --template`");
  CLI::App* create =
      InProject(Connected(Command(group, "create", "Store a part of a job spec under a name",
                                  [this] { return TemplateCreateCommand(global_, template_); })));
  create->add_option("template", template_.name, "gpt2, or projects/p/templates/gpt2")->required();
  File(create->add_option("file", template_.file, "a YAML file; its paths begin with '/'"))
      ->required();
  CLI::Option* replace =
      create->add_flag("--replace", template_.replace, "also instead of one that is there");
  create
      ->add_option("--etag", template_.etag,
                   "only instead of what `describe` has shown with this etag")
      ->needs(replace);
  create->add_flag("--validate-only", template_.validate_only, "only check");
  Limit(InProject(Connected(Command(group, "list", "All templates, by name",
                                    [this] { return TemplateListCommand(global_, limit_); }))));
  const auto one = [this](CLI::App* command) {
    InProject(Connected(command))
        ->add_option("templates", names_, "gpt2, or projects/p/templates/gpt2")
        ->required();
  };
  one(Command(group, "describe", "One template: its YAML",
              [this] { return ForEachName(TemplateDescribeCommand); }));
  one(Command(group, "delete", "Delete a template; jobs submitted with it stay",
              [this] { return ForEachName(TemplateDeleteCommand); }));
}

void Tree::AddQueueFields(CLI::App* command) {
  command->add_option("queue", queue_.name, "the queue's name")->required();
  command->add_option("--weight", queue_.weight, "share of what no queue is guaranteed");
  command
      ->add_option("--guaranteed", queue_.guaranteed,
                   "slots it can have back at any time: cuda=8, cpu=4; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--limit", queue_.limits,
                   "slots it never exceeds: cuda=16, cuda=none; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--description", queue_.description, "whose it is, what it is for");
}

void Tree::AddQueue() {
  CLI::App* group = Group("queue", "Share the cluster out");
  Limit(Connected(Command(group, "list", "All queues: what they may hold, and what they do",
                          [this] { return QueueListCommand(global_, limit_); })));
  Connected(
      Command(group, "describe", "One queue", [this] { return ForEachName(QueueDescribeCommand); }))
      ->add_option("queues", names_, "queues/a or a")
      ->required();
  AddQueueFields(Connected(Command(group, "create", "Make a queue",
                                   [this] { return QueueCreateCommand(global_, queue_); })));
  AddQueueFields(Connected(Command(group, "update", "Change what is given of a queue",
                                   [this] { return QueueUpdateCommand(global_, queue_); })));
  Connected(Command(group, "delete", "Delete a queue that no job is in",
                    [this] { return ForEachName(QueueDeleteCommand); }),
            {"table", "name"})
      ->add_option("queues", names_, "queues/a or a")
      ->required();
}

void Tree::AddCheckpoint() {
  CLI::App* group = Group("checkpoint", "Look after checkpoints");
  CLI::App* list = Connected(Command(group, "list", "Checkpoints, the newest first", [this] {
    return CheckpointListCommand(global_, job_filter_, deleted_, limit_);
  }));
  list->add_option("--job", job_filter_, "only this job's");
  list->add_flag("--deleted", deleted_, "those that `checkpoint restore` can have back");
  Limit(list);
  const auto several = [this](CLI::App* command) {
    command->add_option("checkpoints", names_, "checkpoints/4 or 4")->required();
  };
  several(Connected(Command(group, "describe", "One checkpoint: its state and tensors",
                            [this] { return CheckpointDescribeCommand(global_, names_); })));
  several(Connected(Command(group, "verify", "Read every byte and check it",
                            [this] { return CheckpointVerifyCommand(global_, names_); })));
  several(Connected(Command(group, "pin", "Keep it whatever the job's retention says",
                            [this] { return CheckpointPinCommand(global_, names_, true); })));
  several(Connected(Command(group, "unpin", "Let the job's retention decide again",
                            [this] { return CheckpointPinCommand(global_, names_, false); })));
  CLI::App* to_files = Command(group, "export", "Write its weights for Hugging Face's transformers",
                               [this] { return CheckpointExportCommand(global_, export_); });
  Connected(to_files)
      ->add_option("checkpoints", export_.checkpoints, "checkpoints/4 or 4")
      ->required();
  OneOf(
      to_files->add_option("--format", export_.format, "the kind of files")->capture_default_str(),
      {"safetensors"});
  to_files
      ->add_option("--out", export_.folder,
                   "the folder to make; of several, one in it for each: 4, 5")
      ->required();
  OneOf(to_files->add_option("--dtype", export_.dtype, "of the weights; fp32 loses nothing")
            ->capture_default_str(),
        {"fp32", "bf16", "fp16"});
  const auto deletion = [&](const std::string& name, const std::string& help, bool purge) {
    const auto run = [this, purge] { return CheckpointDeleteCommand(global_, names_, purge); };
    several(Connected(Command(group, name, help, run), {"table", "name"}));
  };
  deletion("delete", "Delete, never a pinned one; `restore` has it back for some days", false);
  deletion("purge", "Delete for good, also deleted ones; never a pinned one", true);
  several(Connected(Command(group, "restore", "Have deleted ones back",
                            [this] { return CheckpointRestoreCommand(global_, names_); })));
}

void Tree::AddWorker() {
  CLI::App* group = Group("worker", "Look at the hosts that train");
  Limit(Connected(Command(group, "list", "All workers",
                          [this] { return WorkerListCommand(global_, limit_); })));
  const auto several = [this](CLI::App* command) {
    command->add_option("workers", names_, "workers/a or a")->required();
  };
  several(Connected(Command(group, "describe", "One worker: its slots and what they do",
                            [this] { return ForEachName(WorkerDescribeCommand); })));
  CLI::App* drain =
      Connected(Command(group, "drain", "Have a worker's jobs move elsewhere, and give it no more",
                        [this] { return WorkerDrainCommand(global_, drain_); }));
  drain->add_option("workers", drain_.workers, "workers/a or a")->required();
  drain->add_option("--reason", drain_.reason, "shown wherever the worker is")->required();
  Seconds(drain, "--deadline", &drain_.deadline_seconds,
          "jobs may go on for 30m, 2h, ...; then they save a checkpoint and move (default: now)");
  drain->add_flag("--monitor", drain_.monitor, "wait until it is drained");
  several(Connected(Command(group, "resume", "Take a drained worker back",
                            [this] { return ForEachName(WorkerResumeCommand); })));
  several(Connected(Command(group, "delete", "Forget a worker that is DOWN and does not come back",
                            [this] { return ForEachName(WorkerDeleteCommand); }),
                    {"table", "name"}));
  CLI::App* token = group->add_subcommand("token", "Let hosts join by themselves");
  token->require_subcommand(1);
  CLI::App* create = Connected(Command(token, "create", "Make a join token and print it, this once",
                                       [this] { return JoinTokenCreateCommand(global_, join_); }),
                               {"table", "json", "yaml"});
  create->add_option("--pool", join_.pool, "the pool of who joins with it")->required();
  Seconds(create, "--ttl", &join_.ttl_seconds, "how long it holds: 30m, 90d (default: 1h)");
  create->add_option("--uses", join_.uses, "how many hosts may join; 0: any number")
      ->capture_default_str();
  create->add_option("--name", join_.worker_pattern, "only workers called so: gpu-*");
  Many(create, "--from", &join_.addresses, "only from these addresses: 10.0.0.0/8");
  create->add_option("--service-account", join_.service_account,
                     "NAMESPACE/NAME in Kubernetes, whose pods join without a secret of ours");
  Limit(Connected(Command(token, "list", "All join tokens",
                          [this] { return JoinTokenListCommand(global_, limit_); })));
  Connected(Command(token, "revoke", "Let no more hosts join with it, at once",
                    [this] { return ForEachName(JoinTokenRevokeCommand); }))
      ->add_option("tokens", names_, "joinTokens/1a2b3c4d5e6f or 1a2b3c4d5e6f")
      ->required();
}

void Tree::AddAuth() {
  CLI::App* group = Group("auth", "Who you are to a coordinator");
  CLI::App* login =
      InProject(Connected(Command(group, "login", "Try a token and keep it for later commands",
                                  [this] { return AuthLoginCommand(global_, login_); }),
                          {"table"}));
  File(login->add_option("--ca", login_.authority,
                         "certificate of the authority that signs the coordinator's"))
      ->envname("MILEPOST_CA");
  File(login->add_option("--token-file", login_.token_file,
                         "the token (default: MILEPOST_TOKEN, else asked for)"));
  Connected(Command(group, "whoami", "Who the coordinator takes you for",
                    [this] { return AuthWhoAmICommand(global_); }));
  CLI::App* token = group->add_subcommand("token", "Let others in");
  token->require_subcommand(1);
  CLI::App* create = Connected(Command(token, "create", "Make a token and print it, this once",
                                       [this] { return TokenCreateCommand(global_, token_); }));
  create
      ->add_option("--user", token_.user,
                   "whose it is, for the audit log: letters, digits, . _ - + @ : /")
      ->required();
  OneOf(create->add_option("--role", token_.role, "what it may do")->required(),
        {"viewer", "submitter", "admin"});
  create
      ->add_option("--project", token_.projects,
                   "where; * is everywhere; may be repeated (default: the login's project)")
      ->allow_extra_args(false);
  Seconds(create, "--expires", &token_.expires_seconds,
          "how long it holds: 12h, 30d (default: ever)");
  Limit(Connected(Command(token, "list", "Tokens that you may revoke",
                          [this] { return TokenListCommand(global_, limit_); })));
  Connected(Command(token, "revoke", "Make a token worthless, at once",
                    [this] { return ForEachName(TokenRevokeCommand); }))
      ->add_option("tokens", names_, "tokens/1a2b3c4d5e6f or 1a2b3c4d5e6f")
      ->required();
}

void Tree::AddWeb() {
  CLI::App* web = Command(&app_, "web", "Serve the web page and the JSON API of a coordinator",
                          [this] { return WebCommand(global_, web_); });
  AddCoordinator(web);
  web->add_option("--listen", web_.listen,
                  "HOST:PORT; other than loopback only with --tls-dir; port 0: a free one")
      ->capture_default_str();
  web->add_option("--tls-dir", web_.tls_dir,
                  "folder with tls.crt, tls.key and ca.crt: serve over TLS");
  Many(web, "--allow-host", &web_.allow_hosts,
       "a name by which browsers come here, besides localhost");
}

void Tree::AddVersionAndCompletion() {
  AddOutput(Command(&app_, "version", "This release", [this] { return VersionCommand(global_); }),
            {"table", "json", "yaml"});
  CLI::App* completion = Command(&app_, "completion", "Print a shell's completion script", [this] {
    const auto script = CompletionScript(Describe(), shell_);
    if (!script.ok()) return Fail(script.status());
    Print(*script);
    return int{kExitOk};
  });
  OneOf(completion->add_option("shell", shell_, "bash, zsh or fish")->required(),
        {"bash", "zsh", "fish"});
}

// The innermost command that the arguments named.
const CLI::App* Innermost(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string FullCommand(const CLI::App* app) {
  return app->get_parent() == nullptr
             ? app->get_name()
             : absl::StrCat(FullCommand(app->get_parent()), " ", app->get_name());
}

std::vector<std::string> NamesIn(const CLI::App* app, bool flags) {
  std::vector<std::string> names;
  if (flags) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  for (const CLI::App* child : app->get_subcommands([](const CLI::App*) { return true; })) {
    // Without a name it is a group of this one's options.
    const bool group = child->get_name().empty();
    if (!flags && !group) names.push_back(child->get_name());
    if (!flags || !group) continue;
    for (std::string& name : NamesIn(child, flags)) names.push_back(std::move(name));
  }
  return names;
}

// What is wrong with the command line, for stderr.
std::string Explain(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* command = Innermost(&root);
  std::vector<std::string> extras = command->remaining();
  if (extras.empty()) extras = root.remaining(true);
  if (extras.empty()) return error.what();
  const std::string& first = extras.front();
  const bool is_flag = absl::StartsWith(first, "-");
  const std::vector<std::string> names = NamesIn(command, is_flag);
  const std::string typed = first.substr(0, first.find('='));
  const std::string hint = DidYouMean(typed, names);
  if (is_flag) return absl::StrCat("unknown flag ", typed, hint);
  if (names.empty()) return absl::StrCat("unexpected argument '", first, "'");
  return absl::StrCat("unknown command '", first, "'",
                      hint.empty() ? "; expected one of " + absl::StrJoin(names, ", ") : hint);
}

}  // namespace

CommandInfo DescribeCommands() {
  Tree tree;
  return tree.Describe();
}

int Main(int argc, const char* const* argv) {
  Tree tree;
  if (argc <= 1) {
    Print(tree.app().help());
    return kExitOk;
  }
  // CLI11 reports by throwing; nothing of it leaves this function.
  try {
    tree.app().parse(argc, argv);
  } catch (const CLI::Success& success) {
    return tree.app().exit(success);
  } catch (const CLI::ParseError& error) {
    Note(absl::StrCat("milepost: ", Explain(tree.app(), error)));
    Hint(absl::StrCat(FullCommand(Innermost(&tree.app())), " --help"));
    return kExitUsage;
  }
  if (absl::Status status = CheckWallClock(absl::Now()); !status.ok()) {
    Note(absl::StrCat("milepost: ", status.message()));
    return kExitError;
  }
  const int exit_code = tree.chosen()();
  // That of a run is its job's, whoever reads of it.
  const bool run = Innermost(&tree.app())->get_name() == "run";
  return run ? exit_code : FinishOutput(exit_code);
}

}  // namespace milepost::client
