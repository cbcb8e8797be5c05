// milepost-trainer, milepost-trainer-cuda: one rank of a training attempt (started by
// milepost-worker), or text generation from a checkpoint (one text, or for `milepost serve`), or a
// measurement of the machine (for `milepost bench device`).
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/exit_codes.h"
#include "common/flags/number_range.h"
#include "common/message_channel.h"
#include "common/rpc/grpc_log.h"
#include "common/standard_fds.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "milepost/v1/job_spec.pb.h"
#include "worker/cgroup/cgroup.h"
#include "worker/script/script_rank.h"
#include "worker/trainer/device.h"
#include "worker/trainer/generate.h"
#include "worker/trainer/measure.h"
#include "worker/trainer/serve_texts.h"
#include "worker/trainer/signals.h"
#include "worker/trainer/train.h"

namespace milepost::worker {
namespace {

// The user's credentials, from where `milepost generate` puts them: arguments are for all to see.
absl::Status FindCredentials(Endpoint* coordinator) {
  const char* authority = std::getenv("MILEPOST_CA");
  const char* token = std::getenv("MILEPOST_TOKEN");
  if (authority == nullptr || *authority == '\0') return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(coordinator->credentials,
                      UserCredentials(authority, token == nullptr ? "" : token));
  return absl::OkStatus();
}

int RunGenerate(GenerateRequest request) {
  absl::Status status = FindCredentials(&request.source.coordinator);
  if (status.ok()) status = Generate(request);
  if (!status.ok()) spdlog::error("{}", std::string(status.message()));
  return ExitCodeOf(status);
}

int RunServe(ModelSource source, int64_t window, int64_t texts) {
  signal(SIGPIPE, SIG_IGN);
  absl::Status status = FindCredentials(&source.coordinator);
  if (status.ok()) status = ServeTexts(source, window, texts);
  if (!status.ok()) spdlog::error("{}", std::string(status.message()));
  return ExitCodeOf(status);
}

void AddSourceOptions(CLI::App* command, ModelSource* source) {
  command->add_option("--coordinator", source->coordinator.address, "host:port")->required();
  command->add_option("--checkpoint", source->checkpoint, "checkpoints/<number>")->required();
  command->add_option("--base", source->base, "of adapters: the folder of what they adapt");
  command->add_flag("--trained-weights", source->trained_weights,
                    "the parameters, also where the checkpoint has their average");
  const std::map<std::string, v1::Precision> precisions = {
      {"fp32", v1::PRECISION_FP32}, {"bf16", v1::PRECISION_BF16}, {"fp16", v1::PRECISION_FP16}};
  command->add_option("--precision", source->precision)
      ->transform(CLI::CheckedTransformer(precisions))
      ->default_str("fp32");
  command->add_option("--threads", source->threads)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void AddGenerateOptions(CLI::App* generate, GenerateRequest* request) {
  AddSourceOptions(generate, &request->source);
  generate->add_option("--prompt", request->prompt, "text, for a byte-level model");
  generate->add_option("--prompt-ids", request->prompt_ids, "token ids: 1,2,3");
  generate->add_option("--tokens", request->options.tokens, "how many to generate")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  generate->add_option("--temperature", request->options.temperature, "0: the likeliest token")
      ->check(NumberRange(0, 100))
      ->capture_default_str();
  generate->add_option("--top-k", request->options.top_k, "only the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate->add_option("--top-p", request->options.top_p, "the likeliest that reach this sum")
      ->check(NumberRange(1e-9, 1.0))
      ->capture_default_str();
  generate->add_option("--seed", request->options.seed)->capture_default_str();
}

int RunMeasure(const TrainerDevice& device, const std::string& name, int threads,
               const std::string& disk_folder) {
  absl::Status status = Measure(device, name, threads, disk_folder);
  if (!status.ok()) spdlog::error("{}", std::string(status.message()));
  return ExitCodeOf(status);
}

int RunCheck(const TrainerDevice& device) {
  const absl::Status status = device.check ? device.check() : absl::OkStatus();
  if (!status.ok()) spdlog::error("{}", std::string(status.message()));
  return ExitCodeOf(status);
}

// The worker's (RankProcess), where it gave one: whoever has it open counts as the rank's process.
int HeldDescriptor() {
  constexpr int kHeld = 4;
  return fcntl(kHeld, F_GETFD) >= 0 ? kHeld : -1;
}

int Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("trainer"));
  spdlog::set_pattern("%H:%M:%S.%e %L %v");
  CLI::App app{"One rank of a training attempt, or text from a checkpoint."};
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  int channel_fd = -1;
  CLI::App* train = app.add_subcommand("train", "run one rank; started by milepost-worker");
  train->add_option("--channel-fd", channel_fd, "descriptor of the channel to the worker")
      ->required();
  std::vector<std::string> cgroup_folders;
  train->add_option("--cgroup", cgroup_folders, "folder of a control group for a script");
  std::string container;
  train->add_option("--container", container, "name of a script's container");
  GenerateRequest request;
  CLI::App* generate =
      app.add_subcommand("generate", "print text that a checkpoint's model writes");
  const int all_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  request.source.threads = all_threads;
  AddGenerateOptions(generate, &request);
  ModelSource served;
  served.threads = all_threads;
  int64_t window = 0;
  CLI::App* serve = app.add_subcommand("serve", "generate texts; started by `milepost serve`");
  AddSourceOptions(serve, &served);
  serve->add_option("--window", window, "tokens of a prompt and its answer")
      ->required()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  int64_t texts = 1;
  serve->add_option("--texts", texts, "that are made side by side")->check(CLI::PositiveNumber);
  std::string name = "host";
  int measured_threads = all_threads;
  CLI::App* measure = app.add_subcommand("measure", "print what this machine can do, as JSON");
  measure->add_option("--name", name)->capture_default_str();
  measure->add_option("--threads", measured_threads)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  std::string disk_folder;
  measure->add_option("--disk", disk_folder, "measure the disk under this folder too");
  CLI::App* check = app.add_subcommand("check", "whether the device computes as it should");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (train->parsed()) InstallTrainerSignals();
  // These are commands' own: what they say is read by people as it is.
  if (generate->parsed() || serve->parsed() || measure->parsed())
    spdlog::set_pattern("milepost: %v");
  const TrainerDevice device = DeviceOfThisBinary();
  request.source.engine = device.generation;
  served.engine = device.generation;
  if (generate->parsed()) return RunGenerate(request);
  if (serve->parsed()) return RunServe(served, window, texts);
  if (check->parsed()) return RunCheck(device);
  if (measure->parsed()) return RunMeasure(device, name, measured_threads, disk_folder);
  return RunRank(MessageChannel(UniqueFd(channel_fd)),
                 [&](v1::TrainerStart start, MessageChannel* channel) {
                   if (!start.start().spec().has_script()) {
                     return Train(std::move(start), channel, device);
                   }
                   return EndRank(RunScript(start, channel,
                                            {.held = HeldDescriptor(),
                                             .container = container,
                                             .cgroup = Cgroup(std::move(cgroup_folders))}),
                                  channel);
                 });
}

}  // namespace
}  // namespace milepost::worker

int main(int argc, char** argv) {
  milepost::OpenStandardFds();
  milepost::ForwardGrpcLog();
  return milepost::worker::Main(argc, argv);
}
