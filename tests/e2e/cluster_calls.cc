#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/checksum.h"
#include "common/spec/validate.h"
#include "engine/data/npy.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr absl::Duration kCallPatience = absl::Seconds(60);
constexpr absl::Duration kCallPause = absl::Milliseconds(10);

}  // namespace

template <typename Call>
void Cluster::Rpc(const std::string& name, Call call) {
  const absl::Time deadline = absl::Now() + kCallPatience;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kCallPatience));
    const grpc::Status status = call(&context);
    if (status.ok()) return;
    // A coordinator, or a standby, that stops or becomes the active one cuts calls off: CANCELLED.
    const bool away = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::CANCELLED;
    if (!away || absl::Now() > deadline) {
      Fail(absl::StrCat(name, ": ", status.error_message()));
    }
    if (options_.start_again) StartEndedCoordinators();
    channel_->Failed(channel_->Get());
    Connect();
    absl::SleepFor(kCallPause);
  }
}

std::string Cluster::Submit(const v1::JobSpec& spec) {
  absl::BitGen bits;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(absl::StrFormat("%08x-0000-4000-8000-%012x", absl::Uniform<uint32_t>(bits),
                                         absl::Uniform<uint64_t>(bits) >> 16));
  v1::Job job;
  Rpc("SubmitJob",
      [&](grpc::ClientContext* context) { return jobs_->SubmitJob(context, request, &job); });
  return job.name();
}

void Cluster::Cancel(const std::string& name) {
  v1::CancelJobRequest request;
  request.set_name(name);
  v1::Job job;
  Rpc("CancelJob",
      [&](grpc::ClientContext* context) { return jobs_->CancelJob(context, request, &job); });
}

std::vector<v1::LogLine> Cluster::Logs(const std::string& job) {
  v1::StreamLogsRequest request;
  request.set_name(job);
  std::vector<v1::LogLine> lines;
  Rpc("StreamLogs", [&](grpc::ClientContext* context) {
    lines.clear();
    auto stream = jobs_->StreamLogs(context, request);
    v1::LogLine line;
    while (stream->Read(&line)) lines.push_back(line);
    return stream->Finish();
  });
  return lines;
}

v1::LogLine Cluster::AwaitLogLine(const std::string& job, const std::string& text) {
  const absl::Time deadline = absl::Now() + kCallPatience;
  while (absl::Now() < deadline) {
    for (v1::LogLine& line : Logs(job)) {
      if (absl::StrContains(line.text(), text)) return std::move(line);
    }
    absl::SleepFor(kCallPause);
  }
  Fail(absl::StrCat(job, " does not say: ", text));
}

v1::Job Cluster::Get(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::Job job;
  Rpc("GetJob",
      [&](grpc::ClientContext* context) { return jobs_->GetJob(context, request, &job); });
  return job;
}

v1::Job Cluster::Await(const std::string& name, const std::function<bool(const v1::Job&)>& done,
                       absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  while (true) {
    v1::Job job = Get(name);
    if (done(job)) return job;
    if (absl::Now() > deadline) Fail(absl::StrCat("waited in vain for ", job.ShortDebugString()));
    absl::SleepFor(kCallPause);
  }
}

std::vector<v1::Checkpoint> Cluster::Checkpoints(const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  request.set_page_size(1000);
  v1::ListCheckpointsResponse response;
  Rpc("ListCheckpoints", [&](grpc::ClientContext* context) {
    return checkpoints_->ListCheckpoints(context, request, &response);
  });
  return {response.checkpoints().begin(), response.checkpoints().end()};
}

std::vector<std::string> Cluster::DamagedChunks(const std::string& checkpoint) {
  v1::VerifyCheckpointRequest request;
  request.set_name(checkpoint);
  v1::VerifyCheckpointResponse response;
  Rpc("VerifyCheckpoint", [&](grpc::ClientContext* context) {
    return checkpoints_->VerifyCheckpoint(context, request, &response);
  });
  return {response.damaged_chunks().begin(), response.damaged_chunks().end()};
}

void Cluster::FlipAByteOfTheNewestChunks() const {
  constexpr uintmax_t kManifestBytes = 64 << 10;  // the files that hold no chunks are smaller
  std::filesystem::path newest;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder_ + "/coordinator")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < kManifestBytes) continue;
    // Named by a number that grows.
    if (newest.empty() || entry.path().filename() > newest.filename()) newest = entry.path();
  }
  if (newest.empty()) Fail("there is no file with chunks");
  std::fstream file(newest, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(1000);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(1000);
  file.put(byte);
  file.close();
  if (!file) Fail(absl::StrCat("cannot damage ", newest.string()));
}

std::map<std::string, uint64_t> Cluster::TensorDigests(const std::string& checkpoint) {
  v1::GetCheckpointRequest get;
  get.set_name(checkpoint);
  v1::CheckpointManifest manifest;
  Rpc("GetCheckpoint", [&](grpc::ClientContext* context) {
    return checkpoints_->GetCheckpoint(context, get, &manifest);
  });
  std::vector<std::map<int64_t, std::string>> pieces(static_cast<size_t>(manifest.tensors_size()));
  Rpc("ReadChunks", [&](grpc::ClientContext* context) {
    v1::ReadChunksRequest request;
    request.set_name(checkpoint);
    auto stream = checkpoints_->ReadChunks(context, request);
    v1::Chunk chunk;
    while (stream->Read(&chunk)) {
      pieces[static_cast<size_t>(chunk.tensor())][chunk.begin()] = chunk.data();
    }
    return stream->Finish();
  });
  std::map<std::string, uint64_t> digests;
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    std::string bytes;
    for (const auto& [begin, data] : pieces[static_cast<size_t>(i)]) bytes += data;
    const v1::TensorInfo& tensor = manifest.tensors(i);
    digests[absl::StrCat(tensor.name(), " ", tensor.kind())] = Xxh3(bytes);
  }
  return digests;
}

bool Cluster::CheckpointBeingWritten() const {
  const auto holds_any = [](const std::filesystem::path& folder) {
    std::error_code error;
    return std::filesystem::directory_iterator(folder, error) !=
           std::filesystem::directory_iterator();
  };
  const std::string store = folder_ + "/coordinator";
  if (holds_any(store + "/staging")) return true;
  if (options_.coordinators == 1) return false;
  std::error_code error;
  for (const auto& epoch : std::filesystem::directory_iterator(store, error)) {
    if (holds_any(epoch.path() / "staging")) return true;
  }
  return false;
}

v1::JobSpec SmallJob(const std::string& folder, int64_t steps) {
  v1::JobSpec spec;
  spec.set_name("small");
  for (const char* name : {"train", "validation"}) {
    const std::string path = absl::StrCat(folder, "/", name, ".npy");
    (name[0] == 't' ? *spec.mutable_data()->mutable_train()
                    : *spec.mutable_data()->mutable_validation()) = path;
    if (std::filesystem::exists(path)) continue;
    auto writer = data::NpyWriter::Create(path, data::TokenType::kUint8);
    std::vector<uint32_t> tokens;
    uint64_t state = name[0] == 't' ? 1 : 2;
    for (int i = 0; i < 40000; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      // Runs of letters: something to learn.
      tokens.push_back(static_cast<uint32_t>('a' + (i + (state >> 61)) % 26));
    }
    if (!writer.ok() || !(*writer)->Append(tokens).ok() || !(*writer)->Finish().ok()) abort();
  }
  v1::Gpt2Spec& model = *spec.mutable_model()->mutable_gpt2();
  model.set_layers(2);
  model.set_width(64);
  model.set_heads(2);
  model.set_context(64);
  model.set_vocabulary(256);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_precision(v1::PRECISION_FP32);
  spec.mutable_train()->mutable_batch()->set_global(8);
  spec.mutable_train()->mutable_batch()->set_micro(4);
  spec.mutable_train()->mutable_validation()->set_samples(16);
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_checkpoint()->set_every(10);
  spec.mutable_checkpoint()->set_keep_last(1000);
  spec.mutable_restart()->set_backoff_seconds(0.05);
  NormalizeJobSpec(&spec);
  return spec;
}

}  // namespace milepost::e2e
