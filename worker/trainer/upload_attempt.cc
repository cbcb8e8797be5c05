#include "worker/trainer/upload_attempt.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "common/checksum.h"
#include "common/clock.h"
#include "common/error_details.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "worker/trainer/chunk_stream.h"

namespace milepost::worker {

namespace {

constexpr int64_t kBytesForTwoStreams = 32 << 20;  // of one rank
constexpr absl::Duration kUnaryTime = absl::Seconds(20);
constexpr absl::Duration kStreamTime = absl::Seconds(60);
constexpr double kSlowestBytesPerSecond = 4 << 20;
// How long Commit is asked again while other ranks still write.
constexpr absl::Duration kCommitTime = absl::Minutes(15);
constexpr absl::Duration kCommitPause = absl::Milliseconds(20);

UploadEnd EndOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      // Else too many call at once.
      return ReasonOf(status) == v1::ERROR_REASON_DISK_FULL ? UploadEnd::kFullDisk
                                                            : UploadEnd::kRetry;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
      return UploadEnd::kFailed;
    default:
      return UploadEnd::kRetry;
  }
}

}  // namespace

int StreamsPerRank(int64_t checkpoint_bytes, int world) {
  return checkpoint_bytes / world > kBytesForTwoStreams ? 2 : 1;
}

// A call's context, cancelled by Uploader::Cancel.
class Uploader::Call {
 public:
  Call(Uploader* uploader, absl::Duration time) : uploader_(uploader) {
    context_.set_deadline(absl::ToChronoTime(Clock::Real()->Now() + time));
    absl::MutexLock lock(&uploader_->mutex_);
    uploader_->calls_.push_back(&context_);
    if (uploader_->cancelled_) context_.TryCancel();
  }
  ~Call() {
    absl::MutexLock lock(&uploader_->mutex_);
    auto& calls = uploader_->calls_;
    calls.erase(std::find(calls.begin(), calls.end(), &context_));
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  Uploader* const uploader_;
  grpc::ClientContext context_;
};

Uploader::Uploader(const Endpoint& coordinator, int streams_of_rank)
    : coordinators_(coordinator, Way::kShortest) {
  channels_.resize(static_cast<size_t>(streams_of_rank));
  Connect();
}

Uploader::~Uploader() = default;

void Uploader::Connect() {
  address_ = coordinators_.Current().address;
  const Endpoint target = coordinators_.Target();
  target_ = target.address;
  for (auto& channel : channels_) channel = coordinators_.Connect(target);
  stub_ = v1::CheckpointService::NewStub(channels_[0]);
}

bool Uploader::Connected() {
  return coordinators_.several() || channels_[0]->GetState(true) == GRPC_CHANNEL_READY;
}

bool Uploader::AwaitConnection(absl::Time deadline) {
  return channels_[0]->WaitForConnected(absl::ToChronoTime(deadline));
}

void Uploader::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

UploadResult Uploader::Run(const Upload& upload) {
  if (coordinators_.Target().address != target_) Connect();  // another way has opened, or closed
  const UploadResult result = RunOnce(upload);
  const bool away = absl::IsUnavailable(result.status) || absl::IsDeadlineExceeded(result.status);
  if (result.end == UploadEnd::kRetry && away && coordinators_.several()) {
    coordinators_.Failed(address_);
    Connect();
  }
  return result;
}

UploadResult Uploader::RunOnce(const Upload& upload) {
  absl::StatusOr<std::string> name = Begin(upload);
  if (name.ok()) return RunBegun(upload, *name);
  switch (name.status().code()) {
    case absl::StatusCode::kAlreadyExists: {
      const std::string message(name.status().message());  // starts with its name
      return {UploadEnd::kCommitted, absl::OkStatus(), message.substr(0, message.find(' '))};
    }
    case absl::StatusCode::kAborted:
      return {UploadEnd::kFenced, name.status(), ""};
    case absl::StatusCode::kFailedPrecondition:
      return {UploadEnd::kSuperseded, name.status(), ""};
    default:
      return {EndOf(name.status()), name.status(), ""};
  }
}

UploadResult Uploader::RunBegun(const Upload& upload, const std::string& name) {
  absl::Status status = WriteStreams(upload, name);
  if (status.ok()) status = Commit(upload, name);
  // Committed already: an answer that was lost. Fenced and superseded: Begin will say.
  if (status.ok() || absl::IsAlreadyExists(status)) {
    return {UploadEnd::kCommitted, absl::OkStatus(), name};
  }
  return {EndOf(status), status, name};
}

absl::StatusOr<std::string> Uploader::Begin(const Upload& upload) {
  Call call(this, kUnaryTime);
  v1::BeginCheckpointResponse response;
  MP_RETURN_IF_ERROR(
      FromGrpcStatus(stub_->BeginCheckpoint(call.context(), upload.begin, &response)));
  return response.checkpoint();
}

absl::Status Uploader::WriteStreams(const Upload& upload, const std::string& name) {
  const size_t count = static_cast<size_t>(upload.streams_of_rank);
  std::vector<absl::Status> results(count);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i) {
    threads.emplace_back([&, i] { results[i] = WriteStream(upload, name, static_cast<int>(i)); });
  }
  results[0] = WriteStream(upload, name, 0);
  for (std::thread& thread : threads) thread.join();
  absl::Status status;
  for (const absl::Status& result : results) status.Update(result);
  // A connection that is stuck keeps what it was given, and with it the memory.
  if (!status.ok()) Connect();
  loans_.AwaitReturned();
  return status;
}

absl::Status Uploader::WriteStream(const Upload& upload, const std::string& name, int stream) {
  const size_t first = upload.chunks.size() * stream / upload.streams_of_rank;
  const size_t last = upload.chunks.size() * (stream + 1) / upload.streams_of_rank;
  int64_t bytes = 0;
  for (size_t i = first; i < last; ++i) bytes += upload.layout->BytesOf(upload.chunks[i].interval);
  Call call(this, kStreamTime + absl::Seconds(bytes / kSlowestBytesPerSecond));
  v1::WriteChunksResponse response;
  ChunkStream writer(channels_[static_cast<size_t>(stream)], call.context());
  v1::WriteChunksRequest message;
  message.set_checkpoint(name);
  message.set_stream(upload.rank * upload.streams_of_rank + stream);
  message.set_generation(upload.begin.generation());
  bool damaged = false;
  if (first == last) writer.Write(EncodeMessage(message));  // an empty stream still says its name
  for (size_t i = first; i < last; ++i) {
    const state::TensorSlice& slice = upload.chunks[i];
    const size_t size = static_cast<size_t>(upload.layout->BytesOf(slice.interval));
    v1::Chunk& chunk = *message.mutable_chunk();
    chunk.set_tensor(slice.interval.tensor);
    chunk.set_begin(slice.interval.begin);
    chunk.set_end(slice.interval.end);
    chunk.set_xxh3(Xxh3(slice.data, size));
    if (!upload.checksums.empty() && chunk.xxh3() != upload.checksums[i]) {
      damaged = true;  // sent again, it would be no better
      break;
    }
    if (!writer.Write(EncodeChunkMessage(message, loans_.Lend(slice.data, size)))) break;
    message.clear_checkpoint();
  }
  const absl::Status status = writer.Finish();
  if (!damaged) return status;
  return absl::InvalidArgumentError(
      "the checkpoint's copy on disk is not what was written there: look at the disk");
}

absl::Status Uploader::Commit(const Upload& upload, const std::string& name) {
  v1::CommitCheckpointRequest request;
  request.set_checkpoint(name);
  request.set_job(upload.begin.job());
  request.set_generation(upload.begin.generation());
  const absl::Time deadline = Clock::Real()->Now() + kCommitTime;
  while (true) {
    v1::Checkpoint checkpoint;
    absl::Status status;
    {
      Call call(this, kUnaryTime);
      status = FromGrpcStatus(stub_->CommitCheckpoint(call.context(), request, &checkpoint));
    }
    // Other ranks still write.
    const bool waits = absl::IsFailedPrecondition(status) || absl::IsDeadlineExceeded(status);
    if (!waits || Clock::Real()->Now() >= deadline) return status;
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), kCommitPause)) return status;
  }
}

}  // namespace milepost::worker
