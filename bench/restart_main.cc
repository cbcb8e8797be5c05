// How soon a coordinator serves again, with jobs and checkpoints stored. Prints a line for each.
//
//   build/release/bench/restart [--jobs 10000] [--checkpoints 1000] [--data-dir DIR]
//
// - a restart: from the start of the process until a call is answered
// - what a takeover adds to it: the next epoch's directory, made of the newest
// Checkpoints are small ones of two streams: what counts is how many files and records there are.
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/api/clients.h"
#include "common/check.h"
#include "common/spec/validate.h"
#include "common/subprocess.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/epochs.h"

namespace milepost {
namespace {

using coordinator::CoordinatorServer;

struct Options {
  int jobs = 10'000;
  int checkpoints = 1000;
  int tensors = 150;  // of each checkpoint
  int callers = 32;
  std::string data_dir;
};

v1::SubmitJobRequest Request(int number) {
  v1::SubmitJobRequest request;
  request.set_request_id(absl::StrCat("fill-", number));
  v1::JobSpec* spec = request.mutable_spec();
  spec->set_name(absl::StrCat("job-", number));
  v1::Gpt2Spec* model = spec->mutable_model()->mutable_gpt2();
  model->set_layers(12);
  model->set_width(768);
  model->set_heads(12);
  model->set_context(1024);
  model->set_vocabulary(50304);
  spec->mutable_data()->set_train("/data/train.npy");
  spec->mutable_train()->set_steps(1000);
  spec->mutable_train()->mutable_batch()->set_global(64);
  spec->mutable_train()->mutable_batch()->set_micro(8);
  spec->mutable_resources()->set_ranks(8);
  return request;
}

void AddJobs(const Options& options, coordinator::Coordinator* coordinator) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < options.callers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = caller; i < options.jobs; i += options.callers) {
        MP_CHECK(coordinator->jobs().Submit(Request(i)).ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void AddCheckpoint(const Options& options, int number, coordinator::CheckpointStore* store) {
  v1::BeginCheckpointRequest begin;
  begin.set_job(absl::StrCat("jobs/", number % options.jobs + 1));
  begin.set_generation(1);
  begin.set_step(number + 1);
  begin.set_streams(2);
  begin.set_bytes(options.tensors * 16 * 4);
  for (int i = 0; i < options.tensors; ++i) {
    v1::TensorInfo* tensor = begin.add_tensors();
    tensor->set_name(absl::StrCat("layers.", i, ".attention.weight"));
    tensor->set_kind("master");
    tensor->set_dtype("F32");
    tensor->add_shape(16);
  }
  const auto name = store->Begin(begin);
  MP_CHECK(name.ok()) << name.status();
  for (int stream = 0; stream < 2; ++stream) {
    auto writer = store->OpenStream(*name, 1, stream);
    MP_CHECK(writer.ok()) << writer.status();
    for (int i = stream; i < options.tensors; i += 2) {
      v1::Chunk chunk;
      chunk.set_tensor(i);
      chunk.set_end(16);
      chunk.set_data(std::string(64, static_cast<char>(i)));
      chunk.set_xxh3(XXH3_64bits(chunk.data().data(), chunk.data().size()));
      MP_CHECK((*writer)->Append(std::move(chunk)).ok());
    }
    MP_CHECK((*writer)->Finish().ok());
  }
  auto prepared = store->Prepare(*name, absl::Now());
  MP_CHECK(prepared.ok()) << prepared.status();
  MP_CHECK(prepared->Publish().ok());
}

void Fill(const Options& options) {
  const absl::Time begin = absl::Now();
  auto server = CoordinatorServer::Start({.store = {.dir = options.data_dir}});
  MP_CHECK(server.ok()) << server.status();
  AddJobs(options, &(*server)->coordinator());
  const absl::Time jobs = absl::Now();
  for (int i = 0; i < options.checkpoints; ++i) {
    AddCheckpoint(options, i, &(*server)->coordinator().store().checkpoints());
  }
  std::printf("stored: %d jobs in %.1f s, %d checkpoints in %.1f s\n", options.jobs,
              absl::ToDoubleSeconds(jobs - begin), options.checkpoints,
              absl::ToDoubleSeconds(absl::Now() - jobs));
}

double Restart(const Options& options) {
  const std::string file = options.data_dir + "/address";
  std::filesystem::remove(file);
  SpawnOptions spawn;
  spawn.argv = {SiblingBinary("../bin/milepost-coordinator"),
                "--data-dir",
                options.data_dir,
                "--listen",
                "127.0.0.1:0",
                "--log-level",
                "error",
                "--address-file",
                file};
  const absl::Time begin = absl::Now();
  absl::StatusOr<Subprocess> process = Subprocess::Spawn(std::move(spawn));
  MP_CHECK(process.ok()) << process.status();
  while (!std::filesystem::exists(file)) absl::SleepFor(absl::Milliseconds(1));
  std::string address;
  std::ifstream(file) >> address;
  const auto jobs = client::JobClient(client::Connection::To(Endpoint(address))).List(1);
  MP_CHECK(jobs.ok() && jobs->size() == 1) << jobs.status();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  (void)process->Signal(SIGKILL);
  (void)process->Wait();
  return seconds;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("How soon a coordinator serves again, with jobs and checkpoints stored.");
  app.add_option("--jobs", options.jobs)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--checkpoints", options.checkpoints)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--data-dir", options.data_dir, "(default: a folder that is removed again)");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::err);
  const bool temporary = options.data_dir.empty();
  if (temporary) {
    options.data_dir = (std::filesystem::temp_directory_path() / "milepost_restart_XXXXXX");
    MP_CHECK(mkdtemp(options.data_dir.data()) != nullptr);
  }
  Fill(options);
  for (int i = 0; i < 3; ++i) std::printf("restart: %.2f s until served\n", Restart(options));
  const absl::Time begin = absl::Now();
  const auto epoch = coordinator::TakeOver(options.data_dir, [] { return absl::OkStatus(); });
  MP_CHECK(epoch.ok()) << epoch.status();
  std::printf("takeover: %.2f s for the next epoch\n", absl::ToDoubleSeconds(absl::Now() - begin));
  Options next = options;
  next.data_dir = epoch->dir;
  std::printf("restart on it: %.2f s until served\n", Restart(next));
  if (temporary) std::filesystem::remove_all(options.data_dir);
  return 0;
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) { return milepost::Main(argc, argv); }
