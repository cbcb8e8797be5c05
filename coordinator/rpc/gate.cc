#include "coordinator/rpc/gate.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/error_details.h"
#include "common/pki/certificate.h"
#include "common/rpc/status.h"
#include "common/rpc/warning.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/utf8.h"
#include "coordinator/core/decide.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/metrics/activity.h"
#include "coordinator/security/join_table.h"
#include "coordinator/security/principal.h"
#include "coordinator/security/service_accounts.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::string_view kPackage = "/milepost.v1.";
constexpr char kNobody[] = "nobody";
constexpr size_t kMostWarning = 1024;  // bytes: headers have 8 KiB

absl::string_view ViewOf(grpc::string_ref text) { return {text.data(), text.size()}; }

template <typename Metadata>
absl::string_view Find(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? absl::string_view() : ViewOf(found->second);
}

std::string RequestIdOf(const google::protobuf::Message* request) {
  if (request == nullptr) return "";
  const auto* field = request->GetDescriptor()->FindFieldByName("request_id");
  if (field == nullptr) return "";
  return request->GetReflection()->GetString(*request, field);
}

absl::Status ForNobody(absl::string_view method) {
  return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, "",
                 absl::StrCat(method.substr(0, 200), " is for nobody"));
}

// Who shows a join token becomes a worker with it, and does nothing else.
absl::Status CheckJoiner(const v1::Principal& principal, const MethodRule* rule) {
  if (!HasRoleSomewhere(principal, v1::ROLE_JOINER)) return absl::OkStatus();
  if (rule != nullptr && rule->role == v1::ROLE_JOINER) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, principal.name(),
                 absl::StrCat(principal.name(), " lets hosts join, and is for nothing else"));
}

// Whose user a token says to be is up to who made it, an admin of every project that it grants
// something in. So a user is one of those projects: a name says nothing in others.
std::vector<std::string> ProjectsOf(const v1::Principal& principal) {
  std::set<std::string> projects;
  for (const v1::Grant& grant : principal.grants()) projects.insert("projects/" + grant.project());
  return {projects.begin(), projects.end()};
}

}  // namespace

// ---- one call ----

GateCall::GateCall(Gate* gate, const grpc::ServerContextBase* context, absl::string_view method,
                   const google::protobuf::Message* request)
    : gate_(gate),
      context_(context),
      peer_(context->peer()),
      method_(method),
      rule_(FindRule(absl::StrCat(kPackage, method))),
      request_id_(RequestIdOf(request)),
      began_(SteadyNow()) {
  principal_.set_name(kNobody);
}

GateCall::~GateCall() {
  if (limiter_ == nullptr) return;
  gate_->call_ends_.Then(context_,
                         [limiter = limiter_, caller = counted_] { limiter->End(caller); });
}

absl::Status GateCall::LetIn(const Subject& subject) {
  resource_ = subject.name;
  MP_RETURN_IF_ERROR(gate_->coordinator_->MayAct());
  if (rule_ == nullptr) {
    return ForNobody(method_);
  }
  MP_ASSIGN_OR_RETURN(principal_,
                      gate_->Identify(*context_->auth_context(),
                                      Find(context_->client_metadata(), "authorization")));
  MP_RETURN_IF_ERROR(CheckJoiner(principal_, rule_));
  // What ranks may call is checked against what runs on their host.
  const bool is_worker = HasRoleSomewhere(principal_, v1::ROLE_WORKER);
  const bool as_worker = rule_->also_worker && is_worker;
  const bool of_rank = as_worker || (subject.kind == Subject::kAttempt && is_worker);
  if (gate_->tls_) MP_RETURN_IF_ERROR(BeginCounting(of_rank));
  const bool somewhere =
      rule_->role == v1::ROLE_UNSPECIFIED || HasRoleSomewhere(principal_, rule_->role);
  if (!somewhere && !as_worker) return Refused("", rule_->role);
  if (rule_->scope == Scope::kCluster && !HasRole(principal_, kEveryProject, rule_->role)) {
    return Refused(kEveryProject, rule_->role);
  }
  return Check(subject);
}

// All tokens of a project's user count as one caller, but for those that only an admin of every
// project can have made.
absl::Status GateCall::BeginCounting(bool of_rank) {
  const bool of_cluster = HasRole(principal_, kEveryProject, v1::ROLE_VIEWER);
  const bool of_user = !principal_.user().empty() && !of_cluster;
  RateLimiter::Caller caller = {.name = principal_.name()};
  if (of_user) {
    caller.groups = ProjectsOf(principal_);
    caller.name = absl::StrCat(absl::StrJoin(caller.groups, "+"), "/users/", principal_.user());
  }
  caller.always = !of_rank && (HasRole(principal_, kEveryProject, v1::ROLE_ADMIN) ||
                               HasRoleSomewhere(principal_, v1::ROLE_WORKER));
  const bool waits =
      method_ == "RendezvousService/GetKey" || method_ == "CheckpointService/CommitCheckpoint";
  RateLimiter* const limiter = !of_rank ? &gate_->limiter_
                               : waits  ? &gate_->rank_wait_limiter_
                                        : &gate_->rank_limiter_;
  if (absl::Status status = limiter->Begin(caller, SteadyNow()); !status.ok()) {
    recorded_ = of_rank;  // they come back as often as they like: no line each in the audit log
    return status;
  }
  counted_ = std::move(caller);
  limiter_ = limiter;
  return absl::OkStatus();
}

absl::Status GateCall::Check(const Subject& subject, v1::Role role) {
  if (role == v1::ROLE_UNSPECIFIED) role = rule_->role;
  switch (subject.kind) {
    case Subject::kNothing:
      return absl::OkStatus();
    case Subject::kJob:
      return CheckJob(subject, role);
    case Subject::kCheckpoint:
      return CheckCheckpoint(subject.name, role);
    case Subject::kProject:
      project_ = subject.name;
      if (HasRole(principal_, subject.name, role)) return absl::OkStatus();
      return Refused(subject.name, role);
    case Subject::kAttempt:
      return CheckAttempt(subject.name, subject.generation);
  }
  return absl::InternalError("a call about nothing known");
}

absl::Status GateCall::CheckJob(const Subject& subject, v1::Role role) {
  const std::string& job = subject.name;
  if (rule_->also_worker && HasRoleSomewhere(principal_, v1::ROLE_WORKER)) {
    return CheckAttempt(job, subject.generation);
  }
  MP_ASSIGN_OR_RETURN(project_, gate_->coordinator_->jobs().ProjectOf(job));
  if (HasRole(principal_, project_, role)) return absl::OkStatus();
  if (Sees(project_)) return Refused(project_, role);
  return Hidden(NoSuchJob(job));
}

absl::Status GateCall::CheckCheckpoint(const std::string& name, v1::Role role) {
  const auto owner = gate_->coordinator_->store().checkpoints().Owner(name);
  if (!owner.ok()) return NoSuchCheckpoint(name);
  // The job of a checkpoint may be unknown: then it belongs to no project.
  project_ = gate_->coordinator_->jobs().ProjectOf(owner->job()).value_or(kEveryProject);
  if (HasRole(principal_, project_, role)) return absl::OkStatus();
  const bool as_worker = rule_->also_worker && HasRoleSomewhere(principal_, v1::ROLE_WORKER);
  if (as_worker &&
      gate_->coordinator_->attempts().NeedsCheckpoint(principal_.name(), name, owner->job())) {
    return absl::OkStatus();
  }
  if (Sees(project_)) return Refused(project_, role);
  return Hidden(NoSuchCheckpoint(name));
}

absl::Status GateCall::CheckAttempt(const std::string& job, int64_t generation) const {
  // Somebody on loopback may be any worker.
  if (!gate_->tls_) return absl::OkStatus();
  return gate_->coordinator_->attempts().CheckRuns(principal_.name(), job, generation);
}

absl::Status GateCall::Refused(const std::string& project, v1::Role role) const {
  const std::string where = project.empty()            ? ""
                            : project == kEveryProject ? " for every project"
                                                       : absl::StrCat(" for project ", project);
  return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, project,
                 absl::StrCat(method_, " needs the role ", RoleName(role), where, ", which ",
                              principal_.name(), " has not",
                              project == kDefaultProject ? ": --project names another one" : ""));
}

absl::Status GateCall::Hidden(absl::Status as_if_missing) {
  hidden_ = true;
  return as_if_missing;
}

bool GateCall::Sees(const std::string& project) const {
  return HasRole(principal_, project, v1::ROLE_VIEWER);
}

absl::Status GateCall::StillHolds() const {
  MP_RETURN_IF_ERROR(gate_->coordinator_->MayAct());
  absl::string_view name = principal_.name();
  if (absl::ConsumePrefix(&name, "workers/")) return gate_->CheckNotDenied(name);
  if (absl::StartsWith(name, "joinTokens/")) {
    return gate_->joins_->CheckHolds(principal_.name(), absl::Now());
  }
  if (!absl::StartsWith(name, "tokens/")) return absl::OkStatus();
  return gate_->tokens_->CheckHolds(principal_.name(), absl::Now());
}

void GateCall::EndWithAttempt(const std::string& job, int64_t generation) {
  gate_->watch_.End(watched_);
  gate_->Watch(this, [coordinator = gate_->coordinator_, job, generation] {
    return coordinator->attempts().CheckGeneration(job, generation).ok();
  });
}

void GateCall::EndAt(absl::Time deadline) {
  gate_->watch_.End(watched_);
  gate_->Watch(this, [deadline] { return SteadyNow() < deadline; });
}

void GateCall::WriteBegins() const { gate_->watch_.Writing(watched_, SteadyNow()); }

void GateCall::WriteEnds() const { gate_->watch_.Written(watched_); }

void GateCall::About(const std::string& resource, const std::string& project) {
  resource_ = resource;
  project_ = project;
}

bool GateCall::IsRecorded(absl::StatusCode code) const {
  const bool refused = code == absl::StatusCode::kPermissionDenied ||
                       code == absl::StatusCode::kUnauthenticated ||
                       (code == absl::StatusCode::kResourceExhausted && counted_.name.empty());
  return refused || (rule_ != nullptr && rule_->audit == Audit::kAlways);
}

void GateCall::Record(const absl::Status& status) {
  if (!std::exchange(told_, true)) {
    gate_->coordinator_->activity().Called(method_, status.code(), SteadyNow() - began_);
  }
  if (gate_->audit_ == nullptr || std::exchange(recorded_, true)) return;
  const absl::StatusCode code = hidden_ ? absl::StatusCode::kPermissionDenied : status.code();
  if (!IsRecorded(code)) return;
  gate_->audit_->Write({.time = absl::Now(),
                        .principal = principal_.name(),
                        .user = principal_.user(),
                        .method = method_,
                        .resource = resource_,
                        .project = project_,
                        .code = code,
                        .peer = peer_,
                        .request_id = request_id_});
}

// ---- the gate ----

grpc::Status Gate::Serve(grpc::ServerContextBase* context, absl::string_view method,
                         const google::protobuf::Message& request, const Subject& subject,
                         const std::function<absl::Status(GateCall&)>& body) {
  GateCall call(this, context, method, &request);
  absl::Status status = call.LetIn(subject);
  if (status.ok()) {
    Watch(&call, [] { return true; });
    status = body(call);
    watch_.End(call.watched_);
    const std::string damage = coordinator_->store().DescribeDamage();
    if (!damage.empty()) context->AddTrailingMetadata(kWarningKey, CutUtf8(damage, kMostWarning));
  }
  // Whatever the answer is, it is not this coordinator's to give any more.
  if (const absl::Status may = coordinator_->MayAct(); !may.ok()) status = may;
  call.Record(status);
  return ToGrpcStatus(status);
}

// Not for a coordinator that may not act: its calls end by themselves, and are tried elsewhere.
void Gate::Watch(GateCall* call, std::function<bool()> goes_on) {
  const auto holds = [this, call, goes_on = std::move(goes_on)] {
    return !coordinator_->MayAct().ok() || (call->StillHolds().ok() && goes_on());
  };
  const auto cancel = [context = call->context_] { context->TryCancel(); };
  call->watched_ = watch_.Begin({.holds = holds, .cancel = cancel});
}

absl::StatusOr<v1::Principal> Gate::Identify(const grpc::AuthContext& connection,
                                             absl::string_view authorization) const {
  if (!tls_) return LocalPrincipal();
  if (!authorization.empty()) {
    if (!absl::ConsumePrefix(&authorization, "Bearer ")) {
      return Refusal(v1::ERROR_REASON_CREDENTIALS_MISSING, "",
                     "authorization: only `Bearer TOKEN` is known");
    }
    if (joins_ != nullptr && JoinTable::IsJoinToken(authorization)) {
      return joins_->Authenticate(authorization, absl::Now());
    }
    if (joins_ != nullptr && accounts_ != nullptr && IsAccountToken(authorization)) {
      MP_ASSIGN_OR_RETURN(const ServiceAccount account,
                          accounts_->Identify(authorization, absl::Now()));
      return joins_->AuthenticateAccount(account, absl::Now());
    }
    return tokens_->Authenticate(authorization, absl::Now());
  }
  std::string id, pool;
  for (const grpc::string_ref& uri : connection.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    if (id.empty()) id = WorkerIdOfUri(ViewOf(uri));
    if (pool.empty()) pool = PoolOfUri(ViewOf(uri));
  }
  if (!id.empty()) {
    MP_RETURN_IF_ERROR(CheckNotDenied(id));
    return WorkerPrincipal(WorkerName(id), pool);
  }
  return Refusal(
      v1::ERROR_REASON_CREDENTIALS_MISSING, "",
      "neither a token nor a worker's certificate: `milepost auth login`, or set MILEPOST_TOKEN");
}

absl::Status Gate::CheckScrape(absl::string_view authorization) const {
  if (!tls_) return absl::OkStatus();
  v1::Principal principal;
  principal.set_name(kNobody);
  absl::Status status = Refusal(v1::ERROR_REASON_CREDENTIALS_MISSING, "",
                                "metrics are for a token: authorization: Bearer TOKEN");
  if (absl::ConsumePrefix(&authorization, "Bearer ")) {
    const auto known = tokens_->Authenticate(authorization, absl::Now());
    status = known.status();
    if (known.ok()) principal = *known;
  }
  if (status.ok() && !HasRole(principal, kEveryProject, v1::ROLE_VIEWER)) {
    status = Refusal(v1::ERROR_REASON_PERMISSION_DENIED, kEveryProject,
                     "metrics are for viewers of every project");
  }
  if (status.ok() || audit_ == nullptr) return status;
  audit_->Write({.time = absl::Now(),
                 .principal = principal.name(),
                 .user = principal.user(),
                 .method = "GET /metrics",
                 .code = status.code(),
                 .peer = std::string()});
  return status;
}

absl::Status Gate::CheckNotDenied(absl::string_view worker_id) const {
  if (!denied_.Has(worker_id, absl::Now())) return absl::OkStatus();
  return Refusal(
      v1::ERROR_REASON_WORKER_DENIED, WorkerName(worker_id),
      absl::StrCat("worker ", worker_id, " is shut out by the coordinator's ", kDeniedWorkersFile));
}

class Gate::MetadataProcessor : public grpc::AuthMetadataProcessor {
 public:
  explicit MetadataProcessor(const Gate* gate) : gate_(gate) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata*, OutputMetadata*) override {
    return gate_->CheckMetadata(Find(metadata, ":path"), Find(metadata, "authorization"),
                                *connection);
  }

 private:
  const Gate* const gate_;
};

std::shared_ptr<grpc::AuthMetadataProcessor> Gate::Processor() {
  return std::make_shared<MetadataProcessor>(this);
}

grpc::Status Gate::CheckMetadata(absl::string_view path, absl::string_view authorization,
                                 const grpc::AuthContext& connection) const {
  if (absl::StartsWith(path, "/grpc.health.v1.Health/")) return grpc::Status::OK;
  // One that another has taken over from knows nothing of that one's tokens.
  if (const absl::Status may = coordinator_->MayAct(); !may.ok()) {
    return ToGrpcStatusWithoutDetails(may);
  }
  const absl::StatusOr<v1::Principal> principal = Identify(connection, authorization);
  absl::Status status = principal.status();
  const bool reflection = absl::StartsWith(path, "/grpc.reflection.");
  if (status.ok() && FindRule(path) == nullptr && !reflection) {
    status = ForNobody(path);
  }
  if (status.ok()) status = CheckJoiner(*principal, FindRule(path));
  // Its streams are not counted as the services' are.
  if (status.ok() && reflection && tls_ && !HasRole(*principal, kEveryProject, v1::ROLE_ADMIN)) {
    status = Refusal(v1::ERROR_REASON_PERMISSION_DENIED, kEveryProject,
                     "reflection is for admins of every project");
  }
  if (status.ok() || audit_ == nullptr) return ToGrpcStatusWithoutDetails(status);
  audit_->Write({.time = absl::Now(),
                 .principal = principal.ok() ? principal->name() : kNobody,
                 .user = principal.ok() ? principal->user() : "",
                 .method = std::string(absl::StripPrefix(path, kPackage)),
                 .code = status.code(),
                 // What is known of the peer here is its certificate.
                 .peer = std::string()});
  return ToGrpcStatusWithoutDetails(status);
}

}  // namespace milepost::coordinator
