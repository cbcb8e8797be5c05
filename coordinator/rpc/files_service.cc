#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/files_store.h"
#include "milepost/v1/files.grpc.pb.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostPieceBytes = size_t{1} << 20;
// Somebody who sends slowly does not hold a thread and room on the disk for ever.
constexpr absl::Duration kLongestUpload = absl::Minutes(15);

std::string ProjectGiven(const std::string& project) {
  return project.empty() ? kDefaultProject : project;
}

class FilesServiceImpl : public v1::FilesService::Service {
 public:
  FilesServiceImpl(Coordinator* coordinator, Gate* gate) : coordinator_(coordinator), gate_(gate) {}

  grpc::Status HasFiles(grpc::ServerContext* context, const v1::HasFilesRequest* request,
                        v1::HasFilesResponse* response) override {
    return gate_->Serve(context, "FilesService/HasFiles", *request,
                        Subject::Project(ProjectGiven(request->project())),
                        [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(const bool stored, files().Has(request->sha256()));
                          response->set_stored(stored);
                          return absl::OkStatus();
                        });
  }
  grpc::Status UploadFiles(grpc::ServerContext* context,
                           grpc::ServerReader<v1::UploadFilesRequest>* reader,
                           v1::UploadFilesResponse* response) override {
    return gate_->Serve(context, "FilesService/UploadFiles", *response, Subject::Nothing(),
                        [&](GateCall& call) { return Upload(call, reader); });
  }
  grpc::Status ReadFiles(grpc::ServerContext* context, const v1::ReadFilesRequest* request,
                         grpc::ServerWriter<v1::FilesPart>* writer) override {
    return gate_->Serve(context, "FilesService/ReadFiles", *request,
                        Subject::JobOrAttempt(request->job(), request->generation()),
                        [&](GateCall& call) { return Read(*request, call, writer); });
  }

 private:
  FilesDesk& files() { return coordinator_->files(); }

  absl::Status Upload(GateCall& call, grpc::ServerReader<v1::UploadFilesRequest>* reader) {
    v1::UploadFilesRequest message;
    call.EndAt(SteadyNow() + kLongestUpload);
    if (!reader->Read(&message)) {
      return absl::InvalidArgumentError("the stream ended before its first message");
    }
    const std::string project = ProjectGiven(message.project());
    call.About(absl::StrCat("files/", message.sha256().substr(0, 64)), project);
    MP_RETURN_IF_ERROR(call.Check(Subject::Project(project)));
    MP_ASSIGN_OR_RETURN(const std::unique_ptr<FilesUpload> upload,
                        files().Begin(message.sha256(), message.bytes()));
    do {
      MP_RETURN_IF_ERROR(call.StillHolds());
      if (message.data().size() > kMostPieceBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("data: at most ", kMostPieceBytes, " bytes in a message"));
      }
      MP_RETURN_IF_ERROR(upload->Append(message.data()));
    } while (reader->Read(&message));
    MP_RETURN_IF_ERROR(upload->Finish(files().Now()));
    return coordinator_->MayAct();
  }

  absl::Status Read(const v1::ReadFilesRequest& request, const GateCall& call,
                    grpc::ServerWriter<v1::FilesPart>* writer) {
    if (request.generation() != 0) {
      MP_RETURN_IF_ERROR(
          coordinator_->attempts().CheckGeneration(request.job(), request.generation()));
    }
    MP_ASSIGN_OR_RETURN(const std::unique_ptr<FilesReader> reader, files().Read(request.job()));
    v1::FilesPart part;
    while (true) {
      MP_ASSIGN_OR_RETURN(*part.mutable_data(), reader->Next());
      if (part.data().empty()) return absl::OkStatus();
      MP_RETURN_IF_ERROR(call.StillHolds());
      if (!call.Send(writer, part)) return absl::CancelledError("the client has gone");
    }
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeFilesService(Coordinator* coordinator, Gate* gate) {
  return std::make_unique<FilesServiceImpl>(coordinator, gate);
}

}  // namespace milepost::coordinator
