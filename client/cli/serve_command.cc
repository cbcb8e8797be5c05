// milepost serve
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/access.h"
#include "client/cli/commands.h"
#include "client/cli/generation_source.h"
#include "client/cli/interrupt.h"
#include "client/cli/model_spawns.h"
#include "client/cli/output.h"
#include "client/cli/trainer_binary.h"
#include "client/serve/api_server.h"
#include "client/serve/model_processes.h"
#include "common/exit_codes.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/systemd/service.h"

namespace milepost::client {
namespace {

constexpr size_t kMostKeyBytes = 4096;
constexpr size_t kMostModelName = 256;

// What ends the command. Thread-safe.
class ServeEnd {
 public:
  ServeEnd() : event_(eventfd(0, EFD_CLOEXEC)) {}
  void Ask() {
    asked_ = true;  // before Await returns, after which it is read
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof one);
    absl::MutexLock lock(&mutex_);
    if (cancel_) cancel_();
  }
  // What to call when the end is asked for, while this lives: at once where it was already.
  void OnAsk(std::function<void()> cancel) {
    absl::MutexLock lock(&mutex_);
    cancel_ = std::move(cancel);
    if (asked_ && cancel_) cancel_();
  }
  bool asked() const { return asked_; }
  // Blocks until the end is asked for or one of `others` becomes readable.
  void Await(const std::vector<int>& others) const {
    std::vector<pollfd> fds = {{event_.get(), POLLIN, 0}};
    for (const int fd : others) fds.push_back({fd, POLLIN, 0});
    while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
    }
  }

 private:
  const UniqueFd event_;
  std::atomic<bool> asked_ = false;
  absl::Mutex mutex_;
  std::function<void()> cancel_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::string> ReadApiKey(const std::string& path) {
  if (path.empty()) return std::string();
  MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMostKeyBytes));
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & (S_IWGRP | S_IROTH | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--api-key-file: others may read or change ", path, ": chmod 600 ", path));
  }
  std::string key(absl::StripAsciiWhitespace(text));
  if (!key.empty() && std::all_of(key.begin(), key.end(), absl::ascii_isgraph)) return key;
  return absl::InvalidArgumentError(absl::StrCat(
      "--api-key-file: ", path,
      " must hold one key, of ASCII's visible characters: ", "openssl rand -hex 32 > ", path));
}

absl::Status CheckModelName(const std::string& name) {
  if (name.size() <= kMostModelName && std::all_of(name.begin(), name.end(), absl::ascii_isgraph)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--model-name: at most ", kMostModelName, " of ASCII's visible characters"));
}

absl::StatusOr<ApiOptions> ApiOptionsFor(const ServeOptions& options) {
  MP_RETURN_IF_ERROR(CheckModelName(options.model_name));
  ApiOptions api;
  MP_ASSIGN_OR_RETURN(api.key, ReadApiKey(options.key_file));
  api.host = options.host;
  api.port = options.port;
  api.tls_dir = options.tls_dir;
  api.model = options.model_name;
  api.now = [] { return absl::ToUnixSeconds(absl::Now()); };
  api.created = api.now();
  api.seed = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  };
  return api;
}

// The coordinator is needed only until the model is loaded: a run on the data directory may begin
// afterwards.
absl::StatusOr<std::unique_ptr<ModelProcesses>> LoadModel(const GlobalOptions& global,
                                                          const ServeOptions& options,
                                                          ServeEnd* end, ApiOptions* api) {
  MP_ASSIGN_OR_RETURN(const Access access, Access::Open(global, WhenStopped::kServeDataDir));
  MP_ASSIGN_OR_RETURN(
      const GenerationSource source,
      FindSource(access, {options.checkpoint, options.job, options.tokenizer, options.base}));
  if (api->model.empty()) api->model = source.checkpoint;
  Note(absl::StrCat("loading ", source.checkpoint, " of ", source.job, " ..."));
  const TrainerRoom room = {options.device, options.precision, options.context, options.parallel,
                            options.trained_weights};
  auto model = std::make_unique<ModelProcesses>(
      ModelProcessOptions{.trainer = ServingTrainer(access, source, room),
                          .tokenizer = ServingTokenizer(source.tokenizer)});
  end->OnAsk([raw = model.get()] { raw->Cancel(); });
  const absl::Status loaded = model->Load();
  if (loaded.ok()) return model;
  end->OnAsk(nullptr);
  return loaded;
}

void SayHowToAsk(const ApiOptions& api, const std::string& url, const TextModelFacts& facts) {
  const nlohmann::ordered_json name = api.model;
  const bool chat = facts.chat.ok();
  const std::string asked = chat ? R"("messages": [{"role": "user", "content": "Hello"}])"
                                 : R"("prompt": "Once upon a time", "max_tokens": 100)";
  Note(absl::StrCat("model ", api.model, ", with room for ", facts.window, " tokens, ", facts.texts,
                    " texts side by side; try:\n  curl ", url,
                    chat ? "/v1/chat/completions" : "/v1/completions",
                    " -H 'Content-Type: application/json'",
                    api.key.empty() ? "" : " -H \"Authorization: Bearer $KEY\"", " \\\n    -d '{",
                    "\"model\": ", name.dump(), ", ", asked, "}'"));
  if (!chat) Note(absl::StrCat("no chats: ", facts.chat.message()));
}

}  // namespace

int ServeCommand(const GlobalOptions& global, const ServeOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a process or a client that ends is an error of its own write
  ServeEnd end;
  const InterruptGuard guard([&] { end.Ask(); });
  auto api = ApiOptionsFor(options);
  if (!api.ok()) return Fail(api.status());
  auto listener = ApiListener::Open(*api);
  if (!listener.ok()) return Fail(listener.status());
  const absl::Status there = CheckTrainerBinary(options.device == "cuda");
  if (!there.ok()) return Fail(there);
  const auto model = LoadModel(global, options, &end, &*api);
  const absl::Cleanup forget = [&end] { end.OnAsk(nullptr); };
  if (end.asked()) return kExitOk;
  if (!model.ok()) return Fail(model.status());
  auto server = ApiServer::Start(*api, *std::move(listener), model->get());
  if (!server.ok()) return Fail(server.status());
  Print(absl::StrCat((*server)->url(), "\n"));
  SayHowToAsk(*api, (*server)->url(), (*model)->facts());
  if (StdoutIsTerminal()) Note("Ctrl-C ends it");
  Service service;
  service.Ready(absl::StrCat("serves ", api->model));
  end.Await((*model)->ends());
  const bool asked = end.asked();
  (*model)->Cancel();
  server->reset();
  return asked ? int{kExitOk} : Fail(absl::InternalError("the model's process has ended"));
}

}  // namespace milepost::client
