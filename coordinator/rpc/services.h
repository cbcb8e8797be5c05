// The gRPC services, each a thin translation to the Coordinator and its store. They block one
// server thread per call in progress. Each lets in whom
// the gate lets in. Coordinator, gate, tables and authority must outlive them.
#ifndef MILEPOST_COORDINATOR_RPC_SERVICES_H_
#define MILEPOST_COORDINATOR_RPC_SERVICES_H_

#include <memory>

namespace grpc {
class Service;
}

namespace milepost::coordinator {

class Coordinator;
class Gate;
class JoinTable;
class TemplateTable;
class WorkerAuthority;

std::unique_ptr<grpc::Service> MakeJobService(Coordinator* coordinator, Gate* gate);
std::unique_ptr<grpc::Service> MakeQueueService(Coordinator* coordinator, Gate* gate);
std::unique_ptr<grpc::Service> MakeWorkerService(Coordinator* coordinator, Gate* gate);
std::unique_ptr<grpc::Service> MakeRendezvousService(Coordinator* coordinator, Gate* gate);
std::unique_ptr<grpc::Service> MakeCheckpointService(Coordinator* coordinator, Gate* gate);
std::unique_ptr<grpc::Service> MakeFilesService(Coordinator* coordinator, Gate* gate);
std::unique_ptr<grpc::Service> MakeAuthService(Gate* gate);
struct JoinServiceOptions {
  JoinTable* joins = nullptr;
  const WorkerAuthority* authority = nullptr;  // null: it has no key, and nobody joins
  bool knows_accounts = false;                 // a cluster's service accounts may join
};
std::unique_ptr<grpc::Service> MakeJoinService(Coordinator* coordinator, Gate* gate,
                                               const JoinServiceOptions& options);
std::unique_ptr<grpc::Service> MakeTemplateService(TemplateTable* templates, Gate* gate);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_SERVICES_H_
