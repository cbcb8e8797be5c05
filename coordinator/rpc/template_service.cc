#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "coordinator/rpc/template_table.h"
#include "coordinator/security/principal.h"
#include "milepost/v1/template.grpc.pb.h"

namespace milepost::coordinator {
namespace {

class TemplateServiceImpl : public v1::TemplateService::Service {
 public:
  TemplateServiceImpl(TemplateTable* templates, Gate* gate) : templates_(templates), gate_(gate) {}

  grpc::Status GetTemplate(grpc::ServerContext* context, const v1::GetTemplateRequest* request,
                           v1::Template* response) override {
    return Serve(context, "TemplateService/GetTemplate", *request, request->name(),
                 [&]() -> absl::Status {
                   MP_ASSIGN_OR_RETURN(*response, templates_->Get(request->name()));
                   return absl::OkStatus();
                 });
  }
  grpc::Status ListTemplates(grpc::ServerContext* context, const v1::ListTemplatesRequest* request,
                             v1::ListTemplatesResponse* response) override {
    return gate_->Serve(context, "TemplateService/ListTemplates", *request, Subject::Nothing(),
                        [&](GateCall& call) { return List(*request, call, response); });
  }
  grpc::Status CreateTemplate(grpc::ServerContext* context,
                              const v1::CreateTemplateRequest* request,
                              v1::Template* response) override {
    const std::string project = request->project().empty() ? kDefaultProject : request->project();
    v1::Template wanted = request->template_();
    wanted.set_name(TemplateName(project, request->template_id()));
    return Serve(
        context, "TemplateService/CreateTemplate", *request, wanted.name(), [&]() -> absl::Status {
          MP_ASSIGN_OR_RETURN(
              *response,
              templates_->Put(wanted, {.create = true, .validate_only = request->validate_only()},
                              absl::Now()));
          return absl::OkStatus();
        });
  }
  grpc::Status UpdateTemplate(grpc::ServerContext* context,
                              const v1::UpdateTemplateRequest* request,
                              v1::Template* response) override {
    return Serve(context, "TemplateService/UpdateTemplate", *request, request->template_().name(),
                 [&]() -> absl::Status {
                   MP_RETURN_IF_ERROR(CheckMask(request->update_mask()));
                   MP_ASSIGN_OR_RETURN(*response,
                                       templates_->Put(request->template_(),
                                                       {.allow_missing = request->allow_missing(),
                                                        .validate_only = request->validate_only()},
                                                       absl::Now()));
                   return absl::OkStatus();
                 });
  }
  grpc::Status DeleteTemplate(grpc::ServerContext* context,
                              const v1::DeleteTemplateRequest* request,
                              v1::DeleteTemplateResponse*) override {
    return Serve(context, "TemplateService/DeleteTemplate", *request, request->name(),
                 [&] { return templates_->Delete(request->name(), request->etag()); });
  }

 private:
  grpc::Status Serve(grpc::ServerContext* context, absl::string_view method,
                     const google::protobuf::Message& request, const std::string& name,
                     const std::function<absl::Status()>& action) {
    const std::string project = ProjectOfTemplate(name);
    return gate_->Serve(context, method, request, Subject::Project(project), [&](GateCall& call) {
      call.About(name, project);
      return action();
    });
  }

  absl::Status List(const v1::ListTemplatesRequest& request, const GateCall& call,
                    v1::ListTemplatesResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    const std::string list = absl::StrCat("templates of ", request.project());
    MP_ASSIGN_OR_RETURN(const std::string after, NameOfToken(request.page_token(), list));
    std::vector<v1::Template> templates =
        templates_->List(after, size + 1, [&](const std::string& project) {
          return (request.project().empty() || project == request.project()) && call.Sees(project);
        });
    if (FillPage(std::move(templates), size, response->mutable_templates())) {
      response->set_next_page_token(TokenOfName(response->templates().rbegin()->name(), list));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckMask(const google::protobuf::FieldMask& mask) {
    for (const std::string& path : mask.paths()) {
      if (path == "spec_yaml") continue;
      return absl::InvalidArgumentError(absl::StrCat("update_mask: '", path.substr(0, 100),
                                                     "' cannot be changed; what can is spec_yaml"));
    }
    return absl::OkStatus();
  }

  TemplateTable* const templates_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTemplateService(TemplateTable* templates, Gate* gate) {
  return std::make_unique<TemplateServiceImpl>(templates, gate);
}

}  // namespace milepost::coordinator
