// The one door to every service: who is it, may they, is it too much, and a line in the audit log.
//
//   grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
//                       v1::Job* response) override {
//     return gate_->Serve(context, "JobService/GetJob", *request, Subject::Job(request->name()),
//                         [&](GateCall& call) { ... return absl::OkStatus(); });
//   }
//
// What a caller may not see it is told does not exist, in the same words. Without TLS (loopback
// alone) every caller is "local" and may do everything. Thread-safe; blocks for at most a write of
// a token's last use.
#ifndef MILEPOST_COORDINATOR_RPC_GATE_H_
#define MILEPOST_COORDINATOR_RPC_GATE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/rpc/call_ends.h"
#include "coordinator/rpc/call_watch.h"
#include "coordinator/security/audit_log.h"
#include "coordinator/security/deny_list.h"
#include "coordinator/security/method_rules.h"
#include "coordinator/security/rate_limiter.h"
#include "coordinator/security/token_table.h"
#include "milepost/v1/auth.pb.h"

namespace google::protobuf {
class Message;
}

namespace milepost::coordinator {

class Coordinator;
class Gate;
class JoinTable;
class ServiceAccounts;

// What a call is about.
struct Subject {
  enum Kind { kNothing, kJob, kCheckpoint, kProject, kAttempt };

  static Subject Nothing() { return {}; }
  static Subject Job(std::string name) { return {kJob, std::move(name), 0}; }
  static Subject Checkpoint(std::string name) { return {kCheckpoint, std::move(name), 0}; }
  static Subject Project(std::string name) { return {kProject, std::move(name), 0}; }
  // A job; for a worker the generation of it that it runs.
  static Subject JobOrAttempt(std::string job, int64_t generation) {
    return {kJob, std::move(job), generation};
  }
  // A generation of a job, which the caller says to run.
  static Subject Attempt(std::string job, int64_t generation) {
    return {kAttempt, std::move(job), generation};
  }

  Kind kind = kNothing;
  std::string name;
  int64_t generation = 0;  // of kJob: the one that a worker runs; 0: none
};

// One call, from where it is let in to its end. For one thread at a time.
class GateCall {
 public:
  // `method`: "JobService/GetJob". `request` may be null.
  GateCall(Gate* gate, const grpc::ServerContextBase* context, absl::string_view method,
           const google::protobuf::Message* request);
  ~GateCall();
  GateCall(const GateCall&) = delete;
  GateCall& operator=(const GateCall&) = delete;

  // Before anything is done.
  absl::Status LetIn(const Subject& subject);
  // Of what the call turns out to be about, too: as LetIn checks it. `role` other than UNSPECIFIED
  // replaces the table's.
  absl::Status Check(const Subject& subject, v1::Role role = v1::ROLE_UNSPECIFIED);
  // Is the caller, whose call has gone on for a while, still let in?
  absl::Status StillHolds() const;
  // The call is cancelled soon after the attempt is over: its sender may never say anything again.
  void EndWithAttempt(const std::string& job, int64_t generation);
  // The same soon after a time of SteadyNow.
  void EndAt(absl::Time deadline);
  // Writes to a stream of Serve's: false when its reader has gone, or took too long and was cut.
  template <typename Writer, typename Message>
  bool Send(Writer* writer, const Message& message) const {
    WriteBegins();
    const bool written = writer->Write(message);
    WriteEnds();
    return written;
  }

  const v1::Principal& principal() const { return principal_; }
  const std::string& peer() const { return peer_; }  // as gRPC names it
  bool Sees(const std::string& project) const;
  // For the audit log, where the request does not say.
  void About(const std::string& resource, const std::string& project);
  // The call's line in the audit log, if it gets one. Once; also when the call is over.
  void Record(const absl::Status& status);

  // Whom the call counts for, wherever callers are counted; empty: nobody in particular.
  const std::string& caller() const { return counted_.name; }

 private:
  absl::Status CheckJob(const Subject& subject, v1::Role role);
  absl::Status CheckCheckpoint(const std::string& name, v1::Role role);
  absl::Status CheckAttempt(const std::string& job, int64_t generation) const;
  absl::Status Refused(const std::string& project, v1::Role role) const;
  // Whether a call that ends so gets a line in the audit log.
  bool IsRecorded(absl::StatusCode code) const;
  // NOT_FOUND to the caller, a refusal in the audit log.
  absl::Status Hidden(absl::Status as_if_missing);
  absl::Status BeginCounting(bool of_rank);
  friend class Gate;
  void WriteBegins() const;
  void WriteEnds() const;

  Gate* const gate_;
  const grpc::ServerContextBase* const context_;
  const std::string peer_;
  const std::string method_;
  const MethodRule* const rule_;
  v1::Principal principal_;
  std::string resource_;
  std::string project_;
  std::string request_id_;
  RateLimiter::Caller counted_;     // whom the call counts for
  RateLimiter* limiter_ = nullptr;  // by which; null: it is not counted
  bool hidden_ = false;
  bool recorded_ = false;
  bool told_ = false;  // to the metrics
  const absl::Time began_;
  uint64_t watched_ = 0;  // by the gate's watch
};

struct GateOptions {
  bool tls = false;
  std::string denied_workers;           // the file; empty: none is denied
  JoinTable* joins = nullptr;           // outlives the gate; null: no join token is known
  ServiceAccounts* accounts = nullptr;  // the same; null: no service account's token is
  Limits limits;
};

class Gate {
 public:
  // `audit` may be null. All outlive the gate.
  Gate(Coordinator* coordinator, TokenTable* tokens, AuditLog* audit, const GateOptions& options)
      : coordinator_(coordinator),
        tokens_(tokens),
        audit_(audit),
        tls_(options.tls),
        joins_(options.joins),
        accounts_(options.accounts),
        denied_(options.denied_workers),
        limiter_(options.limits) {}

  // The answer carries what is wrong with the store (kWarningKey) to whoever is let in.
  grpc::Status Serve(grpc::ServerContextBase* context, absl::string_view method,
                     const google::protobuf::Message& request, const Subject& subject,
                     const std::function<absl::Status(GateCall&)>& body);

  // Who has made the connection, and shows which token.
  absl::StatusOr<v1::Principal> Identify(const grpc::AuthContext& connection,
                                         absl::string_view authorization) const;

  // May whoever shows this HTTP header ("Bearer TOKEN") read the metrics? Without TLS everybody
  // may. UNAUTHENTICATED, PERMISSION_DENIED.
  absl::Status CheckScrape(absl::string_view authorization) const;

  // For the server's credentials: refuses, before a message is read, whoever is not let in and
  // methods that are not in the table.
  std::shared_ptr<grpc::AuthMetadataProcessor> Processor();

  // UNAUTHENTICATED: the worker of this id is shut out.
  absl::Status CheckNotDenied(absl::string_view worker_id) const;

  TokenTable& tokens() { return *tokens_; }
  // A call counts against limits until then: it has a thread.
  CallEnds& call_ends() { return call_ends_; }

 private:
  friend class GateCall;
  class MetadataProcessor;
  void Watch(GateCall* call, std::function<bool()> goes_on);
  grpc::Status CheckMetadata(absl::string_view path, absl::string_view authorization,
                             const grpc::AuthContext& connection) const;

  Coordinator* const coordinator_;
  TokenTable* const tokens_;
  AuditLog* const audit_;
  const bool tls_;
  JoinTable* const joins_;
  ServiceAccounts* const accounts_;
  mutable DenyList denied_;
  RateLimiter limiter_;
  RateLimiter rank_limiter_{kRankLimits};
  RateLimiter rank_wait_limiter_{kRankWaitLimits};
  CallEnds call_ends_;
  CallWatch watch_;  // its thread asks the others
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_GATE_H_
