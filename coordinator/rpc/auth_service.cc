#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "milepost/v1/auth.grpc.pb.h"

namespace milepost::coordinator {
namespace {

constexpr char kTokenList[] = "tokens";

class AuthServiceImpl : public v1::AuthService::Service {
 public:
  explicit AuthServiceImpl(Gate* gate) : gate_(gate) {}

  grpc::Status WhoAmI(grpc::ServerContext* context, const v1::WhoAmIRequest* request,
                      v1::Principal* response) override {
    return gate_->Serve(context, "AuthService/WhoAmI", *request, Subject::Nothing(),
                        [&](GateCall& call) {
                          *response = call.principal();
                          return absl::OkStatus();
                        });
  }

  grpc::Status CreateToken(grpc::ServerContext* context, const v1::CreateTokenRequest* request,
                           v1::CreateTokenResponse* response) override {
    return gate_->Serve(context, "AuthService/CreateToken", *request, Subject::Nothing(),
                        [&](GateCall& call) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(
                              *response,
                              gate_->tokens().Create(*request, call.principal(), absl::Now()));
                          call.About(response->token().name(), "");
                          return absl::OkStatus();
                        });
  }

  grpc::Status ListTokens(grpc::ServerContext* context, const v1::ListTokensRequest* request,
                          v1::ListTokensResponse* response) override {
    return gate_->Serve(context, "AuthService/ListTokens", *request, Subject::Nothing(),
                        [&](GateCall& call) { return List(*request, call, response); });
  }

  grpc::Status RevokeToken(grpc::ServerContext* context, const v1::RevokeTokenRequest* request,
                           v1::Token* response) override {
    return gate_->Serve(
        context, "AuthService/RevokeToken", *request, Subject::Nothing(),
        [&](GateCall& call) -> absl::Status {
          call.About(request->name(), "");
          MP_ASSIGN_OR_RETURN(
              *response, gate_->tokens().Revoke(request->name(), call.principal(), absl::Now()));
          return absl::OkStatus();
        });
  }

 private:
  absl::Status List(const v1::ListTokensRequest& request, const GateCall& call,
                    v1::ListTokensResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    MP_ASSIGN_OR_RETURN(const std::string after, NameOfToken(request.page_token(), kTokenList));
    std::vector<v1::Token> tokens = gate_->tokens().List(call.principal(), after, size + 1);
    if (FillPage(std::move(tokens), size, response->mutable_tokens())) {
      response->set_next_page_token(TokenOfName(response->tokens().rbegin()->name(), kTokenList));
    }
    return absl::OkStatus();
  }

  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAuthService(Gate* gate) {
  return std::make_unique<AuthServiceImpl>(gate);
}

}  // namespace milepost::coordinator
