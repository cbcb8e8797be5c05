// The gRPC services, each a thin translation to the Coordinator and its store. They block one
// server thread per call in progress. The coordinator must outlive them.
#ifndef MILEPOST_COORDINATOR_RPC_SERVICES_H_
#define MILEPOST_COORDINATOR_RPC_SERVICES_H_

#include <memory>

namespace grpc {
class Service;
}

namespace milepost::coordinator {

class Coordinator;

std::unique_ptr<grpc::Service> MakeJobService(Coordinator* coordinator);
std::unique_ptr<grpc::Service> MakeQueueService(Coordinator* coordinator);
std::unique_ptr<grpc::Service> MakeWorkerService(Coordinator* coordinator);
std::unique_ptr<grpc::Service> MakeRendezvousService(Coordinator* coordinator);
std::unique_ptr<grpc::Service> MakeCheckpointService(Coordinator* coordinator);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_SERVICES_H_
