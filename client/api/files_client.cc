#include "client/api/files_client.h"

#include <unistd.h>

#include <cerrno>

#include "client/api/call.h"
#include "milepost/v1/files.grpc.pb.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kUploadTime = absl::Minutes(15);  // as long as the coordinator waits
constexpr size_t kPartBytes = size_t{512} << 10;

// Sends all of it, or as much as the coordinator takes.
absl::Status SendParts(const std::string& project, const v1::SentFiles& sent, int archive,
                       grpc::ClientWriter<v1::UploadFilesRequest>* writer) {
  v1::UploadFilesRequest part;
  part.set_project(project);
  part.set_sha256(sent.sha256());
  part.set_bytes(sent.bytes());
  std::string piece(kPartBytes, '\0');
  for (off_t offset = 0;;) {
    const ssize_t got = pread(archive, piece.data(), piece.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "the packed files");
    if (got == 0) return absl::OkStatus();
    part.set_data(piece.data(), static_cast<size_t>(got));
    if (!writer->Write(part)) return absl::OkStatus();  // Finish says why
    part.clear_project();
    part.clear_sha256();
    part.clear_bytes();
    offset += got;
  }
}

}  // namespace

absl::StatusOr<bool> FilesClient::Has(const std::string& project, const std::string& sha256) {
  v1::HasFilesRequest request;
  request.set_project(project);
  request.set_sha256(sha256);
  const auto answer = Call<v1::FilesService, v1::HasFilesRequest, v1::HasFilesResponse>(
      connection_->core(), &v1::FilesService::Stub::HasFiles, request,
      connection_->core().options.call);
  if (!answer.ok()) return answer.status();
  return answer->stored();
}

absl::Status FilesClient::Upload(const std::string& project, const v1::SentFiles& sent,
                                 int archive) {
  Connection::Core& core = connection_->core();
  Backoff backoff(&core, kUploadTime);
  while (true) {
    CallContext context(&core);
    context.get()->set_deadline(absl::ToChronoTime(backoff.deadline()));
    const std::shared_ptr<grpc::Channel> channel = core.coordinators->Get();
    const auto stub = v1::FilesService::NewStub(channel);
    v1::UploadFilesResponse response;
    const auto writer = stub->UploadFiles(context.get(), &response);
    const absl::Status read = SendParts(project, sent, archive, writer.get());
    if (read.ok()) {
      writer->WritesDone();
    } else {
      context.get()->TryCancel();
    }
    const grpc::Status status = writer->Finish();
    if (!read.ok()) return read;
    HearWarning(core, *context.get());
    if (status.ok()) return absl::OkStatus();
    if (!backoff.Retry(status, channel)) return Explained(core, status);
  }
}

}  // namespace milepost::client
