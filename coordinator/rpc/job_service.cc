#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/core/job_filter.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/store.h"
#include "milepost/v1/job.grpc.pb.h"

namespace milepost::coordinator {

namespace {

// Also how soon a call notices that its client has gone.
constexpr absl::Duration kPoll = absl::Milliseconds(250);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr int kLogPage = 256;

bool Wanted(const v1::LogLine& line, const v1::StreamLogsRequest& request) {
  if (request.has_rank() && line.rank() != request.rank()) return false;
  return !request.has_since() || FromProto(line.time()) >= FromProto(request.since());
}

// Where the last `tail` wanted lines begin.
absl::StatusOr<uint64_t> FindTail(LogStore* logs, int64_t job,
                                  const v1::StreamLogsRequest& request) {
  std::deque<uint64_t> last;
  uint64_t next = 0;
  while (true) {
    MP_ASSIGN_OR_RETURN(std::vector<v1::LogLine> lines, logs->Read(job, next, kLogPage));
    if (lines.empty()) return last.empty() ? next : last.front();
    next = lines.back().sequence() + 1;
    for (const v1::LogLine& line : lines) {
      if (!Wanted(line, request)) continue;
      last.push_back(line.sequence());
      if (last.size() > static_cast<size_t>(request.tail())) last.pop_front();
    }
  }
}

// Stands for lines that are not kept any more.
v1::LogLine DroppedLine(const std::string& job, int64_t lines, const LogStore::Range& range) {
  v1::LogLine line;
  line.set_job(job);
  line.set_dropped_lines(lines);
  *line.mutable_time() = ToProto(range.dropped_until);
  line.set_text(absl::StrCat(
      "... ", lines, lines == 1 ? " line" : " lines", ", the last one of ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", range.dropped_until, absl::UTCTimeZone()),
      lines == 1 ? ", was dropped" : ", were dropped"));
  return line;
}

class JobServiceImpl : public v1::JobService::Service {
 public:
  JobServiceImpl(Coordinator* coordinator, Gate* gate) : coordinator_(coordinator), gate_(gate) {}

  grpc::Status SubmitJob(grpc::ServerContext* context, const v1::SubmitJobRequest* request,
                         v1::Job* response) override {
    const std::string project = request->project().empty() ? kDefaultProject : request->project();
    return gate_->Serve(context, "JobService/SubmitJob", *request, Subject::Project(project),
                        [&](GateCall& call) -> absl::Status {
                          MP_RETURN_IF_ERROR(CheckNamed(request->spec(), &call));
                          MP_ASSIGN_OR_RETURN(*response, coordinator_->jobs().Submit(
                                                             *request, PlannerOf(context, call)));
                          call.About(response->name(), project);
                          return absl::OkStatus();
                        });
  }
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    return OnJob(context, "JobService/GetJob", *request, request->name(), response,
                 [&] { return coordinator_->jobs().Get(request->name()); });
  }
  grpc::Status GetJobCurves(grpc::ServerContext* context, const v1::GetJobCurvesRequest* request,
                            v1::JobCurves* response) override {
    return gate_->Serve(
        context, "JobService/GetJobCurves", *request, Subject::Job(request->name()),
        [&](GateCall&) -> absl::Status {
          MP_ASSIGN_OR_RETURN(
              *response, coordinator_->jobs().GetCurves(request->name(), request->max_points()));
          return absl::OkStatus();
        });
  }
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::Job* response) override {
    return OnJob(context, "JobService/CancelJob", *request, request->name(), response,
                 [&] { return coordinator_->jobs().Cancel(request->name()); });
  }
  grpc::Status ResumeJob(grpc::ServerContext* context, const v1::ResumeJobRequest* request,
                         v1::Job* response) override {
    return OnJob(context, "JobService/ResumeJob", *request, request->name(), response,
                 [&] { return coordinator_->jobs().Resume(*request); });
  }
  grpc::Status SuspendJob(grpc::ServerContext* context, const v1::SuspendJobRequest* request,
                          v1::Job* response) override {
    return OnJob(context, "JobService/SuspendJob", *request, request->name(), response,
                 [&] { return coordinator_->jobs().Suspend(request->name()); });
  }
  grpc::Status UpdateJob(grpc::ServerContext* context, const v1::UpdateJobRequest* request,
                         v1::Job* response) override {
    const Subject job = Subject::Job(request->job().name());
    return gate_->Serve(
        context, "JobService/UpdateJob", *request, job, [&](GateCall& call) -> absl::Status {
          MP_RETURN_IF_ERROR(CheckNamed(request->job().spec(), &call));
          const bool by_admin = call.Check(job, v1::ROLE_ADMIN).ok();
          MP_ASSIGN_OR_RETURN(
              *response, coordinator_->jobs().Update(*request, by_admin, PlannerOf(context, call)));
          return absl::OkStatus();
        });
  }
  // In the source's project unless another is named: then that is the one to be allowed in, and the
  // source only has to be seen.
  grpc::Status ForkJob(grpc::ServerContext* context, const v1::ForkJobRequest* request,
                       v1::Job* response) override {
    const std::string& source = request->source();
    const Subject of_source =
        JobNumber(source) != 0 ? Subject::Job(source) : Subject::Checkpoint(source);
    const bool elsewhere = !request->project().empty();
    return gate_->Serve(
        context, "JobService/ForkJob", *request,
        elsewhere ? Subject::Project(request->project()) : of_source,
        [&](GateCall& call) -> absl::Status {
          if (elsewhere) MP_RETURN_IF_ERROR(call.Check(of_source, v1::ROLE_VIEWER));
          std::string project = request->project();
          if (!elsewhere) {
            MP_ASSIGN_OR_RETURN(project, ProjectOfSource(source));
          }
          const auto check = [&](const v1::JobSpec& spec) { return CheckNamed(spec, &call); };
          MP_ASSIGN_OR_RETURN(*response, coordinator_->jobs().Fork(*request, project, check,
                                                                   PlannerOf(context, call)));
          call.About(response->name(), project);
          return absl::OkStatus();
        });
  }
  grpc::Status SubmitJobArray(grpc::ServerContext* context,
                              const v1::SubmitJobArrayRequest* request,
                              v1::SubmitJobArrayResponse* response) override {
    const std::string project = request->project().empty() ? kDefaultProject : request->project();
    return gate_->Serve(
        context, "JobService/SubmitJobArray", *request, Subject::Project(project),
        [&](GateCall& call) -> absl::Status {
          const auto check = [&](const v1::JobSpec& spec) { return CheckNamed(spec, &call); };
          MP_ASSIGN_OR_RETURN(*response, coordinator_->jobs().SubmitArray(
                                             *request, check, PlannerOf(context, call)));
          call.About(response->array(), project);
          return absl::OkStatus();
        });
  }
  grpc::Status CancelJobArray(grpc::ServerContext* context,
                              const v1::CancelJobArrayRequest* request,
                              v1::CancelJobArrayResponse* response) override {
    // All its jobs are of one project.
    const std::string one = coordinator_->jobs().AnyJobOfArray(request->array());
    return gate_->Serve(context, "JobService/CancelJobArray", *request, Subject::Job(one),
                        [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(*response,
                                              coordinator_->jobs().CancelArray(request->array()));
                          return absl::OkStatus();
                        });
  }
  grpc::Status DeleteJob(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* response) override {
    return gate_->Serve(context, "JobService/DeleteJob", *request, Subject::Job(request->name()),
                        [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(*response,
                                              coordinator_->jobs().Delete(request->name()));
                          return absl::OkStatus();
                        });
  }
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    return gate_->Serve(context, "JobService/ListJobs", *request, Subject::Nothing(),
                        [&](GateCall& call) { return List(*request, call, response); });
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override {
    return gate_->Serve(
        context, "JobService/WatchJob", *request, Subject::Job(request->name()),
        [&](GateCall& call) { return Watch(context, call, request->name(), writer); });
  }
  grpc::Status StreamLogs(grpc::ServerContext* context, const v1::StreamLogsRequest* request,
                          grpc::ServerWriter<v1::LogLine>* writer) override {
    return gate_->Serve(context, "JobService/StreamLogs", *request, Subject::Job(request->name()),
                        [&](GateCall& call) { return Logs(context, call, *request, writer); });
  }

 private:
  // A call about one job that answers with it.
  grpc::Status OnJob(grpc::ServerContext* context, absl::string_view method,
                     const google::protobuf::Message& request, const std::string& name,
                     v1::Job* response, const std::function<absl::StatusOr<v1::Job>()>& action) {
    return gate_->Serve(context, method, request, Subject::Job(name),
                        [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(*response, action());
                          return absl::OkStatus();
                        });
  }

  // For as long as the call lives.
  static Planner PlannerOf(const grpc::ServerContext* context, const GateCall& call) {
    return {.who = call.caller(), .gone = [context] { return context->IsCancelled(); }};
  }

  // What the spec refers to of others must be the caller's to see. The answers are those for what
  // is not there.
  static absl::Status CheckNamed(const v1::JobSpec& spec, GateCall* call) {
    const std::string& checkpoint = spec.checkpoint().resume_from();
    if (!checkpoint.empty()) {
      const absl::Status seen = call->Check(Subject::Checkpoint(checkpoint), v1::ROLE_VIEWER);
      if (!seen.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("checkpoint.resume_from: ", std::string(seen.message())));
      }
    }
    for (const std::string& job : spec.scheduling().depends_on()) {
      if (call->Check(Subject::Job(job), v1::ROLE_VIEWER).ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("scheduling.depends_on: there is no job '", job, "' before this one"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ProjectOfSource(const std::string& source) {
    if (JobNumber(source) != 0) return coordinator_->jobs().ProjectOf(source);
    MP_ASSIGN_OR_RETURN(const v1::Checkpoint owner,
                        coordinator_->store().checkpoints().Owner(source));
    return coordinator_->jobs().ProjectOf(owner.job());
  }

  absl::Status List(const v1::ListJobsRequest& request, const GateCall& call,
                    v1::ListJobsResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    MP_RETURN_IF_ERROR(CheckFilter(request));
    const std::string filter = FilterDigest(request);
    MP_ASSIGN_OR_RETURN(const int64_t before, NumberOfToken(request.page_token(), filter));
    const auto wanted = [&](const v1::Job& job) {
      const std::string project = ProjectOfJob(job);
      return (request.project().empty() || project == request.project()) && call.Sees(project) &&
             Matches(request, job);
    };
    JobDesk::JobPage page = coordinator_->jobs().List(before, size, wanted, request.read_mask());
    if (page.next_before > 0) {
      response->set_next_page_token(TokenOfNumber(page.next_before, filter));
    }
    for (v1::Job& job : page.jobs) *response->add_jobs() = std::move(job);
    return absl::OkStatus();
  }

  absl::Status Watch(grpc::ServerContext* context, const GateCall& call, const std::string& name,
                     grpc::ServerWriter<v1::Job>* writer) {
    uint64_t seen = 0;
    absl::Time next_send = absl::InfinitePast();
    v1::JobState sent_state = v1::JOB_STATE_UNSPECIFIED;
    std::string sent;
    while (!context->IsCancelled()) {
      MP_RETURN_IF_ERROR(call.StillHolds());
      MP_ASSIGN_OR_RETURN(JobDesk::Snapshot now, coordinator_->jobs().Wait(name, seen, kPoll));
      if (now.version == seen) continue;
      // A change of state goes out at once; progress at most every kWatchInterval.
      const absl::Duration early = next_send - SteadyNow();
      if (early > absl::ZeroDuration() && now.job.state() == sent_state) {
        coordinator_->jobs().Wait(name, now.version, early).IgnoreError();
        continue;
      }
      seen = now.version;
      std::string bytes = now.job.SerializeAsString();
      if (bytes == sent) continue;  // others wait for something else now
      sent = std::move(bytes);
      sent_state = now.job.state();
      MP_RETURN_IF_ERROR(coordinator_->MayAct());
      if (!call.Send(writer, now.job)) break;
      if (IsTerminal(sent_state)) return absl::OkStatus();
      next_send = SteadyNow() + kWatchInterval;
    }
    return absl::CancelledError("the watch was cancelled");
  }

  // Not unless it is certain that this coordinator still speaks for the store.
  absl::Status Send(const GateCall& call, const v1::LogLine& line,
                    grpc::ServerWriter<v1::LogLine>* writer) {
    MP_RETURN_IF_ERROR(coordinator_->MayAct());
    return call.Send(writer, line) ? absl::OkStatus() : absl::CancelledError("the client has gone");
  }

  absl::Status Logs(grpc::ServerContext* context, const GateCall& call,
                    const v1::StreamLogsRequest& request, grpc::ServerWriter<v1::LogLine>* writer) {
    MP_RETURN_IF_ERROR(coordinator_->jobs().Get(request.name()).status());
    if (request.tail() < 0) return absl::InvalidArgumentError("tail: must be at least 0");
    const int64_t number = JobNumber(request.name());
    LogStore& logs = coordinator_->store().logs();
    uint64_t next = 0;
    if (request.tail() > 0) {
      MP_ASSIGN_OR_RETURN(next, FindTail(&logs, number, request));
    }
    MP_ASSIGN_OR_RETURN(LogStore::Range kept, logs.GetRange(number));
    const bool told = kept.dropped > 0 && next <= kept.first &&
                      (!request.has_since() || kept.dropped_until >= FromProto(request.since()));
    if (told) {
      MP_RETURN_IF_ERROR(Send(call, DroppedLine(request.name(), kept.dropped, kept), writer));
    }
    next = std::max(next, kept.first);
    while (!context->IsCancelled()) {
      MP_RETURN_IF_ERROR(call.StillHolds());
      MP_ASSIGN_OR_RETURN(v1::Job job, coordinator_->jobs().Get(request.name()));
      // Asked before reading: what is stored after the end was read is none of this attempt's.
      const bool last = !request.follow() || IsTerminal(job.state());
      MP_ASSIGN_OR_RETURN(std::vector<v1::LogLine> lines, logs.Read(number, next, kLogPage));
      for (const v1::LogLine& line : lines) {
        // A reader who is slower than they are dropped.
        if (line.sequence() > next) {
          MP_ASSIGN_OR_RETURN(kept, logs.GetRange(number));
          const auto lines_dropped = static_cast<int64_t>(line.sequence() - next);
          MP_RETURN_IF_ERROR(Send(call, DroppedLine(request.name(), lines_dropped, kept), writer));
        }
        next = line.sequence() + 1;
        if (Wanted(line, request)) MP_RETURN_IF_ERROR(Send(call, line, writer));
      }
      if (lines.empty() && last) return absl::OkStatus();
      if (lines.empty()) coordinator_->jobs().WaitLogs(request.name(), kPoll);
      MP_RETURN_IF_ERROR(
          coordinator_->jobs().Wait(request.name(), 0, absl::ZeroDuration()).status());
    }
    return absl::CancelledError("the call was cancelled");
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(Coordinator* coordinator, Gate* gate) {
  return std::make_unique<JobServiceImpl>(coordinator, gate);
}

}  // namespace milepost::coordinator
