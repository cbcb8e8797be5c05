// The tree of commands as CLI11 parses it: names, flags, help. Internal to app.h.
//
//   CommandTree tree;
//   tree.app().parse(argc, argv);  // throws CLI::ParseError
//   int exit_code = tree.chosen()();
//
// command_tree.cc has what its commands share. command_tree_local.cc adds those that do their work
// on this machine, command_tree_jobs.cc those about jobs and their templates,
// command_tree_cluster.cc those about queues, checkpoints, workers, logins and tokens.
//
// Not thread-safe. It must outlive chosen(), which refers to it.
#ifndef MILEPOST_CLIENT_CLI_COMMAND_TREE_H_
#define MILEPOST_CLIENT_CLI_COMMAND_TREE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/completion.h"
#include "client/cli/describe_app.h"

namespace milepost::client {

// Builds the CLI11 tree. The commands' option structs live here, for as long as the tree.
class CommandTree {
 public:
  CommandTree();

  CLI::App& app() { return app_; }
  // What the parsed command line asks for.
  const std::function<int()>& chosen() const { return chosen_; }

  CommandInfo Describe() const { return DescribeApp(app_, values_, files_); }

 private:
  // command_tree.cc
  void OneOf(CLI::Option* option, std::vector<std::string> values);
  CLI::App* Command(CLI::App* parent, const std::string& name, const std::string& help,
                    std::function<int()> run);
  CLI::App* Group(const std::string& name, const std::string& help);
  void AddOutput(CLI::App* command, std::vector<std::string> formats);
  void AddDataDir(CLI::App* command);
  // The flags of commands that talk to a coordinator.
  CLI::App* Connected(CLI::App* command,
                      std::vector<std::string> formats = {"table", "wide", "json", "yaml", "name"});
  CLI::App* AddCoordinator(CLI::App* command);
  // Of commands about a project's jobs. The environment counts in login.h.
  CLI::App* InProject(CLI::App* command);
  CLI::Option* File(CLI::Option* option);
  CLI::Option* Spec(CLI::App* command, std::string* spec);
  CLI::Option* JobNames(CLI::App* command, std::vector<std::string>* jobs);
  // Until one fails.
  int ForEachName(int (*run)(const GlobalOptions&, const std::string&));
  CLI::Option* Seconds(CLI::App* command, const std::string& name, std::optional<double>* seconds,
                       const std::string& help);
  CLI::Option* Many(CLI::App* command, const std::string& name, std::vector<std::string>* values,
                    const std::string& help);
  void Limit(CLI::App* command);

  // command_tree_local.cc
  void AddRun();
  void AddFineTuning(CLI::App* run, CLI::Option* spec, CLI::Option* job);
  void AddPlan();
  void AddBench();
  void AddDoctor();
  void AddDataset();
  void AddGenerate();
  void AddServe();
  void AddWeb();
  void AddVersionAndCompletion();

  // command_tree_jobs.cc
  void AddJob();
  void AddJobCurves(CLI::App* group);
  void AddJobFork(CLI::App* group);
  void AddJobList(CLI::App* group);
  void AddJobControl(CLI::App* group);
  void AddJobUpdate(CLI::App* group);
  void AddTemplate();

  // command_tree_cluster.cc
  void AddQueue();
  void AddQueueFields(CLI::App* command);
  void AddCheckpoint();
  void AddWorker();
  void AddAuth();

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
  ServeOptions serve_;
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

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_COMMAND_TREE_H_
