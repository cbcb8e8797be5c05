// milepost job ..., milepost template ...
#include <CLI/CLI.hpp>
#include <cstdint>

#include "client/cli/command_tree.h"
#include "client/cli/commands.h"
#include "client/cli/job_arguments.h"

namespace milepost::client {

void CommandTree::AddJob() {
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

void CommandTree::AddJobCurves(CLI::App* group) {
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

void CommandTree::AddJobFork(CLI::App* group) {
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

void CommandTree::AddJobList(CLI::App* group) {
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

void CommandTree::AddJobControl(CLI::App* group) {
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

void CommandTree::AddJobUpdate(CLI::App* group) {
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

void CommandTree::AddTemplate() {
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

}  // namespace milepost::client
