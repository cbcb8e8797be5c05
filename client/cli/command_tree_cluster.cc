// milepost queue ..., checkpoint ..., worker ..., auth ...
#include <CLI/CLI.hpp>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/commands.h"

namespace milepost::client {

void CommandTree::AddQueue() {
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

void CommandTree::AddQueueFields(CLI::App* command) {
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

void CommandTree::AddCheckpoint() {
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
  File(to_files->add_option("--tokenizer", export_.tokenizer,
                            "a folder whose tokenizer and generation_config.json are copied "
                            "(default: train.init_from of the job, where it is here)"));
  to_files->add_flag("--merge", export_.merge,
                     "of adapters: write the model with them, not the adapters for PEFT");
  File(to_files->add_option("--base", export_.base,
                            "of adapters: the folder of the model that they adapt (default: "
                            "train.init_from of the job)"));
  to_files->add_flag("--trained-weights", export_.trained_weights,
                     "of a job with train.ema: the parameters, not their average");
  const auto deletion = [&](const std::string& name, const std::string& help, bool purge) {
    const auto run = [this, purge] { return CheckpointDeleteCommand(global_, names_, purge); };
    several(Connected(Command(group, name, help, run), {"table", "name"}));
  };
  deletion("delete", "Delete, never a pinned one; `restore` has it back for some days", false);
  deletion("purge", "Delete for good, also deleted ones; never a pinned one", true);
  several(Connected(Command(group, "restore", "Have deleted ones back",
                            [this] { return CheckpointRestoreCommand(global_, names_); })));
}

void CommandTree::AddWorker() {
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

void CommandTree::AddAuth() {
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

}  // namespace milepost::client
