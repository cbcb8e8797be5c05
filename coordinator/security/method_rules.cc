#include "coordinator/security/method_rules.h"

#include "absl/container/flat_hash_map.h"

namespace milepost::coordinator {
namespace {

using v1::ROLE_ADMIN;
using v1::ROLE_JOINER;
using v1::ROLE_SUBMITTER;
using v1::ROLE_UNSPECIFIED;
using v1::ROLE_VIEWER;
using v1::ROLE_WORKER;

constexpr MethodRule kRules[] = {
    {"/milepost.v1.JobService/SubmitJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/GetJob", ROLE_VIEWER, Scope::kProject, Audit::kRefusals},
    {"/milepost.v1.JobService/ListJobs", ROLE_VIEWER, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.JobService/WatchJob", ROLE_VIEWER, Scope::kProject, Audit::kRefusals},
    {"/milepost.v1.JobService/CancelJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/ResumeJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/SuspendJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/UpdateJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/ForkJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/SubmitJobArray", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/CancelJobArray", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.JobService/GetJobCurves", ROLE_VIEWER, Scope::kProject, Audit::kRefusals},
    {"/milepost.v1.JobService/StreamLogs", ROLE_VIEWER, Scope::kProject, Audit::kRefusals},
    {"/milepost.v1.JobService/DeleteJob", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},

    {"/milepost.v1.QueueService/GetQueue", ROLE_VIEWER, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.QueueService/ListQueues", ROLE_VIEWER, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.QueueService/CreateQueue", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.QueueService/UpdateQueue", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.QueueService/DeleteQueue", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},

    {"/milepost.v1.TemplateService/GetTemplate", ROLE_VIEWER, Scope::kProject, Audit::kRefusals},
    {"/milepost.v1.TemplateService/ListTemplates", ROLE_VIEWER, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.TemplateService/CreateTemplate", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},
    {"/milepost.v1.TemplateService/UpdateTemplate", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},
    {"/milepost.v1.TemplateService/DeleteTemplate", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},

    {"/milepost.v1.WorkerService/Session", ROLE_WORKER, Scope::kAttempt, Audit::kAlways},
    {"/milepost.v1.WorkerService/GetWorker", ROLE_VIEWER, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.WorkerService/ListWorkers", ROLE_VIEWER, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.WorkerService/DrainWorker", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.WorkerService/ResumeWorker", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.WorkerService/DeleteWorker", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},

    {"/milepost.v1.RendezvousService/PutKey", ROLE_WORKER, Scope::kAttempt, Audit::kRefusals},
    {"/milepost.v1.RendezvousService/GetKey", ROLE_WORKER, Scope::kAttempt, Audit::kRefusals},
    {"/milepost.v1.RendezvousService/PutChoices", ROLE_WORKER, Scope::kAttempt, Audit::kRefusals},
    {"/milepost.v1.RendezvousService/GetChoices", ROLE_WORKER, Scope::kAttempt, Audit::kRefusals},

    {"/milepost.v1.CheckpointService/BeginCheckpoint", ROLE_WORKER, Scope::kAttempt,
     Audit::kRefusals},
    {"/milepost.v1.CheckpointService/WriteChunks", ROLE_WORKER, Scope::kAttempt, Audit::kRefusals},
    {"/milepost.v1.CheckpointService/CommitCheckpoint", ROLE_WORKER, Scope::kAttempt,
     Audit::kRefusals},
    {"/milepost.v1.CheckpointService/AbortCheckpoint", ROLE_WORKER, Scope::kAttempt,
     Audit::kAlways},
    {"/milepost.v1.CheckpointService/GetCheckpoint", ROLE_VIEWER, Scope::kProject, Audit::kRefusals,
     /*also_worker=*/true},
    {"/milepost.v1.CheckpointService/ListCheckpoints", ROLE_VIEWER, Scope::kVisible,
     Audit::kRefusals},
    {"/milepost.v1.CheckpointService/ReadChunks", ROLE_VIEWER, Scope::kProject, Audit::kRefusals,
     /*also_worker=*/true},
    {"/milepost.v1.CheckpointService/VerifyCheckpoint", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},
    {"/milepost.v1.CheckpointService/PinCheckpoint", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},
    {"/milepost.v1.CheckpointService/DeleteCheckpoint", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},
    {"/milepost.v1.CheckpointService/RestoreCheckpoint", ROLE_SUBMITTER, Scope::kProject,
     Audit::kAlways},

    {"/milepost.v1.FilesService/HasFiles", ROLE_SUBMITTER, Scope::kProject, Audit::kRefusals},
    {"/milepost.v1.FilesService/UploadFiles", ROLE_SUBMITTER, Scope::kProject, Audit::kAlways},
    {"/milepost.v1.FilesService/ReadFiles", ROLE_VIEWER, Scope::kProject, Audit::kRefusals,
     /*also_worker=*/true},

    {"/milepost.v1.AuthService/WhoAmI", ROLE_UNSPECIFIED, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.AuthService/CreateToken", ROLE_ADMIN, Scope::kVisible, Audit::kAlways},
    {"/milepost.v1.AuthService/ListTokens", ROLE_UNSPECIFIED, Scope::kVisible, Audit::kRefusals},
    {"/milepost.v1.AuthService/RevokeToken", ROLE_UNSPECIFIED, Scope::kVisible, Audit::kAlways},

    {"/milepost.v1.JoinService/CreateJoinToken", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.JoinService/ListJoinTokens", ROLE_ADMIN, Scope::kCluster, Audit::kRefusals},
    {"/milepost.v1.JoinService/RevokeJoinToken", ROLE_ADMIN, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.JoinService/JoinWorker", ROLE_JOINER, Scope::kCluster, Audit::kAlways},
    {"/milepost.v1.JoinService/RenewWorkerCertificate", ROLE_WORKER, Scope::kCluster,
     Audit::kAlways},
};

}  // namespace

absl::Span<const MethodRule> AllRules() { return kRules; }

const MethodRule* FindRule(absl::string_view method) {
  static const auto* const kByName = [] {
    auto* map = new absl::flat_hash_map<absl::string_view, const MethodRule*>;
    for (const MethodRule& rule : kRules) (*map)[rule.method] = &rule;
    return map;
  }();
  const auto found = kByName->find(method);
  return found == kByName->end() ? nullptr : found->second;
}

}  // namespace milepost::coordinator
